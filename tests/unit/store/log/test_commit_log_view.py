"""The log for reading: its files, single records, and walks with any window size."""

import os
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

import golden
import seeds
import store_builder
from cases import each
from reput.errors import CorruptRecord, NotInStore
from reput.format import message as record
from reput.format.message import StoredMessage, Verdict
from reput.store.files.files import open_folder
from reput.store.log.commit_log_view import CommitLogView, Damage
from store_builder import MemoryFolder

FILE_BYTES = 4096
WINDOWS = (64, 65, 100, 256, 1000, 4095, 4096, 5000, 1 << 20)

Files = dict[int, bytearray]


def view_of(files: Files, window_bytes: int = 1 << 20) -> CommitLogView:
    """Return a view of a log in memory."""
    named = {f"commitlog/{start:020d}": data for start, data in files.items()}
    return CommitLogView(MemoryFolder(named, window_bytes))


def make_log(
    count: int = 60, *, start: int = 0, messages: Iterable[StoredMessage] | None = None
) -> tuple[list[StoredMessage], Files]:
    """Return messages and the log files that contain them."""
    placed = store_builder.place(
        messages or store_builder.messages(count), FILE_BYTES, physical_offset=start
    )
    return placed, store_builder.log_files(placed, FILE_BYTES)


class Walked(NamedTuple):
    """The result of a walk."""

    records: list[tuple[int, int]]
    """Physical offset and size of each record, in bytes."""
    damage: list[Damage]


def walked(
    view: CommitLogView,
    start: int,
    stop: int,
    *,
    check_crc: bool = True,
    is_end: bool = True,
) -> Walked:
    result = Walked([], [])
    for batch in view.walk(start, stop, check_crc=check_crc, is_end=is_end):
        for position, size in zip(batch.positions, batch.sizes, strict=True):
            physical_offset = batch.physical_offset + int(position)
            result.records.append((physical_offset, int(size)))
            message = record.decode(batch.buffer, int(position), check_crc=check_crc)
            assert message.physical_offset == physical_offset
        result.damage.extend(batch.damage)
    return result


def without_verdicts(result: Walked) -> Walked:
    """Return the runs without the verdicts, which are ambiguous.

    A record with wrong lengths at the wrong place may get either of two verdicts.
    """
    either = (Verdict.BAD_LENGTH, Verdict.BAD_PHYSICAL_OFFSET)
    damage = [
        replace(run, verdict=Verdict.BAD_LENGTH) if run.verdict in either else run
        for run in result.damage
    ]
    return Walked(result.records, damage)


def spans(messages: Iterable[StoredMessage]) -> list[tuple[int, int]]:
    return [(message.physical_offset, message.store_size) for message in messages]


def end_of(messages: list[StoredMessage]) -> int:
    return messages[-1].physical_offset + messages[-1].store_size


# --- files ----------------------------------------------------------------


def test_files_are_those_with_20_digits_in_order() -> None:
    folder = MemoryFolder(
        {
            "commitlog/00000000000000004096": b"\0" * 4096,
            "commitlog/00000000000000000000": b"\0" * 4096,
            "commitlog/.DS_Store": b"x",
            "commitlog/00000000000000008192.tmp": b"x",
            "commitlog/00000000000000008192/stray": b"x",
            "commitlog/99999999999999999999": b"x",
        }
    )
    files = CommitLogView(folder).files
    assert [(file.start, file.end, file.nominal_end) for file in files] == [
        (0, 4096, 4096),
        (4096, 8192, 8192),
    ]


@each(
    ("sizes", "nominal"),
    [
        ({0: 100, 100: 100, 200: 100}, [100, 100, 100]),
        ({0: 100, 100: 70, 200: 100}, [100, 100, 100]),  # truncated
        ({0: 100, 100: 100, 200: 30}, [100, 100, 100]),
        ({0: 100, 100: 0}, [100, 100]),  # created but not extended
        ({0: 100, 300: 100}, [100, 100]),  # files are missing
        ({0: 50, 50: 50, 100: 200, 300: 200}, [50, 50, 200, 200]),  # the size was changed
        ({1000: 64}, [64]),
        ({}, []),
    ],
)
def test_nominal_sizes(sizes: dict[int, int], nominal: list[int]) -> None:
    view = view_of({start: bytearray(size) for start, size in sizes.items()})
    assert [file.nominal_size for file in view.files] == nominal
    assert [file.size for file in view.files] == list(sizes.values())
    assert view.min_offset == min(sizes, default=0)
    assert view.data_end == view.min_offset


