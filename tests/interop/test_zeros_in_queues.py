"""The audit and ``reput store verify`` predict which zeros of a queue Java's next start overwrites.

After a crash Java checks the last three files of a queue, ends the queue at the first zeros there,
and dispatches again. It ignores zeros in earlier files. If the first unit of the three files is
zeros, it loses the end of the queue, and puts the unit of message 0 there.
"""

import struct
from pathlib import Path

import pytest

from interop.java_store import JavaStore, Put
from reput.spark.jobs.audit import run_audit
from reput.spark.jobs.audit.verdicts import MessageVerdict
from reput.spark.jobs.running import SequentialRunner
from reput.store.reader import StoreReader
from reput.store.verify import FindingKind, verify

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

UNIT_BYTES = 20
FILE_UNITS = 5
SETTINGS = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": FILE_UNITS * UNIT_BYTES,
    "maxHashSlotNum": 64,
    "maxIndexNum": 100,
    "maxMessageSize": 32768,
}
MESSAGES = 29
"""Messages of a queue: they fill five files and most of a sixth. The last three begin at 15."""
ZEROS = {0: 5, 1: 14, 2: 15, 3: 16, 4: 27}
"""Queue id -> queue offset of the zeros."""
REPAIRED = {3, 4}
"""Queues whose zeros Java overwrites."""


def unit_place(store: Path, queue_id: int, queue_offset: int) -> tuple[Path, int]:
    first, position = divmod(queue_offset * UNIT_BYTES, FILE_UNITS * UNIT_BYTES)
    name = f"{first * FILE_UNITS * UNIT_BYTES:020d}"
    return store / "consumequeue" / "T" / str(queue_id) / name, position


def test_java_overwrites_the_predicted_zeros_after_a_crash(
    java_store: JavaStore, tmp_path: Path
) -> None:
    puts = [Put("T", queue_id, b"x" * 50) for _ in range(MESSAGES) for queue_id in ZEROS]
    written = java_store.write(tmp_path, puts, SETTINGS).puts
    places = {
        queue_id: [put.physical_offset for put in written[queue_id :: len(ZEROS)]]
        for queue_id in ZEROS
    }
    for queue_id, queue_offset in ZEROS.items():
        path, position = unit_place(tmp_path, queue_id, queue_offset)
        units = bytearray(path.read_bytes())
        units[position : position + UNIT_BYTES] = bytes(UNIT_BYTES)
        path.write_bytes(units)
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").unlink()  # the next start dispatches all of the log

    audit = run_audit(SequentialRunner(), str(tmp_path), now_ms=0)
    assert audit.verdicts.get(MessageVerdict.UNDISPATCHED, 0) == len(REPAIRED)
    assert [message.queue_id for message in audit.lost] == [0, 1, 2]
    findings = verify(StoreReader.open(str(tmp_path))).findings
    pending = [finding for finding in findings if finding.kind is FindingKind.NOT_DISPATCHED]
    assert {(finding.path.split("/")[2], finding.queue_offset) for finding in pending} == {
        (str(queue_id), ZEROS[queue_id]) for queue_id in REPAIRED
    }

    java_store.open_cost(tmp_path, SETTINGS)
    for queue_id, queue_offset in ZEROS.items():
        path, position = unit_place(tmp_path, queue_id, queue_offset)
        place, size = struct.unpack_from(">qi", path.read_bytes(), position)
        is_repaired = bool(size) and place == places[queue_id][queue_offset]
        assert is_repaired == (queue_id in REPAIRED), (queue_id, place, size)
