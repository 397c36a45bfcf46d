"""Run a seventh of the long suites, chosen by the weekday; ``make nightly``.

    python scripts/nightly.py [--day 0..6] [--list]

Seven nights in a row run all that these targets run: ``TARGETS``. Tests are divided by a hash of
their file's path, so that a new file moves no other one to another night. Runs that last a given
time, or play a number of seeds or mutants, do a seventh of it each night. ``make spark-versions``,
which needs separate environments, runs on Sundays.
"""

import argparse
import datetime
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("soak", "faults", "hostile", "interop-all", "spark-versions", "mutants")
"""The long targets of the Makefile."""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FAULT_SEEDS = 200
HOSTILE_S = 3600
PYTEST = (sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadgroup")
NEEDS = {"REPUT_TEST_NEEDS": "java,kernels,etcd"}
IN_BACKGROUND = ("sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh")


@dataclass(frozen=True, slots=True)
class Part:
    """A command of a night.

    Args:
        target: The long target that it is a part of.
        command: The command, in the project's folder.
        variables: Environment variables that it gets.
        files: Files of tests, which are its last arguments.
    """

    target: str
    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[str] = ()

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.variables.items()]
        shown = [f"{len(self.files)} files of tests"] if self.files else []
        return " ".join([f"{self.target}:", *words, *self.command, *shown])


def test_paths(tests: Path) -> list[str]:
    """Return the files of tests below a folder, as paths from the project's folder."""
    return sorted(path.relative_to(tests.parent).as_posix() for path in tests.rglob("test_*.py"))


def night_of(path: str) -> int:
    """Return the weekday of a file of tests: 0 is Monday."""
    return zlib.crc32(path.encode()) % len(DAYS)


def parts(day: int, paths: Sequence[str], seed: int) -> Iterator[Part]:
    """Yield the commands of a night.

    Args:
        day: Weekday, 0 is Monday.
        paths: What ``test_paths`` returns.
        seed: The seed of the day.
    """
    own = [path for path in paths if night_of(path) == day]
    soak = {"REPUT_SOAK": "1", **NEEDS}
    # Tests with Java and hostile clients get their turn below.
    long = [path for path in own if not path.startswith("tests/interop/")]
    yield Part("soak", (*PYTEST, "--hypothesis-profile=soak"), soak, long)
    broker = [path for path in own if path.startswith("tests/unit/broker/")]
    if broker:
        yield Part("soak", PYTEST, {"REPUT_TEST_FAST_PATH": "off"}, broker)
    tools = [path for path in own if path.startswith(("tests/unit/cli/", "tests/docs/"))]
    if tools:
        yield Part("soak", (*IN_BACKGROUND, *PYTEST), {}, tools)
    yield Part("interop-all", (*PYTEST, "-m", "interop"), {"REPUT_INTEROP": "all", **NEEDS}, own)
    count = -(-FAULT_SEEDS // len(DAYS))
    play = ("--first", str(seed * 1000), "--seeds", str(count))
    yield Part("faults", ("make", "faults", f"FAULT_OPTIONS={' '.join(play)}"))
    seconds = {"REPUT_HOSTILE_SECONDS": str(-(-HOSTILE_S // len(DAYS)))}
    yield Part("hostile", ("make", "hostile"), seconds)
    # The later stages are the tests of the other parts.
    play_mutants = ("run", "--last", "package", "--day", str(day))
    yield Part("mutants", (sys.executable, "scripts/mutants.py", *play_mutants))
    if day == len(DAYS) - 1:
        yield Part("spark-versions", ("make", "spark-versions"))


def main(words: list[str]) -> int:
    """Run the night; return 1 if one of its commands failed."""
    now = datetime.datetime.now(datetime.UTC)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--day", type=int, choices=range(len(DAYS)), default=now.weekday())
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    arguments = parser.parse_args(words)
    seed = int(os.environ.get("REPUT_SEED") or f"{now:%Y%m%d}")
    failed = []
    for part in parts(arguments.day, test_paths(ROOT / "tests"), seed):
        print(f"{DAYS[arguments.day]}, {part}", flush=True)
        if not arguments.list:
            environment = {**os.environ, "REPUT_SEED": str(seed), **part.variables}
            command = [*part.command, *part.files]
            code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
            # 5: no test of these files is marked.
            if code not in (0, 5):
                failed.append(part)
    for part in failed:
        print(f"failed: {part}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
