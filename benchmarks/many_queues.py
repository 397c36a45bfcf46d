"""Many small queues: 2,000 topics with 8 queues each, 20 messages a queue, default sizes."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from reput.store.files import paths

NAME = "many_queues"
QUESTION = "seconds until 16,000 queues can be read and are restarted, memory; bytes a queue"
PER_QUEUE = 20


def peak_mb() -> float:
    """Return the peak memory of this process, in MB; getrusage would include its parent's."""
    return _status("VmHWM")


def _status(field: str) -> float:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024


def fill(root: str, topics: int, queues: int, per_queue: int) -> None:
    """Print the times of filling, reading and restarting a store; run in a separate process."""
    from reput.format import properties
    from reput.store.config import StoreConfig
    from reput.store.message_store import MessageStore
    from reput.store.writing import incoming

    encoded = {
        topic: b"".join(
            incoming.encode(
                incoming.IncomingMessage(
                    topic, b"x" * 100, queue_id, properties.encode({"TAGS": "t"})
                ),
                topic.encode(),
            )
            for queue_id in range(queues)
        )
        for topic in (f"topic-{n:05d}" for n in range(topics))
    }
    before = _status("RssAnon")
    start = time.perf_counter()
    store = MessageStore.open(root, StoreConfig())
    cpu_s = [time.process_time()]
    for number in range(per_queue):
        for data in encoded.values():
            stored, _ = store.put_encoded(data, queues)
            assert stored == queues
        if not number:
            cpu_s.append(time.process_time())
    put_s = time.perf_counter() - start
    start = time.perf_counter()
    count = sum(
        store.get(topic, queue_id, 0, 32).message_count
        for topic in encoded
        for queue_id in range(queues)
    )
    read_s = time.perf_counter() - start
    assert count == topics * queues * per_queue, count
    after = _status("RssAnon")
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    start, cpu_s[2:] = time.perf_counter(), [time.process_time()]
    store.close()
    close_s = time.perf_counter() - start
    first_us = (cpu_s[1] - cpu_s[0]) / topics / queues * 1e6
    close_cpu_s = time.process_time() - cpu_s[2]
    memory = before, after, peak_mb()
    print(put_s, read_s, close_s, *memory, descriptors, maps, first_us, close_cpu_s)


def restart(root: str) -> None:
    """Print the time of opening until the first queue is read; run in a separate process."""
    from reput.store.config import StoreConfig
    from reput.store.message_store import MessageStore

    start, cpu_s = time.perf_counter(), time.process_time()
    store = MessageStore.open(root, StoreConfig())
    assert store.get("topic-00000", 0, 0, 32).message_count
    took = time.perf_counter() - start
    print(took, peak_mb(), time.process_time() - cpu_s)
    store.abandon()


def _call(function: str, *arguments: object) -> list[float]:
    code = f"from benchmarks import many_queues as m; m.{function}{arguments!r}"
    if len(arguments) == 1:
        code = f"from benchmarks import many_queues as m; m.{function}({arguments[0]!r})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def measure(folder: Path, topics: int, queues: int, per_queue: int) -> dict[str, float]:
    """Return times and memory for a number of queues."""
    root = str(folder / "many")
    filled = _call("fill", root, topics, queues, per_queue)
    put_s, read_s, close_s, before, after, peak, descriptors, maps, first_us, close_cpu_s = filled
    start = time.perf_counter()
    open_s, restart_peak, open_cpu_s = _call("restart", root)
    whole_s = time.perf_counter() - start
    crashed_s, _, crashed_cpu_s = _call("restart", root)
    for former in Path(root).glob(f"{paths.FORMER_SUMMARY_PREFIX}*"):
        former.unlink()  # as after a crash of the system
    all_read_s, _, all_read_cpu_s = _call("restart", root)
    shutil.rmtree(root)
    return {
        "queues": topics * queues,
        "first_message_cpu_us": round(first_us, 1),
        "put_and_readable_s": round(put_s, 2),
        "read_all_s": round(read_s, 2),
        "clean_stop_s": round(close_s, 2),
        "clean_stop_cpu_s": round(close_cpu_s, 2),
        "open_s": round(open_s, 2),
        "open_cpu_s": round(open_cpu_s, 2),
        "process_until_readable_s": round(whole_s, 2),
        "open_after_crash_s": round(crashed_s, 2),
        "open_after_crash_cpu_s": round(crashed_cpu_s, 2),
        "open_after_crash_of_system_s": round(all_read_s, 2),
        "open_after_crash_of_system_cpu_s": round(all_read_cpu_s, 2),
        "peak_mb": round(peak),
        "restart_peak_mb": round(restart_peak),
        "bytes_a_queue": round((after - before) * 1024 * 1024 / (topics * queues)),
        "descriptors": int(descriptors),
        "maps": int(maps),
    }


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure 16,000 queues, and 80,000."""
    if quick:
        return {"2000_queues": measure(folder, 250, 8, PER_QUEUE)}
    return {
        "16000_queues": measure(folder, 2_000, 8, PER_QUEUE),
        "80000_queues": measure(folder, 10_000, 8, 1),
    }