def test_overlapping_files_are_damage_and_named() -> None:
    with pytest.raises(CorruptRecord, match="reaches into the next file") as caught:
        _ = view_of({0: bytearray(200), 100: bytearray(200)}).files
    assert caught.value.file == "commitlog/00000000000000000000"


def test_missing_files_are_gaps() -> None:
    view = view_of({0: bytearray(100), 300: bytearray(100), 400: bytearray(100)})
    assert list(view.missing()) == [
        Damage(100, 200, Verdict.MISSING, "00000000000000000100"),
    ]
    with pytest.raises(NotInStore, match="no log file contains physical offset 200"):
        view.file_at(200)
    assert view.file_at(399).start == 300
    for outside in (-1, 500, 1 << 62):
        with pytest.raises(NotInStore):
            view.file_at(outside)
    held = view.holds(np.array([-1, 0, 99, 100, 299, 300, 499, 500]))
    assert list(held) == [False, True, True, False, False, True, True, False]


def test_data_ends_after_the_last_nonzero_byte() -> None:
    messages, files = make_log(40)
    files[max(files) + FILE_BYTES] = bytearray(FILE_BYTES)  # preallocated
    view = view_of(files)
    assert view.data_end == end_of(messages)
    assert view.data_end_of(view.files[-1]) == view.files[-1].start
    assert view.has_data_from(end_of(messages) - 3)
    assert not view.has_data_from(end_of(messages))
    assert view.has_data_from(0)
    assert not view.has_data_from(view.files[-1].nominal_end + 1)


def test_the_data_end_of_large_files_is_found_in_steps() -> None:
    for size, position in (
        (1 << 20, 0),
        (1 << 20, 700_000),
        (300_001, 5),
        (65_536, 65_535),
        (9, 8),
    ):
        data = bytearray(size)
        data[position] = 1
        view = view_of({0: data}, window_bytes=100_000)
        assert view.data_end == position + 1


# --- single records -------------------------------------------------------


def test_every_record_by_its_offset_with_any_size_hint() -> None:
    messages, files = make_log()
    view = view_of(files)
    for message in messages:
        for size in (
            None,
            message.store_size,
            1,
            40,
            message.store_size - 1,
            message.store_size + 500,
            1 << 31,
        ):
            assert view.message_at(message.physical_offset, size) == message
        assert view.record_bytes(message.physical_offset) == record.encode(message)
        assert view.store_timestamp_at(message.physical_offset) == message.store_timestamp


def test_where_no_record_starts_is_an_error() -> None:
    messages, files = make_log()
    view = view_of(files)
    starts = {message.physical_offset for message in messages}
    for physical_offset in range(end_of(messages) + 50):
        if physical_offset not in starts:
            with pytest.raises(CorruptRecord) as caught:
                view.message_at(physical_offset)
            assert caught.value.physical_offset == physical_offset
            assert caught.value.file == f"{physical_offset - physical_offset % FILE_BYTES:020d}"


def test_a_record_larger_than_a_first_read() -> None:
    messages, files = make_log(messages=[store_builder.message(body=bytes(3900)) for _ in range(3)])
    large = store_builder.place([store_builder.message(body=b"x" * 99_999)], 200_000)
    assert view_of(files).message_at(messages[2].physical_offset) == messages[2]
    view = view_of(store_builder.log_files(large, 200_000))
    assert view.message_at(0) == large[0]
    assert view.message_at(0, 10) == large[0]


def test_first_and_last_records() -> None:
    messages, files = make_log()
    files[max(files) + FILE_BYTES] = bytearray(FILE_BYTES)
    view = view_of(files)
    for file in view.files[:-1]:
        inside = [
            message for message in messages if file.start <= message.physical_offset < file.end
        ]
        assert view.first_record(file) == inside[0]
        assert view.last_record(file) == inside[-1]
        for previous, following in pairwise(inside):
            assert view.last_record(file, following.physical_offset) == previous
            assert view.last_record(file, following.physical_offset + 1) == following
        assert view.last_record(file, file.start) is None
    assert view.first_record(view.files[-1]) is None
    assert view.last_record(view.files[-1]) is None


