"""Reads of running brokers beside raw pulls: by Spark, with and without the accelerator, and alone.

Raw pulls are those of one connection of the load generator, which discards the replies. Our reader
checks and decodes them in one thread, without Spark. Reads of Spark end in the noop sink.

All of it shares the machine's cores, and then once more with the JVM on one half of them and all
other processes, also for raw pulls, on the other. Measurements of a turn are paired: each ratio is
the median of the turns' ratios. CPU times say more than rates if the machine is not idle.
"""

import contextlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import reput.spark
from benchmarks import broker_targets as targets, timing
from benchmarks.spark_scan import without_jar
from benchmarks.spark_stream import trigger_seconds
from reput.spark import accelerator, options as option_texts, rows
from reput.spark.live import calls as live_calls
from reput.spark.live.scan import LiveScan
from reput.spark.session import local_session

NAME = "spark_live"
QUESTION = "reads of running brokers against raw pulls, with and without the accelerator"
_BODIES = (128, 1024)
_WINDOW = 16
"""Raw pulls in flight."""
_REPEATS = 3
_COLUMNS = ("topic", "queue_id", "queue_offset", "tags", "store_timestamp")
"""Columns of a query that needs few."""
Case = Callable[[], float]
"""Reads everything, and returns its seconds."""


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure rates and CPU times of all cases, alternating."""
    settings = {"spark.jars": accelerator.jar(folder)}
    results: dict[str, object] = {}
    with contextlib.ExitStack() as stack:
        spark = stack.enter_context(
            local_session("reput benchmark", folder / "spark.log", "local[2]", settings)
        )
        for target in stack.enter_context(targets.brokers(folder / NAME)):
            for body_bytes in _BODIES:
                topic = f"bench-live-{body_bytes}"
                count = 100_000 if quick else 1_600_000  # a query costs 0.5 CPU s
                targets.load(target, "fill", topic=topic, messages=count, body_bytes=body_bytes)
                targets.load(target, "pull", topic=topic, warm_up_s=3.0, seconds=0.1)
                results[f"{target.name}_{body_bytes}"] = _measured(spark, target, topic)
    live_calls.disconnect()
    return results


def _measured(spark: SparkSession, target: targets.Target, topic: str) -> dict[str, object]:
    given = {"nameServer": target.namesrv, "topic": topic}
    count = targets.topic_end(target.address, topic)
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    cases: dict[str, Case] = {
        "reader": lambda: _read_seconds(**given),
        "format": lambda: _seconds(spark.read.format("rocketmq").options(**given).load()),
        "read": lambda: without_jar(lambda: _seconds(reput.spark.read(spark, **given))),
        "accelerated": lambda: _seconds(reput.spark.read(spark, **given)),
        "accelerated_columns": lambda: _seconds(reput.spark.read(spark, **given).select(*_COLUMNS)),
        "stream": lambda: sum(trigger_seconds(spark, **given)),
    }
    for read in cases.values():
        read()  # warms up, and starts Spark's workers
    return {
        "messages": count,
        "load_average": os.getloadavg()[0],
        "all_on_all_cores": _turns(target, topic, jvm, count, cases),
        "jvm_on_its_own_cores": _apart(target, topic, jvm, count, cases),
    }


def _apart(
    target: targets.Target, topic: str, jvm: int, count: int, cases: dict[str, Case]
) -> dict[str, object] | None:
    """Return the results with the JVM on one half of the cores, and all else on the other."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if not half:
        return None
    others, of_jvm = {*cores[:half]}, {*cores[half:]}

    def pin() -> None:
        for pid in (os.getpid(), target.pid, *timing.descendants(jvm)):
            _pin(pid, others)
        _pin(jvm, of_jvm)

    def pinned(read: Case) -> Case:
        def call() -> float:
            pin()
            return read()

        return call

    try:
        pin()
        pinned_cases = {name: pinned(read) for name, read in cases.items()}
        return _turns(target, topic, jvm, count, pinned_cases)
    finally:
        for pid in (os.getpid(), target.pid, jvm, *timing.descendants(jvm)):
            _pin(pid, {*cores})


def _pin(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def _turns(
    target: targets.Target, topic: str, jvm: int, count: int, cases: dict[str, Case]
) -> dict[str, object]:
    rates: dict[str, list[float]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(_REPEATS):
        raw = targets.load(target, "pull", topic=topic, seconds=1.5, window=_WINDOW)
        rates["raw"].append(raw["per_s"])
        costs["raw"].append({"broker": raw["broker_cpu_us"], "python": raw["generator_cpu_us"]})
        for name, read in cases.items():
            before = _cpu(target.pid, jvm)
            rate = count / read()
            after = _cpu(target.pid, jvm)
            rates[name].append(rate)
            ratios[name].append(rate / raw["per_s"])
            costs[name].append({part: (after[part] - before[part]) / count * 1e6 for part in after})
    cpu_us = {
        name: {part: statistics.median(cost[part] for cost in turns) for part in turns[0]}
        for name, turns in costs.items()
    }
    raw_us = sum(cpu_us["raw"].values())
    return {
        "per_s": {name: round(statistics.median(values)) for name, values in rates.items()},
        "over_raw": {name: round(statistics.median(each), 2) for name, each in ratios.items()},
        "over_raw_range": {
            name: [round(min(each), 2), round(max(each), 2)] for name, each in ratios.items()
        },
        "cpu_us": {
            name: {part: round(value, 2) for part, value in parts.items()}
            for name, parts in cpu_us.items()
        },
        "over_raw_by_cpu": {
            name: round(raw_us / sum(parts.values()), 2) for name, parts in cpu_us.items()
        },
        "over_raw_by_cpu_without_jvm": {
            name: round(raw_us / (parts["broker"] + parts["python"]), 2)
            for name, parts in cpu_us.items()
        },
    }


def _cpu(broker: int, jvm: int) -> dict[str, float]:
    """Return the CPU seconds so far of the broker, of Python and of the JVM."""
    of_jvm = timing.cpu_of_process(jvm)
    workers = timing.cpu_of_tree(jvm) - of_jvm
    return {
        "broker": timing.cpu_of_process(broker),
        "python": workers + time.process_time(),
        "jvm": of_jvm,
    }


def _read_seconds(**options: str) -> float:
    """Read everything in this thread, without Spark."""
    before = time.perf_counter()
    parsed = option_texts.parse(options)
    scan = LiveScan(parsed, list(rows.message_fields(parsed)))
    for task in scan.tasks():
        for _ in scan.read(task):
            pass
    return time.perf_counter() - before


def _seconds(frame: DataFrame) -> float:
    before = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - before
