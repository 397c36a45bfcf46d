"""The comparison of a slave's log with its master's, on logs that are lists of records."""

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest

from reput.broker.replication import tail_check
from reput.broker.replication.master_requests import MasterRange
from reput.broker.replication.state import SlaveState
from reput.format import message as record


class Log:
    """A log: records from a physical offset on, and the first bytes of another one."""

    def __init__(self, records: Sequence[bytes], begin: int = 0, rest: bytes = b"") -> None:
        self.records = list(records)
        self.offsets = list(accumulate(map(len, records), initial=begin))
        self.partial = rest
        self.asked: list[int] = []

    @property
    def end(self) -> int:
        return self.offsets[-1] + len(self.partial)

    @property
    def range(self) -> MasterRange:
        return MasterRange(self.offsets[0], self.end)

    def find(self, physical_offset: int) -> bytes | None:
        index = bisect_left(self.offsets, physical_offset)
        if index < len(self.records) and self.offsets[index] == physical_offset:
            return self.records[index]
        return None

    def last_record(self) -> tuple[int, bytes] | None:
        return next(self.records_before(self.end), None)

    def records_before(self, physical_offset: int) -> Iterator[tuple[int, bytes]]:
        for start, data in reversed(list(zip(self.offsets, self.records, strict=False))):
            if start + len(data) <= physical_offset:
                yield start, data

    record_at = find

    def rest(self) -> tuple[int, bytes]:
        return self.offsets[-1], self.partial


class Master(Log):
    async def record_at(self, physical_offset: int) -> bytes | None:  # type: ignore[override]
        self.asked.append(physical_offset)
        return self.find(physical_offset)


def some_records(count: int, seed: int = 1) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(source.randrange(20, 60)) for _ in range(count)]


@pytest.mark.parametrize("more", [0, 1, 50])
async def test_a_slave_whose_log_is_the_begin_of_the_masters_follows_after_one_request(
    more: int,
) -> None:
    records = some_records(100)
    own, master = Log(records[: 100 - more]), Master(records)
    assert await tail_check.check(own, master, master.range) == (SlaveState.FOLLOWING, "", None)
    assert len(master.asked) == 1


async def test_a_slave_that_begins_later_than_its_master_follows() -> None:
    records = some_records(100)
    master = Master(records)
    own = Log(records[40:90], master.offsets[40])
    assert (await tail_check.check(own, master, master.range)).state is SlaveState.FOLLOWING


@pytest.mark.parametrize("place", [*range(12), 500, 997, 998])
@pytest.mark.parametrize("is_ahead", [False, True])
async def test_the_first_difference_is_found_in_few_requests(place: int, is_ahead: bool) -> None:
    """The first ``place`` records are equal; then each log has its own."""
    common = some_records(place)
    own = Log(common + some_records(1000 - place, 2))
    master = Master(common + some_records((1000 - place) // 2, 3))
    if not is_ahead:
        master = Master([*master.records, bytes(own.end)])
    finding = await tail_check.check(own, master, master.range)
    assert finding.state is (SlaveState.AHEAD if is_ahead else SlaveState.DIVERGED)
    assert finding.diverged_offset == (sum(map(len, common)) if place else None)
    assert str(own.end) in finding.reason
    assert len(master.asked) <= 25  # twice the logarithm of the number of records, and some


async def test_a_stride_never_grows_beyond_its_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_check, "STRIDE_MAX", 8)
    common = some_records(300)
    own, master = Log(common + some_records(99, 2)), Master(common + some_records(99, 3))
    difference = await tail_check.find_difference(own, master, 0)
    assert difference == sum(map(len, common))


async def test_a_slave_that_is_ahead_by_one_record_is_equal_up_to_the_end_of_the_master() -> None:
    records = some_records(50)
    own, master = Log(records), Master(records[:-1])
    finding = await tail_check.check(own, master, master.range)
    assert finding.state is SlaveState.AHEAD
    assert finding.diverged_offset == master.end
    assert f"ends at {own.end}" in finding.reason
    assert f"the master's ends at {master.end}" in finding.reason


async def test_the_same_length_with_another_last_record_is_diverged_at_that_record() -> None:
    records = some_records(50)
    own, master = Log([*records, b"a" * 40]), Master([*records, b"b" * 40])
    finding = await tail_check.check(own, master, master.range)
    assert finding.state is SlaveState.DIVERGED
    assert finding.diverged_offset == own.end - 40


async def test_a_slave_that_ends_before_the_masters_first_record_is_too_old() -> None:
    records = some_records(50)
    whole = Master(records)
    own, master = Log(records[:10]), Master(records[20:], whole.offsets[20])
    finding = await tail_check.check(own, master, master.range)
    assert finding.state is SlaveState.TOO_OLD
    assert str(own.end) in finding.reason
    assert str(master.offsets[0]) in finding.reason
    assert not master.asked


async def test_a_difference_before_the_masters_first_record_has_no_known_offset() -> None:
    own_records, records = some_records(50, 1), some_records(50, 2)
    own = Log(own_records)
    master = Master([*records[25:], bytes(own.end)], own.offsets[20])
    finding = await tail_check.check(own, master, master.range)
    assert finding.state is SlaveState.DIVERGED
    assert finding.diverged_offset is None
    assert "rebuild" in finding.reason


async def test_the_begin_of_a_record_is_compared_too() -> None:
    records = some_records(50)
    master = Master(records)
    own = Log(records[:30], rest=records[30][:15])
    assert (await tail_check.check(own, master, master.range)).state is SlaveState.FOLLOWING

    other = Log(records[:30], rest=b"?" * 15)
    finding = await tail_check.check(other, master, master.range)
    assert finding.state is SlaveState.DIVERGED
    assert finding.diverged_offset == master.offsets[30]


async def test_the_begin_of_a_blank_is_not_compared() -> None:
    """Masters of RocketMQ return no blanks, or with arbitrary bytes after the first eight."""
    records = some_records(20)
    blank = record.SIZE_AND_MAGIC.pack(500, record.MAGIC_BLANK)
    master = Master(records)
    own = Log(records, rest=blank + b"?" * 10)
    finding = await tail_check.check(own, master, MasterRange(0, own.end + 500))
    assert finding.state is SlaveState.FOLLOWING


async def test_a_log_that_only_has_the_begin_of_its_first_record_is_compared() -> None:
    records = some_records(3)
    master = Master(records)
    own = Log([], rest=records[0][:18])
    assert (await tail_check.check(own, master, master.range)).state is SlaveState.FOLLOWING
    other = Log([], rest=b"?" * 18)
    assert (await tail_check.check(other, master, master.range)).state is SlaveState.DIVERGED
