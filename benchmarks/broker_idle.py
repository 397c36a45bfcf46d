"""What a broker costs without load, after load, and with many clients that wait."""

from pathlib import Path

from benchmarks import broker_targets as targets

NAME = "broker_idle"
QUESTION = "start, memory and idle CPU of a broker; 2,000 clients that hold pulls"


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure a fresh broker, one with messages, one with clients; quick: about 40 s."""
    seconds = 3.0 if quick else 10.0
    clients = 500 if quick else 2000
    with targets.brokers(folder / NAME) as found:
        results: dict[str, object] = {
            "start_s": {one.name: round(one.start_s, 3) for one in found},
            "fresh": targets.measure(found, 1, lambda one: targets.idle(one, seconds)),
        }
        for one in found:
            targets.load(one, "fill", messages=100_000 if quick else 1_000_000)
        results["after_messages"] = targets.measure(
            found, 1, lambda one: targets.idle(one, seconds)
        )
        for name, pulls in (("idle_clients", False), ("held_pulls", True)):
            results[name] = targets.compare(
                found, 1, "hold", clients=clients, pulls=pulls, seconds=seconds
            )
        return results
