"""Opening a store of 2 GB: stopped cleanly, crashed, and with queues and index deleted."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import java
from reput.format import properties
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage

NAME = "store_open"
QUESTION = "seconds from process start until the store is ready; Java's store on the same folder"
QUEUES = 64
BODY_BYTES = 1024


def make(root: Path, count: int) -> None:
    """Write a store: bodies of 1 KB, a unique key and one more key each, 64 queues."""
    body = bytes(range(256)) * (BODY_BYTES // 256)
    with MessageStore.open(str(root), StoreConfig()) as store:
        for first in range(0, count, 1000):
            group = [
                IncomingMessage(
                    "bench",
                    body,
                    n % QUEUES,
                    properties.encode(
                        {"UNIQ_KEY": f"7F0000015EF818B4AAC2{n:012X}", "KEYS": f"k{n}"}
                    ),
                    1_700_000_000_000,
                )
                for n in range(first, min(first + 1000, count))
            ]
            data = b"".join(incoming.encode(message, b"bench") for message in group)
            store.put_encoded(data, len(group))
            store.step()


def open_once(root: str) -> None:
    """Open the store, print the CPU seconds of this process and the number of messages, stop."""
    start = time.perf_counter()
    store = MessageStore.open(root, StoreConfig())
    took = time.perf_counter() - start
    count = sum(store.max_offset("bench", queue_id) for queue_id in range(QUEUES))
    print("READY", took, time.process_time(), count, flush=True)
    store.close()


def ours(root: Path, count: int) -> dict[str, float]:
    """Return the times of opening, in a separate process."""
    code = f"from benchmarks import store_open as m; m.open_once({str(root)!r})"
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline().split()
        wall = time.perf_counter() - start
        child.stdout.read()
    assert line[:1] == ["READY"], line
    assert int(line[3]) == count, line
    return {
        "process_s": round(wall, 3),
        "open_s": round(float(line[1]), 3),
        "cpu_s": round(float(line[2]), 3),
    }


def of_java(root: Path) -> dict[str, float] | None:
    """Return the times of opening with Java 4.9.7."""
    oracle = java.store()
    if oracle is None:
        return None
    cost = oracle.open_cost(root)
    return {"process_s": cost.wall_ms / 1000, "cpu_s": cost.cpu_ms / 1000}


def crash(root: Path) -> None:
    """Leave the folder in the state after a crash."""
    (root / paths.ABORT).touch()
    (root / paths.QUEUE_SUMMARY).unlink(missing_ok=True)


def delete_derived(root: Path) -> None:
    """Delete queues and index."""
    for family in (paths.CONSUME_QUEUE, paths.INDEX):
        shutil.rmtree(root / family, ignore_errors=True)


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure the three cases, three times each, the median; Java once."""
    count = 200_000 if quick else 1_700_000
    root = folder / "open"
    make(root, count)
    results: dict[str, object] = {"messages": count}
    for name, damage in (
        ("clean", lambda root: None),
        ("crashed", crash),
        ("queues_and_index_deleted", delete_derived),
    ):
        runs = []
        for _ in range(3):
            damage(root)
            runs.append(ours(root, count))
        damage(root)
        runs.sort(key=lambda measured: measured["process_s"])
        results[name] = {"reput": runs[1], "java_4_9_7": of_java(root)}
    shutil.rmtree(root)
    return results
