"""A controller and scripted brokers on virtual time: random runs, and faults put in by hand.

A seed that fails is played again by ``cd tests && python -m sim.run --elections --seed N``.
"""

import datetime

import pytest

import seeds
from sim.check import summary
from sim.election_faults import FAULTS, search
from sim.electorate import KINDS, plan
from sim.run import Outcome, play

PARTS, SEEDS_PER_PART = 4, 25
FAULT_SEEDS = 150
"""Seeds in which a fault of the day must be found; ``make sim-faults`` tries all with more."""
FAULTS_PER_DAY = 3
DAY = datetime.datetime.now(datetime.UTC).toordinal()

pytestmark = pytest.mark.slow


def check(outcome: Outcome) -> None:
    text = "\n".join(outcome.lines)
    repeat = f"cd tests && {outcome.repeated_by()}"
    assert not outcome.problems, f"{repeat}\n{text}\n{summary(outcome.problems)}"


@pytest.mark.parametrize("part", range(PARTS))
def test_random_runs(part: int) -> None:
    first = seeds.today() + part * SEEDS_PER_PART
    for seed in range(first, first + SEEDS_PER_PART):
        check(play(seed, plan(seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_an_equal_seed_has_an_equal_trace(kind: str) -> None:
    seed = seeds.today()
    digests = {play(seed, plan(seed, kind=kind)).digest for _ in range(2)}
    assert len(digests) == 1, f"seed {seed}"


@pytest.mark.parametrize("number", range(FAULTS_PER_DAY))
def test_a_fault_put_in_by_hand_is_found(number: int) -> None:
    """Each day some others."""
    names = sorted(FAULTS)
    name = names[(DAY * FAULTS_PER_DAY + number) % len(names)]
    seed = seeds.today()
    result = search(name, seed, FAULT_SEEDS)
    assert result is not None, f"cd tests && python -m sim.election_faults {name} --first {seed}"


def test_an_unknown_word_is_refused() -> None:
    outcome = play(1, ["group two", "explode a"])
    assert "no such word" in summary(outcome.problems)
