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

from hostile import attack, calls, requests
from hostile.call_servers import PROFILES, SIGNATURE, CallScene
from hostile.run import FAILURES_MAX, Run
from hostile.servers import Watch
from hostile.wire import outcome

SERVERS = ("broker", "proxy")
MODULE = "hostile.call_run"


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


def run(scene: CallScene, profile: str, seed: int, *, seconds: float) -> Run:
    """Play rounds for some time."""
    prepare(scene)
    results = Run(profile, seed, module=MODULE)
    begin = time.monotonic()
    number = 0
    while time.monotonic() < begin + seconds and len(results.failures) < FAILURES_MAX:
        for server in SERVERS:
            results.add(server, number, *play_round(scene, server, seed, number))
        number += 1
        results.show_progress()
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
                results = Run(arguments.profile, arguments.seed, module=MODULE)
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
