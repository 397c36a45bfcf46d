"""A cluster in one process on virtual time: scenarios, random runs, and faults put in by hand.

A seed that fails is played again by ``cd tests && python -m sim.run --seed N``.
"""

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

import seeds
from sim.check import summary
from sim.faults import FAULTS, search
from sim.plan import plan
from sim.run import Outcome, play

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
PARTS, SEEDS_PER_PART = 10, 10
FAULTS_PER_DAY = 3
FAULT_SEEDS = 40
"""Seeds in which a fault of the day must be found; ``make sim-faults`` tries all with more."""
DAY = datetime.datetime.now(datetime.UTC).toordinal()

pytestmark = pytest.mark.slow


def check(outcome: Outcome, name: str = "") -> None:
    text = "\n".join(outcome.lines)
    repeat = f"cd tests && {outcome.repeated_by(name)}"
    assert not outcome.problems, f"{repeat}\n{text}\n{summary(outcome.problems)}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    check(play(seeds.today(), lines), f"sim/scenarios/{path.name}")


@pytest.mark.parametrize("part", range(PARTS))
def test_random_runs(part: int) -> None:
    first = seeds.today() + part * SEEDS_PER_PART
    for seed in range(first, first + SEEDS_PER_PART):
        check(play(seed, plan(seed)))


@pytest.mark.parametrize("kind", ["lone", "disk", "three", "led"])
def test_an_equal_seed_has_an_equal_trace(kind: str) -> None:
    """Also in another process, whose sets of texts have another order."""
    seed = seeds.today()
    outcome = play(seed, plan(seed, kind=kind))
    code = (
        "import sys; from sim.plan import plan; from sim.run import play;"
        "print(play(int(sys.argv[1]), plan(int(sys.argv[1]), kind=sys.argv[2])).digest)"
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4711",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    other = subprocess.run(
        [sys.executable, "-c", code, str(seed), kind],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert other.stdout.strip() == outcome.digest, f"seed {seed}"


def test_another_seed_has_another_trace() -> None:
    lines = ["cluster lone", "traffic 10", "advance 2s", "check"]
    assert play(1, lines).digest != play(2, lines).digest


@pytest.mark.parametrize("number", range(FAULTS_PER_DAY))
def test_a_fault_put_in_by_hand_is_found(number: int) -> None:
    """Each day some others."""
    names = sorted(name for name, fault in FAULTS.items() if fault.is_found_soon)
    name = names[(DAY * FAULTS_PER_DAY + number) % len(names)]
    seed = seeds.today()
    result = search(name, seed, FAULT_SEEDS)
    assert result is not None, f"cd tests && python -m sim.faults {name} --first {seed}"


def test_an_unknown_word_is_refused() -> None:
    outcome = play(1, ["cluster lone", "explode a"])
    assert "no such word" in summary(outcome.problems)
