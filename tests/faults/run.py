"""Run a pair of brokers with faults under load, and check the history; a seed decides everything.

    cd tests
    python -m faults.run --seeds 20                        # ours and ours, all guarantees
    python -m faults.run --seeds 20 --guarantee sync
    python -m faults.run --seeds 5 --pair reput 5.5.0      # our master, Java's slave
    python -m faults.run --first 7 --seeds 1 --keep /tmp/run7 --steps promote kill_slave

Prints a line for each seed; the exit code is 1 if a run breaks a rule. The faults and their
durations follow from the seed; the speed of the machine decides how many messages pass meanwhile.
"""

import argparse
import asyncio
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults import steps as faults
from faults.harness import QUEUE_COUNT, REPUT, Pair, Settings, StartFailure, text_of
from faults.history import Expectation, Fault, Guarantee, History, Problem, Rule, Status, summary
from faults.steps import Run, Step
from faults.traffic import Traffic
from reput.errors import ReputError

RUN_S = 90.0
"""Maximum duration of a run."""
JAVA_RUN_S = 240.0
"""The same with Java's brokers."""
STEP_COUNT = 4
JAVA_STEP_COUNT = 2
"""Faults of a run with Java's brokers, which start, stop and connect in seconds each."""
CALM_S = (0.5, 2.0)
HEAL_S = 25.0
OFFSET_PERIOD_MS = {REPUT: 12_000, "4": 12_000, "5": 62_000}
"""Time after which a slave has its master's consumer offsets, by kind of slave."""


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    pair: str
    guarantee: Guarantee
    steps: list[str]
    history: History
    problems: list[Problem]
    took_s: float
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the summary line."""
        statuses = self.history.statuses()
        counts = " ".join(f"{name}={count}" for name, count in sorted(statuses.items()))
        state = "ok" if not self.problems else "BROKEN"
        if self.problems:
            broken = Counter(str(problem.rule) for problem in self.problems)
            state += " " + " ".join(f"{rule}:{count}" for rule, count in broken.items())
        lost = len(self.history.lost_keys())
        text = f"seed {self.seed} {self.pair} {self.guarantee}: {state}; {counts};"
        text += f" {len(self.history.reads)} reads, {lost} lost, {self.took_s:.0f} s;"
        return " ".join([text, ", ".join(self.steps), *(f"[{note}]" for note in self.notes)])


def guarantee_of(seed: int, kinds: tuple[str, str]) -> Guarantee:
    """Return the guarantee that a seed checks. Java's brokers have no ``Guarantee.DISK``."""
    if set(kinds) != {REPUT}:
        return Guarantee.SYNC
    return (Guarantee.SYNC, Guarantee.SYNC, Guarantee.ASYNC, Guarantee.DISK)[seed % 4]


def offset_period_ms(kinds: Sequence[str]) -> int:
    """Return the longest time that a node of these kinds takes to copy offsets."""
    return max(OFFSET_PERIOD_MS[kind if kind == REPUT else kind[0]] for kind in kinds)


async def play(
    folder: Path,
    seed: int,
    kinds: tuple[str, str] = (REPUT, REPUT),
    guarantee: Guarantee = Guarantee.SYNC,
    *,
    step_count: int | None = None,
    chosen: Sequence[Step] = (),
    promotes: bool = True,
    is_lossy: bool = False,
    diverged_policy: str = "truncate",
    settings: Settings | None = None,
    limit_s: float | None = None,
) -> Outcome:
    """Run a pair with faults, heal it, and check its history.

    Args:
        folder: Folder for all files; kept if the run breaks a rule.
        seed: Seed of all choices.
        kinds: Kinds of master and slave.
        guarantee: The guarantee that is checked.
        step_count: Number of faults.
        chosen: Faults to play, instead of random ones.
        promotes: Whether the slave is promoted at least once; if not, it never is.
        is_lossy: Whether most faults are power cuts.
        diverged_policy: What a slave of ours does whose log differs from its master's; with
            "refuse" it is rebuilt.
        settings: Further settings of the brokers.
        limit_s: Time limit of the run; by default, that of its kinds.
    """
    chance = random.Random(seed)
    is_ours = set(kinds) == {REPUT}
    if step_count is None:
        step_count = STEP_COUNT if is_ours else JAVA_STEP_COUNT
    if limit_s is None:
        limit_s = RUN_S if is_ours else JAVA_RUN_S
    steps = list(chosen) or faults.plan(
        chance, guarantee, step_count, promotes=promotes, is_lossy=is_lossy
    )
    start_s = time.monotonic()

    def clock() -> int:
        return int((time.monotonic() - start_s) * 1000)

    history = History(guarantee, sync_period_ms=offset_period_ms(kinds))
    outcome = Outcome(
        seed, "-".join(kinds), guarantee, [step.__name__ for step in steps], history, [], 0.0
    )
    stage = "start"
    logs = ""
    try:
        async with (
            asyncio.timeout(limit_s),
            Pair(
                folder,
                kinds,
                chance,
                guarantee,
                settings,
                is_lossy=is_lossy,
                diverged_policy=diverged_policy,
            ) as pair,
        ):
            try:
                history.replicas = [node.name for node in pair.nodes]
                traffic = Traffic(pair, history, random.Random(chance.random()), clock)
                run = Run(pair, traffic, history, chance, clock, probes_java=REPUT not in kinds)
                history.faults.append(Fault("start", 0, clock()))
                history.expectations.append(Expectation("start", clock(), faults.SERVE_AGAIN_MS))
                stage = "first synchronisation"
                await traffic.send("first", pair.master)
                if not await pair.wait_in_sync(HEAL_S):
                    outcome.notes.append("never in sync")
                traffic.start()
                try:
                    await run.last(*CALM_S)
                    for step in steps:
                        stage = step.__name__
                        if step in faults.PROMOTIONS or chance.random() < 0.6:
                            await pair.wait_in_sync_under_load()
                        await faults.play(run, step)
                        await run.last(*CALM_S)
                    stage = "heal"
                    await _serve_again(run)
                finally:
                    await traffic.stop()
                await _settle(run, outcome)
                if pair.rebuilt_count:
                    outcome.notes.append(f"{pair.rebuilt_count} rebuilt")
                if guarantee.may_lose_end and not is_lossy and diverged_policy == "truncate":
                    outcome.problems += _not_kept(pair, history)
            except BaseException:
                logs = _logs(pair)
                raise
            if not history.logs:
                logs = _logs(pair)
        outcome.problems += history.check()
    except (TimeoutError, ReputError, *StartFailure) as error:
        outcome.problems.append(Problem(Rule.LATE, f"{stage}: {text_of(error)}"[:4000]))
    outcome.took_s = time.monotonic() - start_s
    if outcome.problems:
        history.save(folder / "history.jsonl")
        (folder / "problems.txt").write_text(f"{summary(outcome.problems)}\n{logs}\n")
    return outcome


