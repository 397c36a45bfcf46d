"""Rates at which one core scans and decodes a log, and handles sends; the gain of a second core."""

import threading
import time
from pathlib import Path

import numpy as np

from benchmarks import stores, timing
from reput.broker.kernels import hot as fast_path, send_rules
from reput.format import command, index_entry, kernels
from reput.format.command import Command, Serialization
from reput.store.hot_state import HotState
from reput.store.kernels import hot
from reput.store.reader import StoreReader

NAME = "kernels"
QUESTION = "walk: records/s/core; columns: bytes/s/core; two threads against one; sends: ns each"
_BATCH = 4096


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure 128-byte and 1-KiB bodies."""
    count = 40_000 if quick else 400_000
    result: dict[str, object] = {"engine": kernels.engine()}
    for body_bytes in (128, 1024):
        root = stores.make(
            folder / f"kernels-{body_bytes}", count // (body_bytes // 128), body_bytes
        )
        result[f"{body_bytes}_byte_bodies"] = _measure(root)
        result[f"sends_of_{body_bytes}_bytes_ns"] = {
            f"{serialization.name}_{count}_frames": _sends(serialization, body_bytes, count)
            for serialization in Serialization
            for count in (1, 8, 64)
        }
    return result


def _measure(root: Path) -> dict[str, float]:
    reader = StoreReader.open(str(root))
    file = reader.log.files[0]
    size = reader.end_offset - file.start
    buffer = np.fromfile(root / "commitlog" / file.name, np.uint8, size)
    scanned = kernels.scan(
        buffer, 0, size, physical_offset=file.start, check_crc=False, room=1 << 20
    )
    count = len(scanned.positions)

    def walk(check_crc: bool) -> None:
        kernels.scan(buffer, 0, size, physical_offset=file.start, check_crc=check_crc, room=1 << 20)

    def decode(positions: np.ndarray) -> None:
        for start in range(0, len(positions), _BATCH):
            columns = kernels.Columns(buffer, positions[start : start + _BATCH])
            columns.topics()
            columns.bodies()
            columns.properties()
            columns.tags()
            columns.keys()
            columns.message_ids(columns.offset_ids())
            columns.born_hosts()
            columns.store_hosts()

    def decode_in_two() -> None:
        halves = np.array_split(scanned.positions, 2)
        threads = [threading.Thread(target=decode, args=(half,)) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    walked, checked = timing.seconds(lambda: walk(False)), timing.seconds(lambda: walk(True))
    decoded, in_two = (
        timing.seconds(lambda: decode(scanned.positions)),
        timing.seconds(decode_in_two),
    )
    return {
        "records": count,
        "walk_million_records_per_s": round(count / walked / 1e6, 2),
        "walk_with_crc_million_records_per_s": round(count / checked / 1e6, 2),
        "walk_with_crc_gb_per_s": round(size / checked / 1e9, 2),
        "columns_gb_per_s": round(size / decoded / 1e9, 2),
        "columns_two_threads_speedup": round(decoded / in_two, 2),
    }


_LOG_BYTES = 64 << 20
_INDEX_SLOTS = 5_000_000
_CALLS = 1000


class _SendGround:
    """A log, a topic of four queues and an index in memory, and the arguments of ``receive``."""

    def __init__(self, frames: int) -> None:
        self.hot = HotState()
        entries = 2 * frames * _CALLS
        self._arrays = {
            "log_address": _touched(_LOG_BYTES),
            "index_address": _touched(index_entry.entry_position(entries, _INDEX_SLOTS)),
            "scratch_address": _touched(1 << 18),
            "replies_address": _touched(frames * send_rules.REPLY_BYTES_MAX),
            "notes": _touched(frames * send_rules.NOTE_BYTES),
        }
        block = self.hot.block
        for name, array in self._arrays.items():
            setattr(block, name, hot.address_of(array))
        for name, value in {
            "log_size": _LOG_BYTES,
            "log_limit": _LOG_BYTES,
            "is_live": 1,
            "index_is_on": 1,
            "index_slots": _INDEX_SLOTS,
            "index_entries_max": entries,
            "index_limit": entries,
            "index_next": 1,
            "index_end_offset": -1,
            "input_time": 1_700_000_000_000,
            "receive_is_on": 1,
            "scratch_room": 1 << 18,
            "replies_room": frames * send_rules.REPLY_BYTES_MAX,
            "notes_room": frames,
            "body_bytes_max": 1 << 22,
            "record_bytes_max": 1 << 22,
        }.items():
            setattr(block, name, value)
        self._tails = [_touched(20 * frames * _CALLS) for _ in range(4)]
        for queue_id, tail in enumerate(self._tails):
            _, row = self.hot.add_queue(b"Orders", queue_id)
            row.tail, row.tail_limit = (
                hot.address_of(tail),
                len(tail) // 20,
            )
        self.hot.topic(b"Orders").words.write_queues = 4

    def receive(self, data: bytes) -> int:
        """Return the duration of one call over all frames in a buffer, in ns."""
        received = np.frombuffer(data, np.uint8)
        block = self.hot.block
        if block.log_position > _LOG_BYTES // 2:
            block.log_start += block.log_position
            block.log_position = 0
        block.receive_address = hot.address_of(received)
        block.receive_end = len(data)
        block.receive_position = block.replies_bytes = 0
        start = time.perf_counter_ns()
        fast_path.receive(self.hot.argument)
        taken = time.perf_counter_ns() - start
        assert block.receive_position == len(data), block.stop
        return taken


def _touched(size: int) -> np.ndarray:
    array = np.ones(size, np.uint8)
    array[:] = 0
    return array


def _sends(serialization: Serialization, body_bytes: int, frames: int) -> dict[str, int]:
    """Return best and median time of a message, parsed, stored, indexed and answered, in ns."""
    ground = _SendGround(frames)
    taken = sorted(
        ground.receive(
            b"".join(
                _send(serialization, b"x" * body_bytes, frames * call + i) for i in range(frames)
            )
        )
        for call in range(_CALLS)
    )
    return {"best": taken[0] // frames, "median": taken[_CALLS // 2] // frames}


def _send(serialization: Serialization, body: bytes, number: int) -> bytes:
    fields = {
        **{"a": "producers", "b": "Orders", "c": "TBW102", "d": "4", "e": str(number % 4)},
        **{"f": "0", "g": "1700000000000", "h": "0"},
        "i": f"UNIQ_KEY\1{number * 0x9E3779B97F4A7C15 % 2**128:032X}\2WAIT\1true",
        **{"j": "0", "k": "false", "m": "false"},
    }
    sent = Command(310, number, ext_fields=fields, body=body, serialization=serialization)
    return command.encode(sent)
