"""Putting messages: one by one, 64 at a time, and as encoded records straight to the kernel."""

import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import java
from reput.clock import SystemClock
from reput.format import properties
from reput.store.config import FlushDiskType, StoreConfig
from reput.store.message_store import MessageStore
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage, PutStatus

NAME = "store_put"
QUESTION = "messages/s into one store, queues and index included; Java's store beside it"
GROUP = 64
QUEUES = 8


def messages(count: int, body_bytes: int) -> list[IncomingMessage]:
    """Return messages with a unique key, a key and a tag, over eight queues."""
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    return [
        IncomingMessage(
            "bench",
            body[:body_bytes],
            n % QUEUES,
            properties.encode(
                {"UNIQ_KEY": f"7F0000015EF818B4AAC2{n:012X}", "KEYS": f"key-{n}", "TAGS": "t"}
            ),
            1_700_000_000_000,
        )
        for n in range(count)
    ]


def rate(folder: Path, count: int, put: Callable[[MessageStore], None], **options: object) -> dict:
    """Return messages per wall and CPU second in a new store, the best of three runs."""
    best: dict = {"per_s": 0}
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        with MessageStore.open(str(folder), StoreConfig(**options)) as store:
            put(store)  # the first round makes files and pages
            store.step()
            wall, cpu = time.perf_counter(), time.process_time()
            put(store)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if count / wall > best["per_s"]:
            best = {"per_s": round(count / wall), "cpu_us": round(cpu / count * 1e6, 2)}
    shutil.rmtree(folder)
    return best


def sync_group(folder: Path, rounds: int) -> dict[str, float]:
    """Return the cost of 64 puts that share a sync, and of the bare sync of as many bytes."""
    group = messages(GROUP, 128)
    encoded = b"".join(incoming.encode(message, b"bench") for message in group)
    times: dict[str, list[float]] = {"bare": [], "messages": [], "encoded": [], "whole": []}
    config = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with (
        MessageStore.open(str(folder), config) as store,
        (folder / "bare").open("wb") as file,
    ):
        os.posix_fallocate(file.fileno(), 0, len(encoded) * (rounds + 1))
        for _ in range(rounds):  # in turns: the disk is not the same from second to second
            start = time.perf_counter()
            results = store.put_many(group)
            times["messages"].append(time.perf_counter() - start)
            assert all(result.status is PutStatus.PUT_OK for result in results)
            start = time.perf_counter()
            store.put_encoded(encoded, GROUP)
            store.sync()
            times["encoded"].append(time.perf_counter() - start)
            store.step_memory()
            times["whole"].append(time.perf_counter() - start)
            start = time.perf_counter()
            file.write(encoded)
            file.flush()
            os.fdatasync(file.fileno())
            times["bare"].append(time.perf_counter() - start)
    shutil.rmtree(folder)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    return {
        "bare_fdatasync_ms": round(medians["bare"] * 1000, 3),
        "put_many_ms": round(medians["messages"] * 1000, 3),
        "encoded_until_durable_ms": round(medians["encoded"] * 1000, 3),
        "encoded_and_dispatched_ms": round(medians["whole"] * 1000, 3),
        "put_many_to_bare": round(medians["messages"] / medians["bare"], 2),
        "encoded_to_bare": round(medians["encoded"] / medians["bare"], 2),
    }


def latency(folder: Path, seconds: float, per_s: int, body_bytes: int) -> dict[str, float]:
    """Return percentiles of puts at a steady rate, with a syncing thread and file rolls."""
    config = StoreConfig(mapped_file_size_commit_log=64 * 1024 * 1024)
    batch = messages(10_000, body_bytes)
    clock = SystemClock()
    took: list[int] = []
    with MessageStore.open(str(folder), config, clock=clock) as store:
        store.put_many(batch)
        stopping = threading.Event()

        def disk() -> None:
            while not stopping.wait(0.01):
                store.step_disk()

        thread = threading.Thread(target=disk)
        thread.start()
        interval = int(1e9 / per_s)
        now = due = time.perf_counter_ns()
        end = now + int(seconds * 1e9)
        stepped = now
        n = 0
        while now < end:
            while now < due:
                now = time.perf_counter_ns()
            store.put(batch[n % len(batch)])
            done = time.perf_counter_ns()
            took.append(done - now)
            if done - stepped > 5_000_000:
                store.step_memory()
                stepped = done
            n += 1
            due += interval
            now = time.perf_counter_ns()
        stopping.set()
        thread.join()
        rolls = len(store.log.files.files)
    shutil.rmtree(folder)
    took.sort()

    def percentile(share: float) -> float:
        return round(took[min(int(len(took) * share), len(took) - 1)] / 1000, 1)

    return {
        "puts": len(took),
        "log_files": rolls,
        "mean_us": round(statistics.fmean(took) / 1000, 2),
        "p50_us": percentile(0.5),
        "p99_us": percentile(0.99),
        "p99_9_us": percentile(0.999),
        "max_us": percentile(1.0),
    }


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure 128 B and 1 KB bodies."""
    results: dict[str, object] = {}
    rates: dict[int, int] = {}
    for body_bytes in (128, 1024):
        # About 60 MB: more dirty pages at once measure the disk.
        count = (20_000_000 if quick else 60_000_000) // (body_bytes + 170)
        group = messages(count, body_bytes)
        encoded = [
            b"".join(incoming.encode(message, b"bench") for message in group[i : i + GROUP])
            for i in range(0, count, GROUP)
        ]

        def one_by_one(store: MessageStore, group: list = group) -> None:
            for message in group:
                store.put(message)

        def many(store: MessageStore, group: list = group) -> None:
            for i in range(0, len(group), GROUP):
                store.put_many(group[i : i + GROUP])

        def kernel(store: MessageStore, encoded: list = encoded) -> None:
            for data in encoded:
                store.put_encoded(data, GROUP)

        single = rate(folder / "put", count, one_by_one)
        rates[body_bytes] = single["per_s"]
        ours = {
            "put": single,
            "put_many_64": rate(folder / "put", count, many),
            "encoded_64": rate(folder / "put", len(encoded) * GROUP, kernel),
        }
        oracle = java.store()
        if oracle is not None:
            target = folder / "java-put"
            bench = oracle.bench(
                target, messages=count, body_bytes=body_bytes, queues=QUEUES, warm_up=count
            )
            per_s = bench.messages / bench.put_ms * 1000
            ours["java_4_9_7"] = {
                "per_s": round(per_s),
                "cpu_us": round(bench.cpu_ms / bench.messages * 1000, 2),
            }
            ours["put_to_java"] = round(single["per_s"] / per_s, 2)
            shutil.rmtree(target, ignore_errors=True)
        results[f"{body_bytes}_bytes"] = ours
    results["latency_at_half_load"] = latency(
        folder / "latency", 2 if quick else 10, rates[128] // 2, 128
    )
    results["sync_group_of_64"] = sync_group(folder / "sync", 20 if quick else 200)
    return results