def _logs(pair: Pair) -> str:
    return "\n".join(f"=== {node.name} ({node.kind})\n{node.log()}" for node in pair.nodes)


async def _serve_again(run: Run) -> None:
    """Wait until sends succeed after the last fault, or until their time is over."""
    expected = run.history.expectations[-1]
    while run.clock() < expected.start_ms + expected.within_ms:
        if any(
            send.status is Status.OK and send.ended_ms >= expected.start_ms
            for send in reversed(run.history.sends[-200:])
        ):
            return
        await asyncio.sleep(0.1)


async def _settle(run: Run, outcome: Outcome) -> None:
    """Wait until both replicas are equal, and read everything from both."""
    pair, history = run.pair, run.history
    with_offsets = list(pair.nodes)
    if not await pair.wait_in_sync(HEAL_S):
        slave = pair.slave
        ends = [await pair.log_ends(node) for node in pair.nodes]
        outcome.notes.append(f"ends {ends}")
        if not slave.is_ours and not pair.master.is_ours:
            pass  # What Java's pair does with its logs is the result.
        elif not slave.is_ours:
            # Java's slave cannot cut its log: its operator copies the master.
            outcome.notes.append(f"rebuilt {slave.kind}")
            await pair.rebuild(slave)
            with_offsets.remove(slave)  # it copies them a minute later
            if not await pair.wait_in_sync(HEAL_S):
                outcome.notes.append("still not in sync")
    history.term = pair.term
    for node in pair.nodes:
        await run.traffic.read_all(node)
        for queue_id in range(QUEUE_COUNT):
            if node in with_offsets:
                await run.traffic.observe(node, queue_id)
        history.logs.append(await asyncio.to_thread(node.log_copy, *await pair.log_ends(node)))


def _not_kept(pair: Pair, history: History) -> list[Problem]:
    """Return the lost messages whose bytes no broker kept when it cut its log."""
    folders = [node.store / "cut" for node in pair.nodes]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    kept = b"".join(file.read_bytes() for file in files)
    return [
        Problem(Rule.LOST, f"{key} is in no folder of cut bytes")
        for key in sorted(history.lost_keys())
        if b"KEYS\x01%b\x02" % key.encode() not in kept
    ]


# --- the command --------------------------------------------------------------------------


def main() -> int:
    """Run some seeds; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--pair", nargs=2, default=[REPUT, REPUT], metavar=("MASTER", "SLAVE"))
    parser.add_argument(
        "--guarantee", choices=list(Guarantee), help="by default the seed chooses it"
    )
    parser.add_argument("--faults", type=int, help="number of faults of a run")
    parser.add_argument("--diverged", choices=["refuse", "truncate"], default="truncate")
    parser.add_argument("--calm", action="store_true", help="never promote the slave")
    parser.add_argument("--power", action="store_true", help="most faults are power cuts")
    parser.add_argument("--steps", nargs="*", default=[], help="faults to play, by name")
    parser.add_argument("--keep", type=Path, help="folder for the files of broken runs")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    broken = 0
    for seed in itertools.islice(itertools.count(options.first), options.seeds):
        folder = root / f"{seed}"
        kinds = tuple(options.pair)
        guarantee = Guarantee(options.guarantee) if options.guarantee else guarantee_of(seed, kinds)
        is_ours = set(kinds) == {REPUT}
        outcome = asyncio.run(
            play(
                folder,
                seed,
                kinds,
                guarantee,
                step_count=options.faults,
                promotes=not options.calm,
                diverged_policy=options.diverged,
                is_lossy=is_ours
                and (options.power or seed % 8 == 7 or guarantee is Guarantee.DISK),
                chosen=[getattr(faults, name) for name in options.steps],
            )
        )
        print(outcome.line(), flush=True)  # noqa: T201 - a command
        if outcome.problems:
            broken += 1
            print(summary(outcome.problems), flush=True)  # noqa: T201 - a command
            if options.keep:
                shutil.copytree(folder, options.keep / folder.name, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(root, ignore_errors=True)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