@pytest.mark.parametrize("window_bytes", [64, 1000, 1 << 20])
def test_the_last_record_far_from_the_end_of_its_data(window_bytes: int) -> None:
    """The last record is more than one backward step from the end, before garbage of many steps."""
    first = store_builder.message(body=b"first")
    size = 1 << 19
    placed = store_builder.place([first, store_builder.message(body=b"x" * 200_000)], size)
    (data,) = store_builder.log_files(placed, size).values()
    view = view_of({0: data}, window_bytes)
    assert view.last_record(view.files[0]) == placed[1]
    garbage = random.Random(1).randbytes(size - 400_000)
    data[400_000:] = garbage
    view = view_of({0: data}, window_bytes)
    assert view.last_record(view.files[0]) == placed[1]
    data[placed[1].physical_offset + 4] ^= 1
    view = view_of({0: data}, window_bytes)
    assert view.last_record(view.files[0]) == placed[0]


@pytest.mark.parametrize("window_bytes", [64, 333, 1 << 20])
def test_find_record(window_bytes: int) -> None:
    messages, files = make_log(40)
    view = view_of(files, window_bytes)
    places = sorted(
        {message.physical_offset for message in messages}
        | {
            start + FILE_BYTES - left
            for start, data in files.items()
            for left in range(8, FILE_BYTES)
            if data[FILE_BYTES - left :][:8] == record.pack_blank(left)
        }
    )
    stop = end_of(messages)
    for physical_offset in range(0, stop, 7):
        expected = next((place for place in places if place >= physical_offset), 1 << 40)
        for limit in (stop, physical_offset + 1, physical_offset + 30, physical_offset + 200):
            assert view.find_record(physical_offset, limit) == min(expected, limit)
    assert view.find_record(stop, view.files[-1].nominal_end) == view.files[-1].nominal_end


def test_a_false_head_is_skipped() -> None:
    """Magic and place are right, but the lengths do not add up: rejected with any window."""
    messages, files = make_log(40)
    fake = messages[5]
    size_at = fake.physical_offset % FILE_BYTES
    files[fake.physical_offset - size_at][size_at : size_at + 4] = (1500).to_bytes(4, "big")
    for window_bytes in WINDOWS:
        view = view_of(files, window_bytes)
        physical_offset = messages[4].physical_offset + 1
        assert view.find_record(physical_offset, 1 << 40) == messages[6].physical_offset


# --- walks ----------------------------------------------------------------


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.sampled(4)
def test_a_walk_finds_every_record(window_bytes: int) -> None:
    messages, files = make_log(start=5 * FILE_BYTES)
    view = view_of(files, window_bytes)
    result = walked(view, view.min_offset, end_of(messages))
    assert result == Walked(spans(messages), [])
    for stop in range(view.min_offset, end_of(messages), 97):
        expected = [span for span in spans(messages) if span[0] < stop]
        assert walked(view, view.min_offset, stop, is_end=False) == Walked(expected, [])


@each("window_bytes", WINDOWS)
def test_a_walk_of_a_file_that_is_large_for_its_windows(window_bytes: int) -> None:
    bodies = [bytes(size) for size in (1, 3000, 10, 40_000, 7, 9000, 0)]
    placed = store_builder.place([store_builder.message(body=body) for body in bodies], 1 << 17)
    view = view_of(store_builder.log_files(placed, 1 << 17), window_bytes)
    assert walked(view, 0, end_of(placed)) == Walked(spans(placed), [])


def test_zeros_are_free_room_after_the_end_of_the_log_and_damage_before_it() -> None:
    messages, files = make_log(40)
    end = end_of(messages)
    for window_bytes in WINDOWS:
        view = view_of(files, window_bytes)
        assert walked(view, 0, end) == Walked(spans(messages), [])
        assert walked(view, 0, end, is_end=False) == Walked(spans(messages), [])
        for stop in (end + 1, end + 100, view.files[-1].nominal_end):
            zeros = Damage(end, stop - end, Verdict.BAD_ZEROS, view.files[-1].name)
            assert walked(view, 0, stop) == Walked(spans(messages), [zeros])


def test_bytes_after_the_end_of_the_log_are_ignored() -> None:
    messages, files = make_log(40)
    middle = messages[20].physical_offset
    for message in messages[19:22]:
        files[message.physical_offset // FILE_BYTES * FILE_BYTES][
            message.physical_offset % FILE_BYTES + record.POSITION_MAGIC
        ] = 0
    for window_bytes in WINDOWS:
        (damage,) = walked(view_of(files, window_bytes), 0, middle).damage
        assert damage.physical_offset == messages[19].physical_offset
        assert damage.end == middle


