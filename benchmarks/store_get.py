"""Getting messages: a queue in batches of 32, and single messages by key over many index files."""

import shutil
import time
from pathlib import Path

from benchmarks import store_put
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore

NAME = "store_get"
QUESTION = "messages/s in batches of 32 from the page cache; milliseconds of a query by key"
INDEX_FILES = 50


def by_queue(folder: Path, count: int, body_bytes: int) -> dict[str, float]:
    """Return the rate of reading all queues, from memory and from files."""
    config = StoreConfig(max_hash_slot_num=500_000, max_index_num=2_000_000)
    with MessageStore.open(str(folder), config) as store:
        group = store_put.messages(count, body_bytes)
        for i in range(0, count, 1000):
            store.put_many(group[i : i + 1000])
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            got = 0
            for queue_id in range(store_put.QUEUES):
                queue_offset = 0
                while True:
                    batch = store.get("bench", queue_id, queue_offset, 32)
                    if not batch.message_count:
                        break
                    got += batch.message_count
                    queue_offset = batch.next_offset
            best = min(best, time.perf_counter() - start)
        assert got == count, f"{got} of {count}"
    shutil.rmtree(folder)
    return {"messages_per_s": round(count / best)}


def by_key(folder: Path, per_file: int) -> dict[str, float]:
    """Return the time of a query with 50 index files."""
    config = StoreConfig(max_hash_slot_num=per_file, max_index_num=2 * per_file)
    with MessageStore.open(str(folder), config) as store:
        count = per_file * INDEX_FILES
        group = store_put.messages(count, 128)
        for i in range(0, count, 1000):
            store.put_many(group[i : i + 1000])
        keys = [f"key-{n}" for n in range(0, count, count // 500)]
        times = []
        for key in keys * 2:
            start = time.perf_counter()
            messages = store.query("bench", key, 32)
            times.append(time.perf_counter() - start)
            assert len(messages.records) == 1, key
        files = len(list((folder / "index").iterdir()))
    shutil.rmtree(folder)
    times = sorted(times[len(keys) :])
    return {
        "index_files": files,
        "p50_ms": round(times[len(times) // 2] * 1000, 3),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1000, 3),
    }


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure both."""
    count = 40_000 if quick else 400_000
    return {
        "batches_128_bytes": by_queue(folder / "get", count, 128),
        "batches_1024_bytes": by_queue(folder / "get", count, 1024),
        "by_key": by_key(folder / "query", 1000 if quick else 10_000),
    }
