"""Latency at a steady rate, and the time from a send until a held pull returns."""

from pathlib import Path

from benchmarks import broker_targets as targets

NAME = "broker_latency"
QUESTION = "open loop of 10 k sends/s, and long-poll arrival; the official 4.9.7 broker beside ours"


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure both; quick: about 30 s."""
    repeats, seconds = (1, 3.0) if quick else (3, 10.0)
    with targets.brokers(folder / NAME) as brokers:
        targets.warm_up(brokers, 3.0 if quick else 7.0)
        # Warm-up: Java compiles the code that holds pulls.
        targets.compare(brokers, 1, "arrival", rounds=100 if quick else 1000)
        rounds = 200 if quick else 1000
        return {
            "open_loop_10k": targets.compare(brokers, repeats, "open", seconds=seconds),
            "open_loop_10k_1_kib": targets.compare(
                brokers, repeats, "open", seconds=seconds, body_bytes=1024
            ),
            "long_poll_arrival": targets.compare(brokers, repeats, "arrival", rounds=rounds),
        }
