"""Partitions: ranges without gaps, overlaps, or ranges larger than allowed."""

import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from reput.spark import plan
from reput.spark.plan import Extent, LogRange, QueueSlice

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6).map(
    lambda pairs: [(min(pair), max(pair)) for pair in pairs]
)


def points(spans: Any) -> set[int]:
    return {n for start, stop in spans for n in range(start, stop)}


@hypothesis.given(SPANS)
def test_joined_spans_cover_the_same_bytes_in_order(spans: list[tuple[int, int]]) -> None:
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
    covered = [n for span in ranges for n in range(span.start, span.stop)]
    assert covered == sorted(points(spans))
    assert all(0 < span.byte_count <= target for span in ranges)
    assert all(span.is_end == (span.stop == end) and span.store == 3 for span in ranges)
    sizes = [span.byte_count for span in ranges if spans and (span.start, span.stop)]
    if len(spans) == 1 and sizes:
        assert max(sizes) - min(sizes) <= 1


def test_a_log_of_many_gigabytes_is_cut_quickly() -> None:
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
    unique_by=lambda extent: (extent.slice.topic, extent.slice.queue_id),
)


@hypothesis.given(EXTENTS, st.integers(1, 500), st.none() | st.integers(1, 20))
def test_queue_ranges_cover_each_message_once(
    extents: list[Extent], target: int, most: int | None
) -> None:
    ranges = plan.split_queues(2, extents, target, most)

    def messages(slices: Any) -> list[tuple[str, int, int]]:
        return [(s.topic, s.queue_id, n) for s in slices for n in range(s.start, s.stop)]

    positions = messages(piece for part in ranges for piece in part.slices)
    assert positions == messages(extent.slice for extent in extents)
    sizes = {(extent.slice.topic, extent.slice.queue_id): extent.record_bytes for extent in extents}
    for part in ranges:
        assert part.store == 2
        assert all(piece.count > 0 for piece in part.slices)
        count = sum(piece.count for piece in part.slices)
        assert count
        assert most is None or count <= most
        bytes_ = sum(piece.count * sizes[piece.topic, piece.queue_id] for piece in part.slices)
        assert bytes_ <= target + 1e-6 or count == 1


def test_small_queues_share_a_partition() -> None:
    extents = [Extent(QueueSlice("a", n, 0, 10), 10.0) for n in range(10)]
    ranges = plan.split_queues(0, extents, 300)
    assert [len(span.slices) for span in ranges] == [3, 3, 3, 1]
    assert plan.split_queues(0, [], 300) == []


# --- shares of a micro-batch -------------------------------------------------

BACKLOGS = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


def in_order(count: int) -> Any:
    return lambda: list(range(count))


@hypothesis.given(BACKLOGS, st.integers(1, 3000))
def test_shares_of_messages(backlogs: list[int], limit: int) -> None:
    shares = plan.share_messages(backlogs, limit, in_order(len(backlogs)))
    assert sum(shares) == min(limit, sum(backlogs))
    assert all(0 <= share <= backlog for share, backlog in zip(shares, backlogs, strict=True))
    waiting = [i for i, backlog in enumerate(backlogs) if backlog]
    if limit >= len(waiting):
        assert all(shares[i] for i in waiting)
        # In proportion, except for the first message of each queue and for rounding.
        rest, total = limit - len(waiting), sum(backlogs) - len(waiting)
        for i in waiting if 0 < rest < total else ():
            assert abs(shares[i] - 1 - (backlogs[i] - 1) * rest / total) < 1
    else:
        assert [i for i, share in enumerate(shares) if share] == waiting[:limit]


@pytest.mark.parametrize(
    ("backlogs", "limit", "expected"),
    [
        ([100, 1, 0, 50], 15, [9, 1, 0, 5]),
        ([10, 10], 20, [10, 10]),
        ([10, 10], 5, [3, 2]),
        ([1 << 62, 1], 1 << 40, [(1 << 40) - 1, 1]),
        ([0, 0], 5, [0, 0]),
    ],
)
def test_examples_of_shares(backlogs: list[int], limit: int, expected: list[int]) -> None:
    assert plan.share_messages(backlogs, limit, in_order(len(backlogs))) == expected


def test_the_oldest_messages_are_taken_first() -> None:
    assert plan.share_messages([5, 5, 0, 5], 2, lambda: [2, 3, 0, 1]) == [1, 0, 0, 1]


SIZES = st.lists(st.lists(st.integers(1, 500), max_size=20), min_size=1, max_size=6)


@hypothesis.given(SIZES, st.integers(1, 6000))
def test_shares_of_bytes(sizes: list[list[int]], limit: int) -> None:
    arrays = [np.array(size, np.int64) for size in sizes]
    totals = [sum(size) for size in sizes]
    counts = plan.share_bytes(arrays, totals, limit, in_order(len(sizes)))
    taken = sum(sum(queue[:count]) for queue, count in zip(sizes, counts, strict=True))
    assert taken <= limit or sum(counts) == 1
    if sum(totals) <= limit:
        assert counts == [len(size) for size in sizes]
    waiting = [i for i, queue in enumerate(sizes) if queue]
    if waiting:
        assert counts[waiting[0]] or sum(size[0] for size in sizes if size) <= limit
        assert sum(counts)
    if sum(size[0] for size in sizes if size) <= limit:
        assert all(counts[i] for i in waiting)
        # No waiting message at the front of a queue would have fitted.
        left = limit - taken
        assert all(counts[i] == len(sizes[i]) or sizes[i][counts[i]] > left for i in waiting)


def test_an_oldest_message_above_the_limit_is_taken_alone() -> None:
    arrays = [np.array([10, 10]), np.array([900, 10]), np.array([20])]
    assert plan.share_bytes(arrays, [20, 910, 20], 100, lambda: [1, 0, 2]) == [0, 1, 0]
    assert plan.share_bytes(arrays, [20, 910, 20], 100, lambda: [0, 1, 2]) == [2, 0, 1]
