"""Cutting ranges: nothing left out, nothing twice, nothing larger than allowed."""

import itertools
import pickle
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from reput.spark import plan
from reput.spark.plan import Extent, LogRange, QueueRange, QueueSlice

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6).map(
    lambda pairs: [(min(pair), max(pair)) for pair in pairs]
)


def points(spans: Any) -> set[int]:
    return {n for start, stop in spans for n in range(start, stop)}


@hypothesis.given(SPANS)
def test_joined_spans_are_the_same_bytes_in_order(spans: list[tuple[int, int]]) -> None:
    joined = plan.join_spans(spans)
    assert points(joined) == points(spans)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(joined))


@hypothesis.given(SPANS, SPANS)
def test_without_spans(spans: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    left = plan.without_spans(spans, others)
    assert points(left) == points(spans) - points(others)
    assert all(start < stop for start, stop in left)


@hypothesis.given(SPANS, st.integers(0, 300), st.integers(0, 300))
def test_meet_spans(spans: list[tuple[int, int]], low: int, high: int) -> None:
    met = plan.meet_spans(spans, low, high)
    assert points(met) == points(spans) & {*range(low, high)}
    assert all(start < stop for start, stop in met)


@pytest.mark.parametrize(
    ("total", "most", "partitions", "expected"),
    [
        (1000, 128, None, 128),
        (1000, 128, 2, 128),
        (1000, 128, 10, 100),
        (1001, 128, 10, 101),
        (0, 128, 10, 128),
        (5, 128, 100, 1),
        (5.5, 128, 2, 3),
    ],
)
def test_target(total: float, most: int, partitions: int | None, expected: int) -> None:
    assert plan.target_bytes(total, most, partitions) == expected


@hypothesis.given(SPANS.map(plan.join_spans), st.integers(1, 400))
def test_log_ranges_tile_the_spans(spans: list[tuple[int, int]], target: int) -> None:
    end = spans[-1][1] if spans else 0
    ranges = plan.split_log(3, spans, end, target)
    covered = [n for one in ranges for n in range(one.start, one.stop)]
    assert covered == sorted(points(spans))
    assert all(0 < one.byte_count <= target for one in ranges)
    assert all(one.is_end == (one.stop == end) and one.store == 3 for one in ranges)
    sizes = [one.byte_count for one in ranges if spans and (one.start, one.stop)]
    if len(spans) == 1 and sizes:
        assert max(sizes) - min(sizes) <= 1


def test_a_log_of_many_gigabytes_is_cut_at_once() -> None:
    ranges = plan.split_log(0, [(1 << 40, 1 << 41)], 1 << 41, 128 << 20)
    assert len(ranges) == 8192
    assert ranges[0] == LogRange(0, 1 << 40, (1 << 40) + (128 << 20), False)
    assert ranges[-1].is_end


EXTENTS = st.lists(
    st.builds(
        lambda topic, queue_id, start, count, size: Extent(
            QueueSlice(topic, queue_id, start, start + count), size
        ),
        st.sampled_from("ab"),
        st.integers(0, 2),
        st.integers(0, 50),
        st.integers(0, 60),
        st.floats(1, 90),
    ),
    max_size=5,
    unique_by=lambda one: (one.slice.topic, one.slice.queue_id),
)


@hypothesis.given(EXTENTS, st.integers(1, 500), st.none() | st.integers(1, 20))
def test_queue_ranges_have_each_message_once(
    extents: list[Extent], target: int, most: int | None
) -> None:
    ranges = plan.split_queues(2, extents, target, most)

    def messages(slices: Any) -> list[tuple[str, int, int]]:
        return [(s.topic, s.queue_id, n) for s in slices for n in range(s.start, s.stop)]

    found = messages(one for part in ranges for one in part.slices)
    assert found == messages(one.slice for one in extents)
    sizes = {(one.slice.topic, one.slice.queue_id): one.record_bytes for one in extents}
    for part in ranges:
        assert part.store == 2
        assert all(one.count > 0 for one in part.slices)
        count = sum(one.count for one in part.slices)
        assert count
        assert most is None or count <= most
        bytes_ = sum(one.count * sizes[one.topic, one.queue_id] for one in part.slices)
        assert bytes_ <= target + 1e-6 or count == 1


def test_small_queues_share_a_partition() -> None:
    extents = [Extent(QueueSlice("a", n, 0, 10), 10.0) for n in range(10)]
    ranges = plan.split_queues(0, extents, 300)
    assert [len(one.slices) for one in ranges] == [3, 3, 3, 1]
    assert plan.split_queues(0, [], 300) == []


@pytest.mark.parametrize(
    "part",
    [
        LogRange(0, 1, 2, True),
        QueueRange(0, (QueueSlice("a", 0, 1, 2),)),
        plan.Points(0, (1, 2)),
    ],
)
def test_partitions_travel(part: plan.Partition) -> None:
    assert pickle.loads(pickle.dumps(part)) == part
