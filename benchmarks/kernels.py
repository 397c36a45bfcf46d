"""How fast one core walks and decodes a log, and what a second core adds."""

import threading
from pathlib import Path

import numpy as np

from benchmarks import stores, timing
from reput.format import kernels
from reput.store.reader import StoreReader

NAME = "kernels"
QUESTION = "walk: records/s/core; columns: bytes/s/core; two threads against one"
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
    return result


def _measure(root: Path) -> dict[str, float]:
    reader = StoreReader.open(str(root))
    file = reader.log.files[0]
    size = reader.end_offset - file.start
    buffer = np.fromfile(root / "commitlog" / file.name, np.uint8, size)
    found = kernels.scan(buffer, 0, size, physical_offset=file.start, check_crc=False, room=1 << 20)
    count = len(found.positions)

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
        halves = np.array_split(found.positions, 2)
        threads = [threading.Thread(target=decode, args=(half,)) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    walked, checked = timing.seconds(lambda: walk(False)), timing.seconds(lambda: walk(True))
    decoded, in_two = timing.seconds(lambda: decode(found.positions)), timing.seconds(decode_in_two)
    return {
        "records": count,
        "walk_million_records_per_s": round(count / walked / 1e6, 2),
        "walk_with_crc_million_records_per_s": round(count / checked / 1e6, 2),
        "walk_with_crc_gb_per_s": round(size / checked / 1e9, 2),
        "columns_gb_per_s": round(size / decoded / 1e9, 2),
        "columns_two_threads_speedup": round(decoded / in_two, 2),
    }
