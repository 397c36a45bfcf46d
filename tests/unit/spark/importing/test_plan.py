"""Places of an import's records, compared with a broker that puts one record at a time."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from reput.errors import InvalidOption
from reput.format import message as record
from reput.spark.importing.plan import Fragment, LogPart, Planner, QueueKey, RecordTable

FILE_BYTES = 1000
ROOM = FILE_BYTES - record.BLANK.size
KEYS: list[QueueKey] = [("A", 0), ("A", 1), ("B", 0)]

Records = list[tuple[int, int]]
"""Size and place in KEYS of each record."""
Placed = list[tuple[int, QueueKey, int, int]]
"""Physical offset, queue, queue offset and store time of each record."""


def table_of(records: Records, times: list[int] | None = None) -> RecordTable:
    sizes = np.array([size for size, _ in records], np.int32)
    queues = np.array([queue for _, queue in records], np.int32)
    return RecordTable(sizes, queues, None if times is None else np.array(times, np.int64))


def fragment_of(records: Records) -> Fragment:
    return Fragment("x", sum(size for size, _ in records), len(records), tuple(KEYS))


def put_by_a_broker(
    fragments: list[Records], end: int, next_offsets: dict[QueueKey, int]
) -> list[tuple[int, QueueKey, int]]:
    """Return physical offset, queue and queue offset of each record."""
    offsets = dict(next_offsets)
    placed = []
    for size, queue in (entry for records in fragments for entry in records):
        if end % FILE_BYTES + size > ROOM:
            end += FILE_BYTES - end % FILE_BYTES
        key = KEYS[queue]
        placed.append((end, key, offsets.get(key, 0)))
        offsets[key] = offsets.get(key, 0) + 1
        end += size
    return placed


def unfolded(parts: list[LogPart], fragments: list[Records]) -> list[tuple[int, QueueKey, int]]:
    """Return the same values from the planned parts."""
    placed = []
    for part in parts:
        physical_offset, offsets = part.start, dict(part.queue_offsets)
        for piece in part.pieces:
            records = fragments[piece.fragment]
            ends = [0, *accumulate(size for size, _ in records)]
            assert piece.position == ends[piece.first]
            assert piece.size == ends[piece.stop] - ends[piece.first]
            for size, queue in records[piece.first : piece.stop]:
                key = KEYS[queue]
                placed.append((physical_offset, key, offsets[key]))
                offsets[key] += 1
                physical_offset += size
        assert physical_offset - part.file_start <= ROOM
    return placed


RECORDS = st.lists(st.tuples(st.integers(91, ROOM), st.integers(0, 2)), max_size=12)


@given(
    st.lists(RECORDS, max_size=5),
    st.integers(0, 5).flatmap(
        lambda n: st.integers(0, ROOM).map(lambda position: n * FILE_BYTES + position)
    ),
    st.dictionaries(st.sampled_from(KEYS), st.integers(0, 1000)),
)
def test_records_are_placed_like_by_a_broker(
    fragments: list[Records], end: int, next_offsets: dict[QueueKey, int]
) -> None:
    planner = Planner(0, end, FILE_BYTES, next_offsets, 5)
    for records in fragments:
        planner.add(fragment_of(records), table_of(records))
    parts = planner.finish()
    expected = put_by_a_broker(fragments, end, next_offsets)
    assert unfolded(parts, fragments) == expected
    sizes = [size for records in fragments for size, _ in records]
    assert planner.message_count == len(expected)
    assert planner.end == (expected[-1][0] + sizes[-1] if expected else end)
    # Each file but the last ends with a blank, and the files are consecutive.
    assert [part.is_ended for part in parts] == [True] * (len(parts) - 1) + [False] * bool(parts)
    for before, part in pairwise(parts):
        assert (part.file_start, part.position) == (before.file_start + FILE_BYTES, 0)
    if parts:
        assert parts[0].start == end


def test_times_before_a_part_cover_all_earlier_records() -> None:
    planner = Planner(0, 0, FILE_BYTES, {}, 7)
    for times in ([5, 9], [8, 20], [10]):
        records = [(400, 0)] * len(times)
        planner.add(fragment_of(records), table_of(records, times))
    assert [part.time_ms for part in planner.finish()] == [7, 9, 20]


def test_a_record_larger_than_a_file_is_refused() -> None:
    planner = Planner(0, 0, FILE_BYTES, {}, 0)
    with pytest.raises(InvalidOption, match="1001 at least, as a record has 993 bytes"):
        planner.add(fragment_of([(ROOM + 1, 0)]), table_of([(ROOM + 1, 0)]))
