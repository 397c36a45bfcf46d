"""Search for the last records before an offset of the log: records have no link to the one before.

A part of a file is scanned from its first record on, which is found by its own physical offset.
"""

from collections.abc import Iterator, Sequence

from reput.format import kernels
from reput.format.message import Verdict
from reput.store.log.mapped_file import MappedFile

_SEARCH_BYTES = 64 * 1024
"""Size of the first part that is searched."""


def records_before(
    files: Sequence[MappedFile], physical_offset: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the records that end at an offset or before it, newest first.

    Checksums are not compared.

    Args:
        files: The files of the log.
        physical_offset: Any physical offset.

    Yields:
        Physical offset and bytes of each record.
    """
    for file in reversed(files):
        high = min(physical_offset - file.start, file.size)
        while high > 0:
            if not file.hold():
                break  # it was deleted
            try:
                places, high = _find_before(file, high)
                records = [
                    (file.start + position, bytes(file.view(position, position + size)))
                    for position, size in places
                ]
            finally:
                is_valid = file.release()
            if not is_valid:
                break
            yield from reversed(records)


def _find_before(file: MappedFile, high: int) -> tuple[list[tuple[int, int]], int]:
    """Find records of a file, which is held, that end at a position or before it.

    Returns:
        Position and size of some records, and the position of the first of them; 0 without one.
    """
    span = _SEARCH_BYTES
    while True:
        low = max(high - span, 0)
        places = [
            (low + position, size)
            for position, size in _records_in(
                file.view(low, high), file.start + low, file.size - low, is_start=not low
            )
        ]
        if places or not low:
            return places, places[0][0] if places else 0
        span *= 4


def _records_in(
    data: memoryview, physical_offset: int, file_end: int, *, is_start: bool
) -> list[tuple[int, int]]:
    """Return position and size of the records of a part of a log file.

    Where a part begins, the bytes of a body may look like a record. No record follows such bytes,
    so records before damage are left out, unless the part is the start of its file.
    """
    position = 0
    if not is_start:
        position = kernels.find_record(data, 0, physical_offset=physical_offset, file_end=file_end)
    places: list[tuple[int, int]] = []
    while position < len(data):
        segments = kernels.scan(
            data,
            position,
            len(data),
            physical_offset=physical_offset,
            file_end=file_end,
            check_crc=False,
        )
        if segments.next_position == position:
            break
        position = segments.next_position
        for start, size, verdict in zip(
            segments.positions.tolist(),
            segments.sizes.tolist(),
            segments.verdicts.tolist(),
            strict=True,
        ):
            if verdict == Verdict.MESSAGE:
                places.append((start, size))
            elif verdict != Verdict.BLANK and not is_start:
                places.clear()
    return places
