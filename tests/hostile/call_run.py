"""Run hostile 5.x clients for any time, or repeat a single round.

    cd tests
    python -m hostile.call_run --seconds 3600              # a summary in JSON goes to stdout
    python -m hostile.call_run --seed 7 --round 12 --server proxy --profile guarded

Rounds against the broker and the proxy alternate. Each prints its problems to stderr, with the
command that repeats it; the exit code is 1 if there were any.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hostile import attack, calls, requests
from hostile.call_servers import PROFILES, SIGNATURE, CallScene
from hostile.run import report
from hostile.servers import Watch
from hostile.wire import outcome

SERVERS = ("broker", "proxy")
FAILURES_MAX = 50
REPORT_S = 30


def prepare(scene: CallScene) -> None:
    """Create the topics that calls name, unless only users may."""
    if not scene.is_guarded:
        for topic in (requests.TOPIC, requests.LITE_TOPIC):
            outcome(scene.port, requests.send("", topic=topic))


def play_round(
    scene: CallScene, server: str, seed: int | str, number: int, limit_s: float = 5.0
) -> tuple[Watch, attack.Played]:
    """Play a round; return the observations and the writes."""
    scripts = calls.script(seed, number, SIGNATURE if scene.is_guarded else None)
    with scene.watching(f"calls of the {server}, seed {seed}, round {number}") as watch:
        played = attack.play(scene.ports[server], scripts, limit_s)
    return watch, played


def command_of(profile: str, server: str, seed: int | str, number: int) -> str:
    return (
        f"python -m hostile.call_run --profile {profile} --server {server} --seed {seed} "
        f"--round {number}"
    )


class CallRun:
    """Counts over many rounds."""

    def __init__(self, profile: str, seed: int) -> None:
        self._profile = profile
        self._seed = seed
        self.counts = {"rounds": 0, "writes": 0, "bytes": 0, "failed": 0}
        self.worst: dict[str, list[tuple[float, int]]] = {}
        self.memory: dict[str, int] = {}
        self.failures: list[str] = []

    def add(self, server: str, number: int, watch: Watch, played: attack.Played) -> None:
        self.counts["rounds"] += 1
        self.counts["writes"] += len(played.frames)
        self.counts["bytes"] += sum(size for _, _, size in played.frames)
        for name, stall_s in watch.worst.items():
            delays = [*self.worst.get(name, ()), (round(stall_s * 1000, 1), number)]
            self.worst[name] = sorted(delays, reverse=True)[:10]
        for name, size in watch.memory.items():
            self.memory[name] = max(self.memory.get(name, 0), size >> 20)
        if watch.problems:
            self.counts["failed"] += 1
            text = report(watch, played, command_of(self._profile, server, self._seed, number))
            self.failures.append(text)
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def summary(self) -> dict[str, Any]:
        return {
            "profile": self._profile,
            "seed": self._seed,
            **self.counts,
            "worst_stalls_ms_and_round": self.worst,
            "memory_mib": self.memory,
            "failures": self.failures,
        }


def run(scene: CallScene, profile: str, seed: int, *, seconds: float) -> CallRun:
    """Play rounds for some time."""
    prepare(scene)
    results = CallRun(profile, seed)
    begin = reported = time.monotonic()
    number = 0
    while time.monotonic() < begin + seconds and len(results.failures) < FAILURES_MAX:
        for server in SERVERS:
            results.add(server, number, *play_round(scene, server, seed, number))
        number += 1
        if time.monotonic() > reported + REPORT_S:
            reported = time.monotonic()
            worst = {name: stalls[0] for name, stalls in results.worst.items()}
            print(f"{results.counts} worst {worst}", file=sys.stderr, flush=True)  # noqa: T201
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--round", type=int, help="this one alone")
    parser.add_argument("--server", choices=SERVERS, default="broker")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="open")
    parser.add_argument("--folder", type=Path, help="where store and logs stay")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        with CallScene(folder, PROFILES[arguments.profile]) as scene:
            if arguments.round is not None:
                prepare(scene)
                results = CallRun(arguments.profile, arguments.seed)
                watch, played = play_round(scene, arguments.server, arguments.seed, arguments.round)
                results.add(arguments.server, arguments.round, watch, played)
            else:
                results = run(scene, arguments.profile, arguments.seed, seconds=arguments.seconds)
            try:
                traffic = scene.check_end()
            except AssertionError as error:
                traffic = {}
                results.failures.append(f"at the end: {error}")
            print(json.dumps({**results.summary(), "traffic": traffic}, indent=2))  # noqa: T201
            return 1 if results.failures else 0
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
