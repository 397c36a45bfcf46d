"""Ways to write records to the log's files: latency of an append, file rolls included.

All of them run beside a thread that syncs twice a second, as in a broker.
"""

import ctypes
import mmap
import os
import shutil
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from reput.store.files.disk import Disk
from reput.store.log.mapped_file import RESERVE_BYTES
from reput.store.log.mapped_file_queue import MappedFileQueue
from reput.store.log.transient_pool import TransientPool

NAME = "log_write"
QUESTION = "us of an append by way of writing: mean, p99.9, worst; CPU of all threads; ms of a roll"
_FILE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_SYNC_S = 0.5
_AHEAD_S = 0.01
_REPEATS = 3
_ROLLS = 12


class _Way(Protocol):
    def append(self, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure records of 128 bytes and of 1 KiB."""
    files = 1 if quick else 4
    result: dict[str, object] = {"file_mib": _FILE_BYTES >> 20, "files": files}
    for record_bytes in (128, 1024):
        count = files * _FILE_BYTES // record_bytes
        # Alternating, so that a slow moment of the machine does not affect only one of them.
        rounds = [
            {name: _measure(make, folder / name, record_bytes, count) for name, make in WAYS}
            for _ in range(1 if quick else _REPEATS)
        ]
        result[f"{record_bytes}_byte_records"] = {
            name: {
                key: round(float(np.median([round_[name][key] for round_ in rounds])), 3)
                for key in rounds[0][name]
            }
            for name, _ in WAYS
        }
    result["roll_to_a_gigabyte_ms"] = {
        "made_now": round(_roll(folder / "rolls", is_prepared=False), 3),
        "prepared": round(_roll(folder / "rolls", is_prepared=True), 3),
    }
    return result


def _roll(folder: Path, *, is_prepared: bool) -> float:
    """Return the median time of a roll to the next file, in ms."""
    queue = MappedFileQueue([str(folder)], 1 << 30, Disk())
    taken = []
    for _ in range(_ROLLS):
        if is_prepared:
            queue.prepare_next()
        before = time.perf_counter_ns()
        file = queue.roll()
        taken.append(time.perf_counter_ns() - before)
        file.written = file.reserved = file.size
    queue.close()
    shutil.rmtree(folder)
    return float(np.median(taken[1:])) / 1e6


def _measure(
    make: Callable[[Path], _Way], folder: Path, record_bytes: int, count: int
) -> dict[str, float]:
    folder.mkdir()
    way = make(folder)
    syncer = _Repeat(_SYNC_S, way.flush)
    data, clock = os.urandom(record_bytes), time.perf_counter_ns
    taken = array("q", bytes(8 * count))
    cpu, start = time.process_time(), clock()
    for i in range(count):
        before = clock()
        way.append(data)
        taken[i] = clock() - before
    wall, cpu = clock() - start, time.process_time() - cpu
    syncer.stop()
    way.close()
    shutil.rmtree(folder)
    times = np.frombuffer(taken, np.int64) / 1e3
    return {
        "mean_us": float(times.mean()),
        "p50_us": float(np.percentile(times, 50)),
        "p99.9_us": float(np.percentile(times, 99.9)),
        "max_us": float(times.max()),
        "loop_cpu_us": cpu / count * 1e6,
        "loop_wall_us": wall / count / 1e3,
    }


class _Repeat:
    """A thread that repeats an action."""

    def __init__(self, pause_s: float, work: Callable[[], object]) -> None:
        self._stopped = threading.Event()
        self._pause_s = pause_s
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            self._work()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class _Nothing:
    """Writes nothing: the cost of measuring."""

    def __init__(self, folder: Path) -> None:
        pass

    def append(self, data: bytes) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Files:
    """Consecutive plain files, each reserved as a whole."""

    is_reserved = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start = -_FILE_BYTES
        self._position = _FILE_BYTES
        self._descriptors: list[int] = []

    def _room(self, length: int) -> int:
        position = self._position
        if position + length > _FILE_BYTES:
            self._start += _FILE_BYTES
            self._position = position = 0
            path = f"{self._folder}/{self._start:020d}"
            self._descriptors.append(Disk().create(path, _FILE_BYTES))
            if self.is_reserved:
                Disk().reserve(self._descriptors[-1], path, 0, _FILE_BYTES)
            self.opened(self._descriptors[-1])
        self._position += length
        return position

    def opened(self, descriptor: int) -> None:
        pass

    def append(self, data: bytes) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        for descriptor in self._descriptors[-2:]:
            os.fdatasync(descriptor)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


class _Slice(_Files):
    """The module mmap, with slice assignment."""

    def opened(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _FILE_BYTES)

    def append(self, data: bytes) -> None:
        position = self._room(len(data))
        self._map[position : position + len(data)] = data


class _Sparse(_Slice):
    """The same without reserved space: a full disk raises a signal."""

    is_reserved = False


class _Pwrite(_Files):
    """One system call a record."""

    def append(self, data: bytes) -> None:
        position = self._room(len(data))
        os.pwrite(self._descriptors[-1], data, position)


class _PwriteChunks(_Files):
    """Records gathered in memory; the file lacks those of an unfinished buffer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._chunk = bytearray(_CHUNK_BYTES)
        self._used = 0

    def append(self, data: bytes) -> None:
        used = self._used
        end = used + len(data)
        self._chunk[used:end] = data
        if end == _CHUNK_BYTES:
            position = self._room(_CHUNK_BYTES)
            os.pwrite(self._descriptors[-1], self._chunk, position)
            end = 0
        self._used = end


class _Queue:
    """The store's files: the appending thread reserves space in steps."""

    is_prepared = False
    touched_ahead = 0
    pool: TransientPool | None = None

    def __init__(self, folder: Path) -> None:
        self._queue = MappedFileQueue([str(folder)], _FILE_BYTES, Disk(), pool=self.pool)
        self._file = self._queue.roll()
        self._touched = 0
        self._aheads = [_Repeat(_AHEAD_S, self._ahead)] if self.is_prepared else []

    def append(self, data: bytes) -> None:
        if self._file.written + len(data) > _FILE_BYTES:
            self._file = self._queue.roll()
        self._file.append(data)

    def _ahead(self) -> None:
        file = self._file
        if self.touched_ahead:
            stop = min(file.written + self.touched_ahead, file.size)
            first = max(self._touched, file.start + file.written) - file.start
            if stop - first >= self.touched_ahead // 4 or stop == file.size > first:
                file.reserve(stop)
                file.touch(first, stop)
                self._touched = file.start + stop
        if file.written > file.size // 2:
            self._queue.prepare_next()

    def flush(self) -> None:
        self._queue.commit()
        self._queue.flush()

    def close(self) -> None:
        for ahead in self._aheads:
            ahead.stop()
        self._queue.close()


class _Prepared(_Queue):
    is_prepared = True


class _Touched(_Prepared):
    touched_ahead = 2 * RESERVE_BYTES


class _Pooled(_Prepared):
    """Buffers with resident pages, as with locked memory; a thread commits them continuously."""

    def __init__(self, folder: Path) -> None:
        self.pool = TransientPool(3, _FILE_BYTES, is_locked=False)
        buffers = [self.pool.borrow() for _ in range(3)]
        for buffer in buffers:
            assert buffer is not None
            ctypes.memset(buffer.address, 0, _FILE_BYTES)
            buffer.give_back()
        super().__init__(folder)
        self._aheads.append(_Repeat(_AHEAD_S, self._queue.commit))


WAYS: tuple[tuple[str, Callable[[Path], _Way]], ...] = (
    ("nothing", _Nothing),
    ("map_slice_sparse", _Sparse),
    ("map_slice_file_reserved_at_roll", _Slice),
    ("map_reserved_in_steps", _Queue),
    ("map_next_file_prepared", _Prepared),
    ("map_touched_ahead", _Touched),
    ("pwrite_each", _Pwrite),
    ("pwrite_64_kib", _PwriteChunks),
    ("pool_and_commit", _Pooled),
)
