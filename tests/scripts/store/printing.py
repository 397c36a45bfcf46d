"""Print the answers of a store and the contents of its files, in few and stable words."""

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from reput.format import (
    checkpoint_page,
    cq_unit,
    index_entry,
    message as record,
    sys_flag as flags,
)
from reput.format.message import StoredMessage, Verdict
from reput.store.files import paths
from reput.store.verify import Finding, Severity, VerifyReport
from store_fixture import START_MS

_MAGICS = {1: "MESSAGE", 2: "MESSAGE_V2"}
_TRANSACTIONS = {
    flags.TRANSACTION_PREPARED: "prepared",
    flags.TRANSACTION_COMMIT: "committed",
    flags.TRANSACTION_ROLLBACK: "rolled-back",
}
_HEX_BYTES = 32
"""Bytes in one line of a hex dump."""


def data(value: bytes) -> str:
    """Return bytes in the form of arguments: text, ``x*100`` or ``0x00ff``."""
    for unit in (1, 2):
        count = len(value) // unit
        if len(value) > 8 and value == value[:unit] * count:
            return f"{data(value[:unit])}*{count}"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() and not text.startswith("0x"):
        return text or '""'
    return f"0x{value.hex()}"


def moment(time_ms: int | None) -> str:
    """Return a time relative to the start of the script."""
    return "none" if time_ms is None else f"{time_ms - START_MS:+d}ms"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as runs: ``0-4 7``."""
    runs = []
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        same = [number for _, number in run]
        runs.append(f"{same[0]}-{same[-1]}" if len(same) > 1 else f"{same[0]}")
    return " ".join(runs) or "none"


def message(stored: StoredMessage) -> str:
    """Return one line for a message: place, size and body."""
    place = f"{stored.queue_offset} @{stored.physical_offset}"
    return f"{place} size={stored.store_size} {data(stored.body)}"


def details(stored: StoredMessage) -> Iterator[str]:
    """Yield lines with the other fields of a message."""
    yield f"  born={moment(stored.born_timestamp)} by {stored.born_host}"
    yield f"  stored={moment(stored.store_timestamp)} at {stored.store_host}"
    yield (
        f"  magic={_MAGICS[stored.version]} flag={stored.flag} sys_flag=0x{stored.sys_flag:x} "
        f"reconsume_times={stored.reconsume_times} "
        f"prepared_transaction_offset={stored.prepared_transaction_offset}"
    )
    yield f"  properties={pairs(stored.properties)}"


def pairs(properties: Mapping[str, str]) -> str:
    """Return properties as ``NAME=value`` pairs."""
    return " ".join(f"{name}={data(value.encode())}" for name, value in properties.items())


def hex_lines(content: bytes, start: int = 0) -> Iterator[str]:
    """Yield bytes in hex, without lines that are all zeros."""
    for position in range(0, len(content), _HEX_BYTES):
        line = content[position : position + _HEX_BYTES]
        if any(line):
            yield f"  {start + position:06x}  {line.hex(' ', -4)}"


# --- files ----------------------------------------------------------------------------------------


def log(folder: Path, *, has_hex: bool) -> Iterator[str]:
    """Yield the records, blanks and damage in the files of the commit log."""
    for path in sorted(folder.iterdir()):
        content, start = path.read_bytes(), int(path.name)
        yield f"file {start} size={len(content)}"
        position = 0
        while position < len(content):
            place = start + position
            verdict, size = record.classify(content, position, place)
            if verdict is Verdict.MESSAGE:
                stored = record.decode(content, position)
                yield f"{place:08} {_log_record(stored)}"
                if has_hex:
                    yield from hex_lines(content[position : position + size])
            elif verdict is Verdict.ZEROS:
                break
            else:
                size = size or _next_record(content, position, start) - position
                name = "blank" if verdict is Verdict.BLANK else verdict.name
                yield f"{place:08} size={size} {name}"
                if has_hex:
                    yield from hex_lines(content[position : position + min(size, 64)])
            position += size


def _next_record(content: bytes, position: int, start: int) -> int:
    good = (Verdict.MESSAGE, Verdict.BLANK, Verdict.ZEROS)
    for following in range(position + 1, len(content)):
        if record.classify(content, following, start + following)[0] in good:
            return following
    return len(content)


def _log_record(stored: StoredMessage) -> str:
    transaction = _TRANSACTIONS.get(flags.transaction_type(stored.sys_flag))
    state = f" {transaction}" if transaction else ""
    properties = f" {pairs(stored.properties)}" if stored.properties else ""
    return (
        f"size={stored.store_size} magic={_MAGICS[stored.version]} topic={stored.topic} "
        f"queue={stored.queue_id}/{stored.queue_offset}{state} body={data(stored.body)}{properties}"
    )


def queue(folder: Path) -> Iterator[str]:
    """Yield the units in the files of a consume queue, without the zeros at the end."""
    for path in sorted(folder.iterdir()):
        content, start = path.read_bytes(), int(path.name)
        yield f"file {start} size={len(content)}"
        count = -(-len(content.rstrip(b"\0")) // cq_unit.SIZE)
        units = [cq_unit.unpack(content, i * cq_unit.SIZE) for i in range(count)]
        for run in _runs(list(enumerate(units, start // cq_unit.SIZE))):
            (first, unit), (last, end) = run[0], run[-1]
            numbers = f"{first}-{last}" if last > first else f"{first}"
            if unit.is_pre_blank:
                yield f"{numbers} blank"
                continue
            place = f"@{unit.physical_offset}"
            place += f"-{end.physical_offset}" if end.physical_offset > unit.physical_offset else ""
            yield f"{numbers} {place} size={unit.size} tags_code={unit.tags_code}"


def _runs(units: list[tuple[int, cq_unit.Unit]]) -> Iterator[list[tuple[int, cq_unit.Unit]]]:
    """Yield runs of equal units that point at consecutive records, or at one."""
    while units:
        (_, first), *others = units
        strides = {0, first.size}
        count = 1
        for _, unit in others:
            distance = unit.physical_offset - first.physical_offset
            strides &= {0} if distance == 0 else {distance / count}
            if not strides or (unit.size, unit.tags_code) != (first.size, first.tags_code):
                break
            count += 1
        yield units[:count]
        units = units[count:]


def batch_queue(folder: Path) -> Iterator[str]:
    """Yield the units in the files of a batch queue."""
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        yield f"file {int(path.name)} size={len(content)}"
        for position in range(0, len(content) - cq_unit.BATCH_SIZE + 1, cq_unit.BATCH_SIZE):
            unit = cq_unit.unpack_batch(content, position)
            if unit.is_written:
                yield (
                    f"{unit.queue_offset} count={unit.message_count} @{unit.physical_offset} "
                    f"size={unit.size} stored={moment(unit.store_timestamp)} "
                    f"tags_code={unit.tags_code}"
                )


def extension(folder: Path) -> Iterator[str]:
    """Yield the units in the files of a consume queue extension, and the end marks of files."""
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        yield f"file {int(path.name)} size={len(content)}"
        position = 0
        while position + cq_unit.EXT_HEAD.size <= len(content):
            unit = cq_unit.unpack_ext(content[position:])
            if unit is None:
                break
            yield (
                f"{int(path.name) + position} size={unit.size} tags_code={unit.tags_code} "
                f"stored={moment(unit.store_timestamp)} bits={unit.bit_map.hex() or 'none'}"
            )
            position += unit.size
        rest = content[position:].rstrip(b"\0")
        if rest:
            yield f"{int(path.name) + position} mark={rest.hex()}"


def index(folder: Path, slot_count: int) -> Iterator[str]:
    """Yield headers, used slots and entries of the index files; their names count from 0."""
    for number, path in enumerate(sorted(folder.iterdir())):
        content = path.read_bytes()
        header = index_entry.unpack_header(content)
        yield (
            f"file {number} size={len(content)} begin={moment(header.begin_timestamp)} "
            f"@{header.begin_physical_offset} end={moment(header.end_timestamp)} "
            f"@{header.end_physical_offset} slots_used={header.slots_used} "
            f"next_entry={header.next_entry}"
        )
        slots = struct.unpack_from(f">{slot_count}i", content, index_entry.HEADER.size)
        used = (f"{slot}:{newest}" for slot, newest in enumerate(slots) if newest)
        yield f"slots {' '.join(used) or 'none'}"
        for entry_number in range(1, header.next_entry):
            position = index_entry.entry_position(entry_number, slot_count)
            entry = index_entry.unpack_entry(content, position)
            yield (
                f"{entry_number} key_hash={entry.key_hash} @{entry.physical_offset} "
                f"seconds={entry.seconds} previous={entry.previous}"
            )


def checkpoint(path: Path) -> Iterator[str]:
    """Yield the fields of the checkpoint file."""
    fields = checkpoint_page.unpack(path.read_bytes())
    for name in ("physical_timestamp", "queue_timestamp", "index_timestamp"):
        yield f"{name} {moment(value) if (value := getattr(fields, name)) else 0}"
    for name in ("master_flushed_offset", "confirmed_physical_offset", "queue_physical_offset"):
        yield f"{name} {getattr(fields, name)}"


def files(root: Path, family: str) -> Iterator[str]:
    """Yield the folders of a store with the files in them, by their start."""
    index_folder = root / paths.INDEX
    for folder in sorted({path.parent for path in (root / family).rglob("*") if path.is_file()}):
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
        if folder == index_folder:
            names = [f"{len(names)} files"]
        else:
            names = [str(int(name)) if name.isdigit() else name for name in names]
        yield f"{folder.relative_to(root)}: {' '.join(names)}"


# --- verification ---------------------------------------------------------------------------------


def verification(report: VerifyReport) -> Iterator[str]:
    """Yield the findings of a verification, and a line with its counts."""
    for finding in report.findings:
        yield _finding(finding)
    yield (
        f"{Severity(report.severity).name}: {report.record_count} records, "
        f"{report.unit_count} units, {report.entry_count} entries, "
        f"log {report.log_start}-{report.log_end}"
    )


def _finding(finding: Finding) -> str:
    numbers = [
        f"{name}={value}"
        for name, value in (
            ("physical_offset", finding.physical_offset),
            ("length", finding.length),
            ("queue_offset", finding.queue_offset),
            ("count", finding.count),
        )
        if value is not None
    ]
    where = " ".join([finding.kind.name, _short(finding.path), *numbers])
    return f"{finding.severity.name} {where}: {_short_text(finding.text)}"


def _short(path: str) -> str:
    """Return a path with its file's start instead of 20 digits, and no name of an index file."""
    folder, _, name = path.rpartition("/")
    if folder == paths.INDEX:
        return f"{folder}/*"
    return f"{folder}/{int(name)}" if name.isdigit() and len(name) == 20 else path


def _short_text(text: str) -> str:
    return " ".join(_short(word) if word.count("/") else word for word in text.split(" "))
