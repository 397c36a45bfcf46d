"""Raw pipelined sends to the official broker and ours: rate, CPU a message, latency."""

from pathlib import Path

from benchmarks import broker_targets as targets

NAME = "broker_send"
QUESTION = "sends/s and broker CPU a message; the official 4.9.7 broker beside ours"

CASES: dict[str, dict[str, object]] = {
    "window_1": {"window": 1},
    "window_64": {"window": 64},
    "window_256_x4": {"window": 256, "connections": 4},
    "window_1_1_kib": {"window": 1, "body_bytes": 1024},
    "window_64_1_kib": {"window": 64, "body_bytes": 1024},
    "window_256_x4_1_kib": {"window": 256, "connections": 4, "body_bytes": 1024},
    "window_64_binary_header": {"window": 64, "serialization": "ROCKETMQ"},
}
QUICK = ("window_1", "window_64", "window_256_x4")
SYNC_CASES: dict[str, dict[str, object]] = {
    "sync_flush_window_1": {"window": 1},
    "sync_flush_window_64": {"window": 64},
}


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure each case; quick: three cases and sync flush, once, about 50 s."""
    repeats, seconds = (1, 1.5) if quick else (3, 2.5)
    cases = {name: CASES[name] for name in QUICK} if quick else CASES
    results: dict[str, object] = {}
    with targets.brokers(folder / NAME) as brokers:
        results["start_s"] = {broker.name: round(broker.start_s, 3) for broker in brokers}
        targets.warm_up(brokers, 3.0 if quick else 7.0)
        for name, spec in cases.items():
            results[name] = targets.compare(brokers, repeats, "closed", seconds=seconds, **spec)
    with targets.brokers(folder / f"{NAME}_sync", {"flushDiskType": "SYNC_FLUSH"}) as brokers:
        targets.warm_up(brokers, 2.0 if quick else 7.0)
        for name, spec in SYNC_CASES.items():
            results[name] = targets.compare(brokers, repeats, "closed", seconds=seconds, **spec)
    return results
