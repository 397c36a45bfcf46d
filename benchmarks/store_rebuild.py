"""Deriving queues and index of a long log with one thread, and with one for each core, in turn."""

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.store_open import delete_derived
from reput.cores import usable_cores
from reput.format import properties
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage

NAME = "store_rebuild"
QUESTION = "seconds until queues and index are derived again, with one thread and with all"
RUNS = 5


class Shape(NamedTuple):
    """The messages of a store."""

    body_bytes: int
    topic_count: int
    queue_count: int
    """Queues of each topic."""
    has_keys: bool
    """Each message has a unique key and one more key."""


SHAPES = {
    "small_64_queues": Shape(100, 4, 16, has_keys=False),
    "small_64_queues_keys": Shape(100, 4, 16, has_keys=True),
    "1_kb_64_queues_keys": Shape(1024, 4, 16, has_keys=True),
    "small_2000_queues_keys": Shape(300, 125, 16, has_keys=True),
}


def make(root: Path, shape: Shape, log_bytes: int) -> int:
    """Write a store; return its number of messages."""
    body = bytes(range(256)) * 4
    topics = [f"topic{number}" for number in range(shape.topic_count)]
    count = 0
    with MessageStore.open(str(root), StoreConfig()) as store:
        while store.log.written_offset < log_bytes:
            data = []
            for number in range(count, count + 1000):
                named = {"TAGS": "TagA"}
                if shape.has_keys:
                    named["UNIQ_KEY"] = f"7F0000015EF818B4AAC2{number:012X}"
                    named["KEYS"] = f"k{number}"
                topic = topics[number // shape.queue_count % shape.topic_count]
                message = IncomingMessage(
                    topic,
                    body[: shape.body_bytes],
                    number % shape.queue_count,
                    properties.encode(named),
                    1_700_000_000_000,
                )
                data.append(incoming.encode(message, topic.encode()))
            count += len(data)
            store.put_encoded(b"".join(data), len(data))
            store.step()
    return count


def open_once(root: str, thread_count: int) -> None:
    """Open the store; print seconds, those after the first step, CPU seconds, and messages.

    CPU seconds are those of the process, and those of this thread after the first step.
    """
    begun: list[float] = []

    def progress(what: str, done: int, total: int) -> None:
        if not begun:
            begun.extend((time.perf_counter(), time.thread_time()))

    start, start_cpu = time.perf_counter(), time.process_time()
    config = StoreConfig(reput_recovery_threads=thread_count)
    store = MessageStore.open(root, config, progress=progress)
    end, end_thread = time.perf_counter(), time.thread_time()
    cpu = time.process_time() - start_cpu
    count = sum(queue.max_offset for queue in store.queues)
    print(end - start, end - begun[0], cpu, end_thread - begun[1], count, flush=True)
    store.abandon()


def derive(root: Path, thread_count: int, count: int) -> dict[str, float]:
    """Return the cost of deriving all queues and the index, in a separate process."""
    delete_derived(root)
    code = f"from benchmarks import store_rebuild as m; m.open_once({str(root)!r}, {thread_count})"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    open_s, rebuild_s, cpu_s, thread_cpu_s, messages = map(float, done.stdout.split())
    assert messages == count, f"{messages} of {count} messages"
    return {
        "open_s": open_s,
        "rebuild_s": rebuild_s,
        "cpu_s": cpu_s,
        "rebuild_cpu_s_of_store_thread": thread_cpu_s,
    }


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each measure."""
    return {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}


def ratio(name: str, sequential: dict[str, float], parallel: dict[str, float]) -> float:
    """Return how many times larger a measure is with one thread."""
    return round(sequential[name] / parallel[name], 2)


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure each shape, one thread and all in turn; medians, and their ratio."""
    threads = usable_cores()
    results: dict[str, object] = {"threads": threads}
    for name, shape in SHAPES.items():
        root = folder / name
        count = make(root, shape, 150_000_000 if quick else 2_000_000_000)
        derive(root, 1, count)  # the log is in memory from here on
        runs: dict[int, list[dict[str, float]]] = {1: [], threads: []}
        for _ in range(RUNS):
            for thread_count, measured in runs.items():
                measured.append(derive(root, thread_count, count))
        sequential, parallel = medians(runs[1]), medians(runs[threads])
        results[name] = {
            "messages": count,
            "one_thread": sequential,
            "all_threads": parallel,
            "ratio_of_rebuild": ratio("rebuild_s", sequential, parallel),
            "ratio_of_open": ratio("open_s", sequential, parallel),
            # On a busy machine, seconds measure the others. No thread has more work than this one.
            "ratio_of_store_thread": ratio("rebuild_cpu_s_of_store_thread", sequential, parallel),
        }
        shutil.rmtree(root)
    return results
