"""Raw pulls of 32 messages from the page cache."""

from pathlib import Path

from benchmarks import broker_targets as targets

NAME = "broker_pull"
QUESTION = "messages/s and broker CPU a message of raw pulls; the official 4.9.7 broker beside ours"
TOPIC = "bench-pull"


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Fill a topic, then measure; quick: about 20 s."""
    repeats, seconds = (1, 1.5) if quick else (3, 2.5)
    with targets.brokers(folder / NAME) as brokers:
        for target in brokers:
            targets.load(target, "fill", topic=TOPIC, messages=100_000 if quick else 400_000)
            targets.load(target, "pull", topic=TOPIC, warm_up_s=3.0 if quick else 7.0, seconds=0.1)
        return {
            name: targets.compare(brokers, repeats, "pull", topic=TOPIC, seconds=seconds, **spec)
            for name, spec in {
                "window_1": {"window": 1},
                "window_8": {"window": 8},
                "window_32_x2": {"window": 32, "connections": 2},
            }.items()
        }
