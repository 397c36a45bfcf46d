"""A master and its slave with faults under load: acknowledged messages keep their guarantee.

``make test`` plays one short run; its seed is printed, and ``REPUT_FAULT_SEED`` repeats it.
``make soak`` plays ``REPUT_FAULT_SEEDS`` seeds, with ``python -m faults.run``.
"""

import os
from pathlib import Path

import pytest

import seeds
from faults import run, steps
from faults.harness import REPUT
from faults.history import Guarantee, Rule, summary
from faults.run import Outcome
from interop import java_oracle

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SHORT_STEPS = 2
JAVA = pytest.param("5.5.0", id="5.5.0"), pytest.param("4.9.7", id="4.9.7")
PROBE_SEEDS = 3


def seed() -> int:
    return int(os.environ.get("REPUT_FAULT_SEED") or seeds.of("replication") % (1 << 31))


def assert_kept(outcome: Outcome) -> None:
    print(outcome.line())  # noqa: T201 - the seed
    text = f"{outcome.line()}\n{summary(outcome.problems)}\nagain: REPUT_FAULT_SEED={outcome.seed}"
    assert not outcome.problems, text


@pytest.fixture
def has_java() -> None:
    try:
        java_oracle.cluster_jars("4.9.7")
    except java_oracle.JavaUnavailable as reason:
        pytest.skip(f"missing java: {reason}")


async def test_a_short_run_keeps_the_guarantee(tmp_path: Path) -> None:
    assert_kept(await run.play(tmp_path, seed(), step_count=SHORT_STEPS))


@pytest.mark.soak
@pytest.mark.interop
@pytest.mark.usefixtures("has_java")
@pytest.mark.parametrize("version", JAVA)
@pytest.mark.parametrize("is_ours_first", [True, False])
async def test_a_pair_with_java_keeps_the_guarantee(
    tmp_path: Path, version: str, *, is_ours_first: bool
) -> None:
    kinds = (REPUT, version) if is_ours_first else (version, REPUT)
    assert_kept(await run.play(tmp_path, seed(), kinds))


@pytest.mark.soak
@pytest.mark.interop
@pytest.mark.usefixtures("has_java")
async def test_messages_that_a_port_probe_acknowledges_are_found_to_be_lost(tmp_path: Path) -> None:
    """The harness sees the loss by Java's master, which takes 8 bytes of anyone as a report.

    A slave's link that is stopped in one direction only loses nothing, which the seed decides.
    """
    rules = set()
    for number in range(PROBE_SEEDS):
        outcome = await run.play(
            tmp_path / f"{number}",
            number,
            ("4.9.7", "4.9.7"),
            Guarantee.SYNC,
            chosen=[steps.promote_without_link],
        )
        print(outcome.line())  # noqa: T201 - the seed
        rules |= {problem.rule for problem in outcome.problems}
    assert rules >= {Rule.LOST, Rule.REUSED, Rule.DIVERGED}


# --- plans of faults ------------------------------------------------------------------


def test_a_plan_repeats_with_its_seed() -> None:
    def names(number: int) -> list[str]:
        chance = seeds.random("plans", number)
        return [step.__name__ for step in steps.plan(chance, Guarantee.SYNC, 20)]

    assert names(1) == names(1) != names(2)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_each_plan_promotes_unless_it_must_not(guarantee: Guarantee) -> None:
    for number in range(50):
        assert set(steps.plan(seeds.random("plans", number), guarantee, 2)) & set(steps.PROMOTIONS)
        calm = steps.plan(seeds.random("plans", number), guarantee, 9, promotes=False)
        assert set(calm) <= set(steps.CALM_STEPS)


def test_no_plan_exceeds_its_guarantee() -> None:
    for number in range(200):
        chance = seeds.random("plans", number)
        plan = set(steps.plan(chance, Guarantee.ASYNC, 9))
        assert steps.promote_beside_old_master not in plan
        plan = set(steps.plan(chance, Guarantee.SYNC, 9, is_lossy=True))
        assert not plan & {steps.cut_power_of_both, steps.cut_power_of_both_and_promote}
