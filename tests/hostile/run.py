"""Run hostile clients against processes for any time, or repeat a single round or frame.

    cd tests
    python -m hostile.run --seconds 3600              # a summary in JSON goes to stdout
    python -m hostile.run --seed 7 --round 12 --server broker --profile everything
    python -m hostile.run --seed 7 --round 12 --server broker --frame 2/17

Rounds of the ports alternate. Each prints its problems to stderr, with the command that
repeats it; the exit code is 1 if there were any.
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

from hostile import attack
from hostile.servers import PROFILES, Scene, Watch

SERVERS = ("broker", "namesrv", "ha")
"""Attacked ports; ``ha`` is that of the broker for slaves."""
MODULE = "hostile.run"
FAILURES_MAX = 50
REPORT_S = 30
KILL_EVERY = 200
"""Rounds between two kills of the broker."""


def play_round(
    scene: Scene,
    server: str,
    seed: int | str,
    number: int,
    *,
    frame: str = "",
    limit_s: float = 3.0,
) -> tuple[Watch, attack.Played]:
    """Play a round, or a frame of it; return the observations and the written frames."""
    scripts = attack.script(server, seed, number)
    if frame:
        connection, index = map(int, frame.split("/"))
        script = scripts[connection]
        scripts = [attack.Script(attack.ONE_BY_ONE, [script.frames[index]])]
    port = {"broker": scene.port, "namesrv": scene.namesrv_port, "ha": scene.ha_port}[server]
    with scene.watching(f"{server}, seed {seed}, round {number}") as watch:
        played = attack.play(port, scripts, limit_s)
    if server == "ha" and not attack.serves_a_real_slave(port):
        watch.problems.append("a real slave is not served")
    return watch, played


def report(watch: Watch, played: attack.Played, command: str) -> str:
    """Return a report of a round's problems, with the command that repeats it."""
    lines = [f"{watch.subject}:", *(f"  {problem}" for problem in watch.problems)]
    for stall in watch.stalls[:2]:
        near = played.near(stall.start, stall.start + stall.wait)
        lines.append(f"  written meanwhile: {len(near)} frames, the last:")
        lines += [f"    {text}" for text in near[-8:]]
    lines.append(f"  again: {command}")
    return "\n".join(lines)


def command_of(
    profile: str, server: str, seed: int | str, number: int, *, module: str = MODULE
) -> str:
    """Return the command that repeats a round."""
    return (
        f"python -m {module} --profile {profile} --server {server} --seed {seed} --round {number}"
    )


class Run:
    """Counts over many rounds.

    Args:
        profile: Name of the settings of the servers.
        seed: Seed of the rounds.
        module: The module that repeats a round.
    """

    def __init__(self, profile: str, seed: int, *, module: str = MODULE) -> None:
        self._profile = profile
        self._seed = seed
        self._module = module
        self.counts = {"rounds": 0, "frames": 0, "bytes": 0, "failed": 0, "kills": 0}
        self.worst: dict[str, list[tuple[float, int]]] = {}
        self.memory: dict[str, int] = {}
        self.failures: list[str] = []
        self._shown_at = time.monotonic()

    def add(self, server: str, number: int, watch: Watch, played: attack.Played) -> None:
        self.counts["rounds"] += 1
        self.counts["frames"] += len(played.frames)
        self.counts["bytes"] += sum(size for _, _, size in played.frames)
        for name, stall_s in watch.worst.items():
            delays = [*self.worst.get(name, ()), (round(stall_s * 1000, 1), number)]
            self.worst[name] = sorted(delays, reverse=True)[:10]
        for name, size in watch.memory.items():
            self.memory[name] = max(self.memory.get(name, 0), size >> 20)
        if watch.problems:
            self.counts["failed"] += 1
            command = command_of(self._profile, server, self._seed, number, module=self._module)
            text = report(watch, played, command)
            self.failures.append(text)
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def show_progress(self) -> None:
        """Print the counts to stderr, unless they were printed shortly before."""
        if time.monotonic() > self._shown_at + REPORT_S:
            self._shown_at = time.monotonic()
            worst = {name: stalls[0] for name, stalls in self.worst.items()}
            text = f"{self.counts} worst ms and round {worst}"
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def summary(self) -> dict[str, Any]:
        """Return the results for JSON."""
        return {
            "profile": self._profile,
            "seed": self._seed,
            **self.counts,
            "worst_stalls_ms_and_round": self.worst,
            "memory_mib": self.memory,
            "failures": self.failures,
        }


def run(scene: Scene, profile: str, seed: int, *, seconds: float, first: int = 0) -> Run:
    """Play rounds for some time."""
    results = Run(profile, seed)
    begin = time.monotonic()
    number = first
    while time.monotonic() < begin + seconds and len(results.failures) < FAILURES_MAX:
        for server in SERVERS:
            results.add(server, number, *play_round(scene, server, seed, number))
        number += 1
        if number % KILL_EVERY == 0:
            scene.unwatch()
            scene.kill_broker()
            scene.start()
            scene.watch_all()
            results.counts["kills"] += 1
        results.show_progress()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--round", type=int, help="this one alone")
    parser.add_argument("--frame", default="", help="CONNECTION/INDEX of that round alone")
    parser.add_argument("--server", choices=SERVERS, default="broker")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="everything")
    parser.add_argument("--folder", type=Path, help="where store and logs stay")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        with Scene(folder, PROFILES[arguments.profile]) as scene:
            if arguments.round is not None:
                results = Run(arguments.profile, arguments.seed)
                watch, played = play_round(
                    scene, arguments.server, arguments.seed, arguments.round,
                    frame=arguments.frame,
                )  # fmt: skip
                results.add(arguments.server, arguments.round, watch, played)
            else:
                results = run(scene, arguments.profile, arguments.seed, seconds=arguments.seconds)
            try:
                traffic = scene.check_end()
            except AssertionError as error:
                traffic = {}
                results.failures.append(f"at the end: {error}")
            summary = {**results.summary(), "traffic": traffic}
            print(json.dumps(summary, indent=2))  # noqa: T201
            return 1 if results.failures else 0
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
