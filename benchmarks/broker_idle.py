"""Cost of a broker without load, after load, and with many idle clients."""

from pathlib import Path

from benchmarks import broker_targets as targets

NAME = "broker_idle"
QUESTION = "start, memory and idle CPU of a broker; 2,000 clients that hold pulls"


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure a fresh broker, one with messages, one with clients; quick: about 40 s."""
    seconds = 3.0 if quick else 10.0
    clients = 500 if quick else 2000
    with targets.brokers(folder / NAME) as brokers:
        results: dict[str, object] = {
            "start_s": {broker.name: round(broker.start_s, 3) for broker in brokers},
            "fresh": targets.measure(brokers, 1, lambda broker: targets.idle(broker, seconds)),
        }
        for broker in brokers:
            targets.load(broker, "fill", messages=100_000 if quick else 1_000_000)
        results["after_messages"] = targets.measure(
            brokers, 1, lambda broker: targets.idle(broker, seconds)
        )
        for name, pulls in (("idle_clients", False), ("held_pulls", True)):
            results[name] = targets.compare(
                brokers, 1, "hold", clients=clients, pulls=pulls, seconds=seconds
            )
        return results
