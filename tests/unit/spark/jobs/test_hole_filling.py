"""Records that fill a hole: valid, and exactly as long as the hole."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from reput.errors import CorruptRecord
from reput.format import message as record, sys_flag as flags
from reput.format.message import Verdict
from reput.spark.jobs import hole_filling, queue_runs
from reput.spark.jobs.hole_filling import Fill, Hole

FILE_BYTES = 8 * 1024 * 1024


@given(
    length=st.integers(hole_filling.SMALLEST_FILL_BYTES, 3 * hole_filling.PIECE_BYTES_MAX),
    start=st.integers(0, 1 << 40),
    has_crc=st.booleans(),
)
def test_records_fill_a_hole_exactly(length: int, start: int, has_crc: bool) -> None:
    fill = Fill(start, length, start + length + 1, 1_700_000_000_000)
    position = start
    for physical_offset, data in hole_filling.content(fill, has_crc=has_crc):
        assert physical_offset == position
        verdict, size = record.classify(data, 0, position, file_end=len(data))
        assert (verdict, size) == (Verdict.MESSAGE, len(data))
        message = record.decode(data)
        assert not flags.is_queued(message.sys_flag)
        assert flags.transaction_type(message.sys_flag) == flags.TRANSACTION_ROLLBACK
        assert message.store_timestamp == 1_700_000_000_000
        position += size
    assert position == start + length


def test_a_hole_to_the_end_of_a_file_is_a_blank() -> None:
    ((position, data),) = hole_filling.content(Fill(100, 8, 108, 0))
    assert (position, data) == (100, record.pack_blank(8))


@pytest.mark.parametrize("length", [1, hole_filling.SMALLEST_FILL_BYTES - 1])
def test_a_hole_shorter_than_a_record_is_refused(length: int) -> None:
    with pytest.raises(CorruptRecord, match="too small"):
        list(hole_filling.content(Fill(100, length, 5000, 0)))


def test_a_hole_is_split_at_ends_of_files() -> None:
    hole = Hole(1500, 2000, "gone", "f", 7)
    parts = list(hole_filling.in_files(hole, 500, 1000))
    assert [(part.physical_offset, part.end, part.file_end) for part in parts] == [
        (1500, 2500, 2500),
        (2500, 3500, 3500),
    ]


def test_adjacent_holes_are_merged() -> None:
    given_holes = [Hole(30, 5, "c", "f"), Hole(0, 10, "a", "f"), Hole(10, 10, "b", "f", 9)]
    assert hole_filling.join(given_holes) == [Hole(0, 20, "a; b", "f", 9), Hole(30, 5, "c", "f")]


OFFSETS = st.lists(st.integers(0, 30), max_size=30)


@given(mine=OFFSETS, others=OFFSETS)
def test_runs_are_sets_of_offsets(mine: list[int], others: list[int]) -> None:
    def members(runs: list[queue_runs.Run]) -> set[int]:
        return {number for start, stop in runs for number in range(start, stop)}

    joined, twice = queue_runs.union(queue_runs.of(np.array(mine, np.int64)))
    other_runs, _ = queue_runs.union(queue_runs.of(np.array(others, np.int64)))
    assert members(joined) == set(mine)
    assert twice == len(mine) - len(set(mine))
    assert queue_runs.count(joined) == len(set(mine))
    assert members(queue_runs.without(joined, other_runs)) == set(mine) - set(others)
    between = set(range(min(mine), max(mine))) - set(mine) if mine else set()
    assert members(queue_runs.gaps(joined)) == between
    assert all(run[1] < other[0] for run, other in itertools.pairwise(joined))
