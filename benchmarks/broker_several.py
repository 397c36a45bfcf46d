"""Two brokers under one parent (``reput broker --count 2``) against one, on the same cores.

Two generators load the one broker together, or one of the two brokers each. They need cores as
well: with few of them ``per_s`` shows the rest, for the brokers. ``per_broker_core_s``, messages
in a second of a broker's CPU time, shows whether brokers hinder each other.
"""

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import broker_targets as targets
from benchmarks.broker_targets import Target

NAME = "broker_several"
QUESTION = "sends/s and pulls/s of two brokers under one parent against one"
GENERATOR_COUNT = 2
COUNTS = {"one_broker": 1, "two_brokers": 2}
TOPIC = "bench-several"
CASES: dict[str, dict[str, object]] = {
    "send_1_kib": {"mode": "closed", "window": 128, "connections": 2, "body_bytes": 1024},
    "send_128_b": {"mode": "closed", "window": 128, "connections": 2},
    "pull": {"mode": "pull", "window": 8, "connections": 2, "topic": TOPIC},
}
_KEYS = ("per_s", "broker_cores", "per_broker_core_s")


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure each case with one broker and two, in turn; quick: once, about 40 s."""
    repeats, seconds = (1, 2.0) if quick else (5, 4.0)
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(_brokers(folder / NAME / name, count))
            for name, count in COUNTS.items()
        }
        for brokers in running.values():
            for target in brokers:
                count = (100_000 if quick else 400_000) // len(brokers)
                targets.load(target, "fill", topic=TOPIC, messages=count)
                targets.load(target, "closed", warm_up_s=1.0, seconds=0.5)
        return {
            "cores": len(os.sched_getaffinity(0)),
            **{
                name: _compare(running, repeats, {**spec, "seconds": seconds})
                for name, spec in CASES.items()
            },
        }


def _compare(
    running: Mapping[str, list[Target]], repeats: int, spec: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the medians of alternating runs, and the ratios of two brokers to one."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
    for _ in range(repeats):
        for name, brokers in running.items():
            rounds[name].append(_load(brokers, spec))
    results: dict[str, Any] = {name: targets.medians(runs) for name, runs in rounds.items()}
    first, second = (results[name] for name in COUNTS)
    results["two_to_one"] = {key: round(second[key] / first[key], 3) for key in _KEYS}
    return results


def _load(brokers: list[Target], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Load the brokers with all generators at once; return what they did together."""
    more = dict(spec)
    mode = more.pop("mode")
    loaded = [brokers[number % len(brokers)] for number in range(GENERATOR_COUNT)]
    with ThreadPoolExecutor(GENERATOR_COUNT) as pool:
        results = list(pool.map(lambda target: targets.load(target, mode, **more), loaded))
    # Generators of one broker measure the same CPU time.
    cores = {
        target.pid: result["broker_cores"] for target, result in zip(loaded, results, strict=True)
    }
    per_s, broker_cores = sum(result["per_s"] for result in results), sum(cores.values())
    generator_cores = sum(result["per_s"] * result["generator_cpu_us"] for result in results) / 1e6
    busy = [
        result["foreign_cores"]
        + result["broker_cores"]
        + result["per_s"] * result["generator_cpu_us"] / 1e6
        for result in results
    ]
    foreign_cores = sum(busy) / len(busy) - broker_cores - generator_cores
    return {
        "per_s": per_s,
        "broker_cores": broker_cores,
        "generator_cores": generator_cores,
        "foreign_cores": max(foreign_cores, 0.0),
        "per_broker_core_s": per_s / max(broker_cores, 0.001),
    }


@contextmanager
def _brokers(folder: Path, count: int) -> Iterator[list[Target]]:
    """Run ``reput broker --count`` with the sizes of files of a broker without a broker.conf."""
    folder.mkdir(parents=True)
    port = targets.free_port(4)
    conf = {
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "storePathRootDir": folder / "stores",
        **targets.OFFICIAL,
    }
    targets.write_settings(folder / "broker.conf", conf)
    ready = folder / "ready.json"
    words = ("broker", "-c", "broker.conf", "--count", str(count), "--ready-file", str(ready))
    with targets.process(folder, *words, is_killed=False) as parent:
        targets.await_file(ready, parent)
        documents = json.loads(ready.read_text())["brokers"]
        yield [
            Target(document["brokerName"], document["broker"], "", document["pid"], 0.0)
            for document in documents
        ]