def test_files_of_different_sizes() -> None:
    """Files of a store whose ``mappedFileSizeCommitLog`` was changed."""
    small = store_builder.place(store_builder.messages(30), 2048)
    start = max(store_builder.log_files(small, 2048)) + 2048
    start += -start % 8192
    small = [message for message in small if message.physical_offset < start]
    files = store_builder.log_files(small, 2048)
    while max(files) + 2048 < start:  # the last file of the old size is full as well
        more = store_builder.place(
            store_builder.messages(9), 2048, physical_offset=max(files) + 2048
        )
        small += [message for message in more if message.physical_offset < start]
        files = store_builder.log_files(small, 2048)
    room = start - end_of(small)
    files[start - 2048][2048 - room : 2048 - room + 8] = record.pack_blank(room)
    large = store_builder.place(store_builder.messages(50), 8192, physical_offset=start)
    files.update(store_builder.log_files(large, 8192))
    for window_bytes in WINDOWS:
        view = view_of(files, window_bytes)
        assert walked(view, 0, end_of(large)) == Walked(spans(small + large), [])


def test_a_gap_between_files_is_missing() -> None:
    messages, files = make_log(80)
    gone = sorted(files)[1:3]
    for start in gone:
        del files[start]
    view = view_of(files)
    expected = [span for span in spans(messages) if span[0] - span[0] % FILE_BYTES not in gone]
    missing = Damage(gone[0], 2 * FILE_BYTES, Verdict.MISSING, f"{gone[0]:020d}")
    assert walked(view, 0, end_of(messages)) == Walked(expected, [missing])
    assert missing.error().file == "00000000000000004096"
    assert "the file is missing" in str(missing.error())


@pytest.mark.parametrize("window_bytes", [64, 1 << 20])
@pytest.mark.sampled(2)
def test_a_walk_continues_after_a_bad_record(window_bytes: int) -> None:
    """Java skips the rest of the mapped buffer and loses every valid record in it."""
    messages, files = make_log()
    for i, message in enumerate(messages[:-1]):
        following = messages[i + 1]
        start = message.physical_offset - message.physical_offset % FILE_BYTES
        for verdict, position, value in (
            (Verdict.BAD_SIZE, 0, 0xFF),
            (Verdict.BAD_MAGIC, 4, 0x00),
            (Verdict.BAD_PHYSICAL_OFFSET, 35, message.physical_offset % 256 ^ 1),
            (Verdict.BAD_LENGTH, 84, 0x70),
        ):
            damaged = {name: bytearray(data) for name, data in files.items()}
            damaged[start][message.physical_offset - start + position] = value
            result = walked(view_of(damaged, window_bytes), 0, end_of(messages))
            assert result.records == spans(messages[:i] + messages[i + 1 :])
            (damage,) = result.damage
            assert damage.physical_offset == message.physical_offset
            assert damage.verdict is verdict
            assert damage.file == f"{start:020d}"
            is_last_of_file = following.physical_offset % FILE_BYTES == 0
            assert is_last_of_file or damage.end == following.physical_offset


def test_a_wrong_checksum_ends_with_its_record() -> None:
    """Two bad records in a row are two runs, also where a window ends between them."""
    messages, files = make_log()
    bad = [i for i, message in enumerate(messages) if message.body][3:6]
    for i in bad:
        physical_offset = messages[i].physical_offset
        files[physical_offset - physical_offset % FILE_BYTES][
            physical_offset % FILE_BYTES + record.POSITION_BODY_CRC
        ] ^= 0x55
    for window_bytes in WINDOWS:
        result = walked(view_of(files, window_bytes), 0, end_of(messages))
        assert [(run.physical_offset, run.length) for run in result.damage] == spans(
            messages[i] for i in bad
        )
        assert {run.verdict for run in result.damage} == {Verdict.BAD_CRC}
        good = [message for i, message in enumerate(messages) if i not in bad]
        assert result.records == spans(good)
        unchecked = walked(view_of(files, window_bytes), 0, end_of(messages), check_crc=False)
        assert unchecked == Walked(spans(messages), [])


