"""Play scenarios of a simulated cluster; a seed decides everything.

    cd tests
    python -m sim.run --seed 7                      # one random scenario, and its lines
    python -m sim.run --seeds 100                   # many of them, from today's seed on
    python -m sim.run sim/scenarios/promote.txt     # a scenario from a file
    python -m sim.run --elections --seeds 100       # a controller with scripted brokers
    python -m sim.run --seed 7 --log --trace /tmp/trace.txt

Prints a line for each seed that breaks a rule, with the command that repeats it. The exit code is 1
if there is one.
"""

import argparse
import contextlib
import gc
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import seeds
from faults.history import Problem
from reput.errors import ReputError
from sim.check import Fact, summary
from sim.cluster import Cluster
from sim.electorate import Electorate, plan as plan_elections
from sim.led import LedCluster
from sim.loop import Loop
from sim.plan import OPERATIONS, plan
from sim.trace import Trace
from sim.words import ScenarioError


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    lines: Sequence[str]
    problems: list[Problem | Fact]
    digest: str
    operations: int
    virtual_s: float
    cpu_s: float
    callbacks: int

    def repeated_by(self, name: str = "") -> str:
        """Return the command that repeats the run."""
        kind = ["--elections"] if world_of(self.lines) is Electorate else []
        return " ".join(
            ["python -m sim.run", *([name] if name else []), *kind, f"--seed {self.seed}"]
        )


class _Errors(logging.Handler):
    """Collects errors that a program reports as its own: those with another cause are no faults."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ReputError | OSError):
            self.texts.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """Collect the errors of the log."""
    errors, root = _Errors(), logging.getLogger()
    level = root.level
    root.addHandler(errors)
    if level == logging.WARNING:  # the default
        root.setLevel(logging.ERROR)
    try:
        yield errors.texts
    finally:
        root.removeHandler(errors)
        root.setLevel(level)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder the working folder: paths, which frames contain, are relative to it."""
    before = Path.cwd()
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir=memory if memory.is_dir() else None))
    os.chdir(folder)
    try:
        yield Path()
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def world_of(lines: Sequence[str]) -> type[Cluster] | type[Electorate]:
    """Return what a scenario is about, which its first word says."""
    words = next((line.split() for line in lines if line.split("#")[0].split()), [])
    if words[:1] == ["group"]:
        return Electorate
    return LedCluster if words[1:2] and words[1].startswith("led") else Cluster


def play(
    seed: int,
    lines: Sequence[str],
    trace: Path | None = None,
) -> Outcome:
    """Play a scenario; return what it broke.

    Args:
        seed: Source of all choices that the lines leave open.
        lines: The scenario.
        trace: File for the lines of the trace.
    """
    begun_s = time.process_time()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_alone(seed))
        lines_file = stack.enter_context(trace.open("w")) if trace is not None else None
        errors = stack.enter_context(_listening())
        folder = stack.enter_context(_folder())
        chance = random.Random(seed)
        loop = Loop(chance, Trace(lines_file))
        loop.work_s = chance.choice((1e-6, 1e-6, 1e-4, 1e-3))
        cluster = world_of(lines)(loop, chance, folder)
        problems: list[Problem | Fact]
        try:
            loop.run(cluster.play(lines))
            problems = cluster.judge([*errors, *cluster.failures()])
        except (ScenarioError, ReputError, RuntimeError, AssertionError, OSError) as error:
            problems = [Fact("stopped", f"{type(error).__name__}: {error}")]
            problems += [Fact("broken", text) for text in errors]
        finally:
            cluster.release()
            loop.release()
        return Outcome(
            seed,
            lines,
            problems,
            loop.trace.digest(),
            cluster.operations,
            loop.now,
            time.process_time() - begun_s,
            loop.steps,
        )


@contextlib.contextmanager
def _alone(seed: int) -> Iterator[None]:
    """Seed the module ``random``, and release what a run leaves only at its end.

    Killed programs are never released while the run lasts: their code would run.
    """
    state, is_collecting, hook = random.getstate(), gc.isenabled(), sys.unraisablehook
    random.seed(seed)
    gc.disable()
    gc.freeze()  # so that a collection does not look at what was there before
    try:
        yield
    finally:
        sys.unraisablehook = lambda _: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
        sys.unraisablehook = hook
        gc.unfreeze()
        if is_collecting:
            gc.enable()
        random.setstate(state)


def main() -> int:
    """Run some seeds; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("scenario", nargs="?", type=Path, help="a file; by default random ones")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--first", type=int, help="first seed; by default that of today")
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="operations of a run")
    parser.add_argument("--trace", type=Path, help="file for the trace of one seed")
    parser.add_argument("--log", action="store_true", help="show the log of all programs")
    parser.add_argument(
        "--elections", action="store_true", help="a controller and scripted brokers instead"
    )
    parser.add_argument("--kind", help="kind of the clusters, as led; by default any")
    options = parser.parse_args()
    if options.log:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    if options.seed is not None:
        played: Sequence[int] = [options.seed]
    else:
        first = options.first if options.first is not None else seeds.today()
        played = range(first, first + options.seeds)
    outcomes = Totals()
    for seed in played:
        if options.scenario is not None:
            lines = options.scenario.read_text(encoding="utf-8").splitlines()
        else:
            lines = plan(seed, options.operations, kind=options.kind)
            if options.elections:
                lines = plan_elections(seed)
        outcome = play(seed, lines, options.trace)
        outcomes.add(outcome)
        if options.seed is not None:
            _print("\n".join(lines))
            _print(f"trace {outcome.digest}, {outcome.operations} operations,")
            _print(f"{outcome.virtual_s:.1f} s of virtual time in {outcome.cpu_s:.2f} s")
        if outcome.problems:
            name = str(options.scenario or "")
            _print(f"seed {seed} BROKEN; repeat: {outcome.repeated_by(name)}")
            _print(summary(outcome.problems))
        if outcomes.count % 100 == 0:
            _print(outcomes.text())
    _print(outcomes.text())
    return int(bool(outcomes.broken))


class Totals:
    """Sums of many runs."""

    def __init__(self) -> None:
        self.count = self.operations = 0
        self.virtual_s = self.cpu_s = 0.0
        self.broken: list[int] = []

    def add(self, outcome: Outcome) -> None:
        """Add a run."""
        self.count += 1
        self.operations += outcome.operations
        self.virtual_s += outcome.virtual_s
        self.cpu_s += outcome.cpu_s
        if outcome.problems:
            self.broken.append(outcome.seed)

    def text(self) -> str:
        """Return the sums."""
        ratio = self.virtual_s / self.cpu_s if self.cpu_s else 0
        return (
            f"{self.count} seeds, {len(self.broken)} broken; {self.operations} operations, "
            f"{self.virtual_s:.0f} s of virtual time in {self.cpu_s:.0f} s of a core: "
            f"{ratio:.0f} times as fast"
        )


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
