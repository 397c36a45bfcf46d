"""Units from memory to file: their places, blanks before them, cuts, what expiry leaves.

That whole files are Java's byte for byte is in tests/interop/test_same_bytes.py.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from reput.errors import StoreUnavailable
from reput.format import cq_unit
from reput.format.cq_unit import Unit
from reput.format.kernels import hot
from reput.store.consume_queue import ConsumeQueue, ConsumeQueues
from reput.store.disk import Disk
from reput.store.hot_state import HotState

UNITS_A_FILE = 5
SIZE = UNITS_A_FILE * cq_unit.SIZE
BLANK = Unit(0, 0x7FFFFFFF, 0)


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[ConsumeQueues]:
    made = ConsumeQueues(str(tmp_path), SIZE, HotState(), Disk())
    yield made
    made.close()


def reopened(root: Path, log_min: int = 0) -> ConsumeQueues:
    found = ConsumeQueues(str(root), SIZE, HotState(), Disk())
    found.load(log_min)
    return found


def fill(queue: ConsumeQueue, count: int) -> None:
    """Append units of records of 100 bytes, one behind the other."""
    for _ in range(count):
        number = queue.max_offset
        queue.append(Unit(100 * number, 100, number))


def units(queue: ConsumeQueue) -> list[Unit | None]:
    return [queue.unit(number) for number in range(queue.min_offset, queue.max_offset)]


def expected(first: int, behind: int) -> list[Unit]:
    return [Unit(100 * number, 100, number) for number in range(first, behind)]


def files(root: Path) -> dict[int, list[Unit]]:
    """Of queue T/0: unit number of its first to all that are not zero."""
    found = {}
    for path in sorted((root / "consumequeue/T/0").iterdir()):
        data = path.read_bytes()
        assert len(data) == SIZE
        read = [cq_unit.unpack(data, at) for at in range(0, SIZE, cq_unit.SIZE)]
        found[int(path.name) // cq_unit.SIZE] = [one for one in read if one.size]
    return found


def written(root: Path) -> list[Unit]:
    return [one for units_of_file in files(root).values() for one in units_of_file]


# --- writing ----------------------------------------------------------------


def test_units_are_read_from_memory_and_from_files_alike(
    queues: ConsumeQueues, tmp_path: Path
) -> None:
    queue = queues.make("T", 0)
    fill(queue, 7)
    assert units(queue) == expected(0, 7)
    assert not (tmp_path / "consumequeue").exists()
    assert queues.write_out() == 1
    assert queues.write_out() == 0
    fill(queue, 2000)
    assert units(queue) == expected(0, 2007)
    queues.write_out()
    assert written(tmp_path) == expected(0, 2007)


def test_a_queue_that_begins_later_has_blanks_before_its_first_unit(
    queues: ConsumeQueues, tmp_path: Path
) -> None:
    queue = queues.make("T", 0)
    queue.start_at(13)
    fill(queue, 4)
    queues.write_out()
    assert files(tmp_path) == {10: [BLANK] * 3 + expected(13, 15), 15: expected(15, 17)}
    queue.correct_min_offset(0)
    assert (queue.min_offset, queue.max_offset) == (13, 17)


def test_d18_looking_makes_no_queue(queues: ConsumeQueues, tmp_path: Path) -> None:
    assert queues.find("T", 0) is None
    assert list(queues) == []
    assert list(tmp_path.iterdir()) == []


# --- opening ----------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4, 5, 6, 10])
def test_it_goes_on_where_it_ended(queues: ConsumeQueues, count: int, tmp_path: Path) -> None:
    fill(queues.make("T", 0), count)
    queues.write_out()
    again = reopened(tmp_path)
    (queue,) = again
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, count, count)
    assert queue.end_physical_offset == 100 * count
    fill(queue, 3)
    again.write_out()
    assert written(tmp_path) == expected(0, count + 3)
    again.close()


def test_folders_that_are_no_queues_are_passed_over(tmp_path: Path) -> None:
    for name in ("T/x", "T/01", "T/-1"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    (tmp_path / "consumequeue" / "stray").write_text("")
    assert list(reopened(tmp_path)) == []


def test_d19_files_of_another_size_are_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue/T/0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}").write_bytes(bytes(2 * SIZE))
    with pytest.raises(StoreUnavailable, match=f"{2 * SIZE}.*mappedFileSizeConsumeQueue"):
        reopened(tmp_path)


# --- taking out -------------------------------------------------------------


@pytest.mark.parametrize("physical_offset", [0, 1, 350, 400, 500, 1100, 1199, 1200, 5000])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_cut_takes_out_what_points_behind_it(
    queues: ConsumeQueues, physical_offset: int, is_written: bool, tmp_path: Path
) -> None:
    queue = queues.make("T", 0)
    fill(queue, 12)
    if is_written:
        queues.write_out()
    queue.cut(physical_offset)
    left = min(-(-physical_offset // 100), 12)
    assert (queue.max_offset, queue.next_offset) == (left, left)
    assert queue.end_physical_offset == 100 * left
    assert units(queue) == expected(0, left)
    fill(queue, 1)
    queues.write_out()
    assert written(tmp_path) == expected(0, left + 1)


def test_expiry_deletes_files_and_moves_the_minimum_at_once(
    queues: ConsumeQueues, tmp_path: Path
) -> None:
    queue = queues.make("T", 0)
    fill(queue, 12)
    queues.write_out()
    assert queue.delete_before(730) == 1
    assert (queue.min_offset, list(files(tmp_path))) == (8, [5, 10])
    assert queue.delete_before(1 << 40) == 1, "the last one stays"
    assert (queue.min_offset, queue.max_offset) == (12, 12)


def test_a_topic_that_is_dropped_leaves_nothing(queues: ConsumeQueues, tmp_path: Path) -> None:
    fill(queues.make("T", 0), 7)
    fill(queues.make("T", 5), 1)
    fill(queues.make("U", 0), 1)
    queues.drop([*queues.of_topic("T").values()])
    queues.write_out()
    assert {path.name for path in (tmp_path / "consumequeue").iterdir()} == {"U"}
    assert queues.topics() == ["U"]
    assert queues.make("T", 0).is_fresh


# --- reading ahead ----------------------------------------------------------


@given(
    st.integers(0, 70),
    st.lists(
        st.tuples(st.integers(0, 75), st.integers(1, 12), st.sampled_from(["", "", "put", "cut"])),
        max_size=12,
    ),
)
def test_units_ahead_are_those_that_stand_there(
    count: int, reads: list[tuple[int, int, str]]
) -> None:
    """The same as a read that keeps nothing finds; whatever was read, put and cut before."""
    with tempfile.TemporaryDirectory() as root:
        queues = ConsumeQueues(root, SIZE, HotState(), Disk())
        queue = queues.make("T", 0)
        fill(queue, count)
        for queue_offset, wanted, then in reads:
            if queue_offset < queue.max_offset:
                plain = queue.units(queue_offset, wanted)
                address, found = queue.units_ahead(queue_offset, wanted)
                assert found == len(plain)
                assert hot.bytes_at(address, found * cq_unit.SIZE) == plain.tobytes()
            if then == "put":
                fill(queue, wanted)
            elif then == "cut" and queue.max_offset:
                queue.cut(100 * max(1, queue.max_offset - wanted))
        queues.close()