def test_zeros_after_damage_up_to_the_end_of_the_log_are_a_separate_run() -> None:
    messages, files = make_log(40)
    last = messages[-1]
    start = max(files)
    position = last.physical_offset - start
    for window_bytes in WINDOWS:
        torn = bytearray(files[start])
        torn[position + 40 : position + last.store_size] = b"\xff" * 10 + bytes(
            last.store_size - 50
        )
        view = view_of({**files, start: torn}, window_bytes)
        for is_end in (True, False):
            stop = end_of(messages) if is_end else start + FILE_BYTES
            head, zeros = walked(view, 0, end_of(messages), is_end=is_end).damage
            assert (head.physical_offset, head.end) == (last.physical_offset, start + position + 50)
            assert (zeros.physical_offset, zeros.end) == (head.end, stop)
            assert zeros.verdict is Verdict.BAD_ZEROS
        wrong = bytearray(files[start])
        wrong[position + record.POSITION_BODY_CRC] ^= 1
        view = view_of({**files, start: wrong}, window_bytes)
        assert [
            (run.physical_offset, run.end, run.verdict)
            for run in walked(view, 0, start + FILE_BYTES).damage
        ] == [
            (last.physical_offset, end_of(messages), Verdict.BAD_CRC),
            (end_of(messages), start + FILE_BYTES, Verdict.BAD_ZEROS),
        ]


# --- walks over damage: the same in all windows and all parts -------------


def damage_log(files: Files, source: random.Random) -> None:
    """Change some bytes as disks and crashes do."""
    for _ in range(source.randint(1, 4)):
        start = source.choice(sorted(files))
        data = files[start]
        position = source.randrange(len(data))
        length = min(source.choice((1, 1, 2, 8, 16, 40, 64, 100, 300, 2000)), len(data) - position)
        kind = source.randrange(4)
        if kind == 0:
            data[position : position + length] = bytes(length)
        elif kind == 1:
            data[position : position + length] = source.randbytes(length)
        elif kind == 2:
            data[position] ^= 1 << source.randrange(8)
        else:
            elsewhere = source.choice(sorted(files))
            data[position : position + length] = files[elsewhere][:length].ljust(length, b"\0")


LOGS = 100 if "REPUT_SOAK" in os.environ else 30


def damaged_logs(count: int) -> Iterable[tuple[list[StoredMessage], Files]]:
    original, whole = make_log(50)
    for seed in range(count):
        source = seeds.random("damaged logs", seed)
        files = {start: bytearray(data) for start, data in whole.items()}
        damage_log(files, source)
        if source.random() < 0.1:
            del files[source.choice(sorted(files)[1:-1])]
        if source.random() < 0.2:
            start = source.choice(sorted(files))
            del files[start][source.randrange(FILE_BYTES) :]
        yield original, files


def blank_at(files: Files, physical_offset: int) -> int:
    """Return the size of the blank at an offset, else 0."""
    for start, data in files.items():
        room = start + FILE_BYTES - physical_offset
        if 0 < room <= FILE_BYTES and bytes(
            data[physical_offset - start : physical_offset - start + 8]
        ) == record.pack_blank(room):
            return room
    return 0


@pytest.mark.slow
def test_windows_do_not_change_a_walk_that_covers_the_log() -> None:
    for seed, (original, files) in enumerate(damaged_logs(LOGS)):
        end = end_of(original)
        stops = (end // 3, end - 300, end, end + 500, max(files) + FILE_BYTES)
        for stop in seeds.random("stops", seed).sample(stops, 2):
            for is_end in (True, False):
                reference = walked(view_of(files), 0, stop, is_end=is_end)
                for window_bytes in (64, 71, 200, 1024, 4097):
                    result = walked(view_of(files, window_bytes), 0, stop, is_end=is_end)
                    assert without_verdicts(result) == without_verdicts(reference)
        reference = walked(view_of(files), 0, end)
        # Records, blanks and damage cover the log without overlap.
        pieces = sorted(
            [
                (physical_offset, physical_offset + size)
                for physical_offset, size in reference.records
            ]
            + [(run.physical_offset, run.end) for run in reference.damage]
        )
        physical_offset = 0
        for start, stop in [*pieces, (end, end)]:
            while physical_offset < start:
                blank = blank_at(files, physical_offset)
                if not blank:
                    break
                physical_offset += blank
            rest = b"".join(bytes(files[name]) for name in sorted(files))
            assert physical_offset == start or (
                start == end and not any(rest[physical_offset:end])
            ), (physical_offset, start)
            physical_offset = stop
        # Only original records count: a copy contains the physical offset of its original.
        assert set(reference.records) <= set(spans(original))
        view = view_of(files)
        for start, _ in reference.records:
            result = view.message_at(start)
            wanted = next(message for message in original if message.physical_offset == start)
            assert result.body == wanted.body


@pytest.mark.slow
def test_parts_of_a_walk_report_each_record_once() -> None:
    """Parts of any size report each record once, as Spark needs it."""
    for seed, (original, files) in enumerate(damaged_logs(LOGS)):
        source = seeds.random("windows", seed)
        end = end_of(original)
        view = view_of(files, source.choice((64, 500, 1 << 20)))
        reference = walked(view, 0, end, is_end=False)
        for parts in (2, 5, 40, 300):
            inner = {source.randrange(1, end) for _ in range(parts - 1)}
            inner |= set(source.sample([message.physical_offset for message in original], 3)) - {0}
            inner |= {run.physical_offset for run in reference.damage} - {0}
            cuts = [0, *sorted(message for message in inner if message < end), end]
            result = Walked([], [])
            for low, high in pairwise(cuts):
                part = walked(view, view.part_start(low, high), high, is_end=False)
                result.records.extend(part.records)
                result.damage.extend(part.damage)
            assert without_verdicts(result) == without_verdicts(reference), (seed, cuts)


# --- records whose places are known ---------------------------------------


@pytest.mark.parametrize("window_bytes", [64, 1000, 1 << 20])
def test_read_at_gives_what_message_at_gives(window_bytes: int) -> None:
    messages, files = make_log()
    view = view_of(files, window_bytes)
    wanted = messages[::3]
    offsets = np.array([message.physical_offset for message in wanted], np.int64)
    sizes = np.array([message.store_size for message in wanted], np.int32)
    rows: list[int] = []
    for batch in view.read_at(offsets, sizes):
        assert batch.bad == ()
        rows += [int(row) for row in batch.rows]
        for row, position in zip(batch.rows, batch.batch.positions, strict=True):
            assert record.decode(batch.batch.buffer, int(position)) == wanted[int(row)]
    assert rows == list(range(len(wanted)))


@pytest.mark.parametrize("window_bytes", [64, 1000, 1 << 20])
def test_read_at_marks_missing_messages(window_bytes: int) -> None:
    messages, files = make_log()
    del files[FILE_BYTES]
    physical_offset = messages[4].physical_offset
    files[0][physical_offset + record.POSITION_BODY_CRC] ^= 1
    wrong_size = messages[6].physical_offset
    view = view_of(files, window_bytes)
    offsets = np.array([message.physical_offset for message in messages] + [1 << 50], np.int64)
    sizes = np.array(
        [message.store_size + (message.physical_offset == wrong_size) for message in messages]
        + [100],
        np.int32,
    )
    good, bad = set(), {}
    for batch in view.read_at(offsets, sizes):
        good |= {int(row) for row in batch.rows}
        bad.update(dict(batch.bad))
    expected_bad = {
        4: Verdict.BAD_CRC,
        6: Verdict.BAD_SIZE,
        len(messages): Verdict.MISSING,
    } | {
        i: Verdict.MISSING
        for i, stored in enumerate(messages)
        if FILE_BYTES <= stored.physical_offset < 2 * FILE_BYTES
    }
    assert {row: damage.verdict for row, damage in bad.items()} == expected_bad
    assert good == set(range(len(offsets))) - set(expected_bad)


# --- logs of Java ---------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_golden_logs_in_small_windows(version: str) -> None:
    store = golden.unpack(version, "clean")
    manifest = golden.manifest(version, "clean")
    expected = [
        (message["commitLogOffset"], message["storeSize"])
        for message in golden.messages(version, "clean")
    ]
    for window_bytes in (64, 10_000, 1 << 25):
        folder = open_folder(str(store))
        folder.window_bytes = window_bytes
        view = CommitLogView(folder)
        assert walked(view, 0, manifest["log"]["endOffset"]) == Walked(expected, [])
    blanks = [(blank["commitLogOffset"], blank["size"]) for blank in manifest["log"]["blanks"]]
    view = CommitLogView(open_folder(str(store)))
    for physical_offset, size in blanks:
        assert view.find_record(physical_offset, 1 << 40) == physical_offset
        assert physical_offset + size == view.file_at(physical_offset).end
        with pytest.raises(CorruptRecord, match="blank"):
            view.message_at(physical_offset)


def test_a_record_inside_a_body_is_no_message() -> None:
    """A producer may send a body that contains records of another place."""
    inner, _ = make_log(3)
    body = b"".join(record.encode(replace(message, physical_offset=99_999)) for message in inner)
    messages, files = make_log(messages=[store_builder.message(body=body), *inner])
    result = walked(view_of(files), 0, end_of(messages))
    assert result == Walked(spans(messages), [])
    files[0][0] ^= 0xFF
    result = walked(view_of(files), 0, end_of(messages))
    assert result.records == spans(messages[1:])
