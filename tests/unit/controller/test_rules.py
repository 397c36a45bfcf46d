"""Decisions on a group. Codes and remarks are those of Java 5.5.0 where nothing else is said."""

import pytest

from reput.controller import rules
from reput.controller.group import Group, Replica
from reput.controller.liveness import Report, Sight
from reput.controller.rules import Decision
from reput.errors import LimitExceeded
from reput.format.bodies import SyncStateSet
from reput.format.controller_headers import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    MasterHeader,
    NextBrokerIdHeader,
    RegisterAtControllerHeader,
)

NAME, CLUSTER = "broker-a", "C"
GIB = 1 << 30


def group(
    *broker_ids: int,
    master: int | None = 1,
    epoch: int = 1,
    in_sync: tuple[int, ...] | None = None,
    set_epoch: int = 1,
) -> Group:
    replicas = {key: Replica(f"10.0.0.{key}:10911", f"10.0.0.{key}:10911;1") for key in broker_ids}
    return Group(
        cluster_name=CLUSTER,
        broker_name=NAME,
        replicas=replicas,
        next_broker_id=max(broker_ids) + 1,
        master_id=master,
        master_epoch=epoch,
        in_sync=broker_ids if in_sync is None else in_sync,
        set_epoch=set_epoch,
    )


def sight(*broker_ids: int, presumed: int = 0, **reports: tuple[int, int]) -> Sight:
    """Return the living brokers; ``r2=(epoch, end)`` is the report of broker 2."""
    alive = {key: Report(f"10.0.0.{key}:10911", 1, 0) for key in broker_ids}
    for key, (epoch, end) in reports.items():
        alive[int(key[1:])] = Report(f"10.0.0.{key[1:]}:10911", epoch, end)
    return Sight(alive, frozenset({presumed} if presumed else ()))


def apply(state: Group | None, broker_id: int, code: str, cluster: str = CLUSTER) -> Decision:
    header = ApplyBrokerIdHeader(
        cluster_name=cluster,
        broker_name=NAME,
        applied_broker_id=broker_id,
        register_check_code=code,
    )
    return rules.apply_broker_id(state, header)


def alter(state: Group | None, seen: Sight, wanted: list[int], **more: int) -> Decision:
    header = AlterSyncStateSetHeader(
        broker_name=NAME,
        master_broker_id=more.get("master", 1),
        master_epoch=more.get("epoch", 1),
    )
    body = SyncStateSet(sync_state_set=wanted, sync_state_set_epoch=more.get("set_epoch", 1))
    return rules.alter_in_sync(state, seen, header, body)


def elect(
    state: Group | None,
    seen: Sight,
    broker_id: int = -1,
    *,
    designate: bool = False,
    unclean: bool = False,
) -> Decision:
    header = ElectMasterHeader(
        cluster_name=CLUSTER, broker_name=NAME, broker_id=broker_id, designate_elect=designate
    )
    return rules.elect(state, seen, header, is_unclean=unclean)


def register(
    state: Group | None, seen: Sight, broker_id: int, address: str = "", cluster: str = CLUSTER
) -> Decision:
    header = RegisterAtControllerHeader(
        cluster_name=cluster,
        broker_name=NAME,
        broker_id=broker_id,
        broker_address=address or f"10.0.0.{broker_id}:10911",
    )
    return rules.register(state, seen, header, is_unclean=False)


def clean(
    state: Group | None, seen: Sight, ids: str | None = None, *, living: bool = False
) -> Decision:
    header = CleanBrokerDataHeader(
        broker_name=NAME,
        cluster_name=CLUSTER,
        broker_controller_ids_to_clean=ids,
        is_clean_living_broker=living,
    )
    return rules.clean(state, seen, header)


def state_of(decision: Decision) -> tuple[int | None, int, tuple[int, ...], int]:
    made = decision.group
    assert made is not None
    return made.master_id, made.master_epoch, made.in_sync, made.set_epoch


# --- ids ------------------------------------------------------------------------------------------


def test_ids_begin_with_1_and_are_taken_once() -> None:
    wanted = NextBrokerIdHeader(cluster_name=CLUSTER, broker_name=NAME)
    first = rules.next_broker_id(None, wanted).answer.header
    assert first is not None
    assert first.next_broker_id == 1  # type: ignore[attr-defined]
    assert apply(None, 2, "x;1").answer.code == 2014
    made = apply(None, 1, "10.0.0.1:10911;7").group
    assert made is not None
    assert made.address(1) == "10.0.0.1:10911"
    again = apply(made, 1, "10.0.0.1:10911;7")
    assert (again.answer.code, again.group) == (0, made)
    other = apply(made, 1, "10.0.0.2:10911;7")
    assert (other.answer.code, other.group) == (2014, made)
    assert other.answer.remark == "Fail to apply brokerId: 1 in broker-set: broker-a"
    following = rules.next_broker_id(made, wanted).answer.header
    assert following.next_broker_id == 2  # type: ignore[union-attr]


def test_an_id_that_was_given_before_it_was_next_is_not_proposed() -> None:
    """Java proposes it for ever: each applicant is refused."""
    made = apply(group(1), 3, "x;1").group
    assert made is not None
    assert made.next_broker_id == 4


def test_a_cleaned_id_is_not_given_again() -> None:
    made = clean(group(1, 2), sight(1), "2").group
    assert made is not None
    assert apply(made, 2, "x;1").answer.code == 2014
    assert made.next_broker_id == 3


def test_two_groups_with_one_name_are_refused() -> None:
    state = group(1)
    header = NextBrokerIdHeader(cluster_name="D", broker_name=NAME)
    for decision in (
        rules.next_broker_id(state, header),
        apply(state, 2, "x;1", cluster="D"),
        register(state, sight(), 1, cluster="D"),
    ):
        assert decision.answer.code == 2005
        assert "is of the cluster C, not of D" in str(decision.answer.remark)
        assert decision.group is state


def test_the_number_of_replicas_is_limited() -> None:
    with pytest.raises(LimitExceeded, match="controller_replicas"):
        apply(group(*range(1, 65)), 65, "x;1")


# --- registration ---------------------------------------------------------------------------------


def test_a_broker_that_is_unknown_must_apply_for_an_id() -> None:
    assert register(None, sight(), 1).answer.code == 2010
    unknown = register(group(1), sight(), 2).answer
    assert unknown.code == 2010
    assert unknown.remark == "BrokerId: 2 hasn't been registered in broker-set: broker-a"


@pytest.mark.parametrize("seen", [sight(1, 2), sight(presumed=1)], ids=["alive", "presumed"])
def test_a_broker_learns_the_master_that_may_be_alive(seen: Sight) -> None:
    header = register(group(1, 2, in_sync=(1,)), seen, 2).answer.header
    assert isinstance(header, MasterHeader)
    assert (header.master_broker_id, header.master_address) == (1, "10.0.0.1:10911")
    assert (header.master_epoch, header.sync_state_set_epoch) == (1, 1)


def test_a_dead_master_is_not_returned() -> None:
    header = register(group(1, 2), sight(2), 2).answer.header
    assert isinstance(header, MasterHeader)
    assert header.master_broker_id is None


def test_a_broker_that_has_moved_has_a_new_address() -> None:
    made = register(group(1, 2), sight(1), 2, "10.0.0.9:10911").group
    assert made is not None
    assert made.address(2) == "10.0.0.9:10911"
    assert made.replicas[2].check_code == "10.0.0.2:10911;1"


def test_the_id_of_a_living_broker_is_refused() -> None:
    """Java replaces the address: two brokers with a copied store become one."""
    state = group(1, 2)
    decision = register(state, sight(1, 2), 2, "10.0.0.9:10911")
    assert decision.answer.code == 2014
    assert "is that of 10.0.0.2:10911, which is alive: 10.0.0.9:10911" in str(
        decision.answer.remark
    )
    assert decision.group is state


def test_a_master_that_registers_again_needs_a_new_epoch() -> None:
    """Java keeps it in its epoch, though a power cut may have cut its log."""
    decision = register(group(1, 2), sight(1, 2), 1)
    assert state_of(decision) == (2, 2, (2,), 2)
    alone = register(group(1, 2, in_sync=(1,)), sight(1, 2), 1)
    assert state_of(alone) == (None, 2, (1,), 1)
    assert state_of(elect(alone.group, sight(1, 2), 1)) == (1, 3, (1,), 2)


def test_a_replica_that_registers_again_is_in_sync_when_its_master_says_so() -> None:
    """Java lets it stay in the set, though a power cut may have cut its log."""
    assert state_of(register(group(1, 2), sight(1, 2), 2)) == (1, 1, (1,), 2)
    assert state_of(register(group(1, 2), sight(2, presumed=1), 2)) == (1, 1, (1,), 2)
    # Without a master it may be the only one that has everything.
    assert state_of(register(group(1, 2, master=None), sight(2), 2)) == (None, 1, (1, 2), 1)
    assert state_of(register(group(1, 2), sight(2), 2)) == (1, 1, (1, 2), 1)


# --- the in-sync set ------------------------------------------------------------------------------


def test_the_master_changes_the_set() -> None:
    decision = alter(group(1, 2, in_sync=(1,)), sight(1, 2), [2, 1])
    assert state_of(decision) == (1, 1, (1, 2), 2)
    assert decision.answer.body == SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=2)


REFUSALS = {
    "unchanged": ([1, 2], {}, 2013),
    "other master": ([1], {"master": 2}, 2002),
    "other epoch": ([1], {"epoch": 2}, 2000),
    "other set": ([1], {"set_epoch": 7}, 2001),
    "unknown replica": ([1, 9], {}, 2003),
    "dead replica": ([1, 3], {}, 2006),
    "without the master": ([2], {}, 2013),
    # In this order.
    "other master and epoch": ([1], {"master": 2, "epoch": 2}, 2002),
    "other epoch and set": ([1], {"epoch": 2, "set_epoch": 7}, 2000),
    "other set and unknown": ([9], {"set_epoch": 7}, 2001),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_change_of_the_set_is_refused(name: str) -> None:
    wanted, header, code = REFUSALS[name]
    state = group(1, 2, 3, in_sync=(1, 2))
    decision = alter(state, sight(1, 2), wanted, **header)
    assert (decision.answer.code, decision.group) == (code, state)


def test_the_set_of_an_unknown_group() -> None:
    assert alter(None, sight(), [1]).answer.code == 2013


# --- elections ------------------------------------------------------------------------------------


def test_the_first_broker_that_asks_is_the_first_master() -> None:
    fresh = group(1, 2, master=None, epoch=0, in_sync=(), set_epoch=0)
    assert state_of(elect(fresh, sight(r1=(-1, 0), r2=(-1, 0)), 2)) == (2, 1, (2,), 1)
    assert rules.replace_master(fresh, sight(1, 2), is_unclean=False) is fresh


def test_the_first_master_has_the_longest_log() -> None:
    """With Java an operator must start the right broker first."""
    fresh = group(1, 2, 3, master=None, epoch=0, in_sync=(), set_epoch=0)
    seen = sight(r1=(0, 0), r2=(3, 5), r3=(2, 900))
    assert state_of(elect(fresh, seen, 1)) == (2, 4, (2,), 1)
    assert state_of(elect(fresh, seen, 1, designate=True)) == (1, 4, (1,), 1)


def test_the_old_master_stays_if_it_may_be_alive() -> None:
    for seen in (sight(1, 2), Sight(sight(2).alive, frozenset({1}))):
        state = group(1, 2)
        decision = elect(state, seen, 2)
        assert (decision.answer.code, decision.group) == (2011, state)
        assert decision.answer.header == MasterHeader(
            master_broker_id=1,
            master_address="10.0.0.1:10911",
            master_epoch=1,
            sync_state_set_epoch=1,
        )
        assert rules.replace_master(state, seen, is_unclean=True) is state


def test_the_most_complete_replica_in_sync_is_elected() -> None:
    state = group(1, 2, 3, 4, in_sync=(1, 2, 3))
    seen = sight(r2=(1, 5), r3=(1, 5 + 3 * GIB), r4=(1, 9 * GIB))
    for made in (
        elect(state, seen, 2).group,
        elect(state, seen).group,
        rules.replace_master(state, seen, is_unclean=True),
    ):
        assert made is not None
        assert (made.master_id, made.master_epoch, made.in_sync) == (3, 2, (3,))


def test_the_epoch_counts_more_than_the_end_and_the_priority_less() -> None:
    state = group(1, 2, 3, epoch=5)
    assert elect(state, sight(r2=(4, 100), r3=(5, 7))).group.master_id == 3  # type: ignore[union-attr]
    preferred = {2: Report("", 5, 7, priority=9), 3: Report("", 5, 7, priority=1)}
    assert elect(state, Sight(preferred)).group.master_id == 3  # type: ignore[union-attr]
    equal = {3: Report("", 5, 7), 2: Report("", 5, 7)}
    assert elect(state, Sight(equal)).group.master_id == 2  # type: ignore[union-attr]


def test_an_operator_chooses_among_those_in_sync() -> None:
    state = group(1, 2, 3, in_sync=(1, 2))
    seen = sight(1, 2, 3)
    assert state_of(elect(state, seen, 2, designate=True)) == (2, 2, (2,), 2)
    assert elect(state, seen, 1, designate=True).answer.code == 2011
    refused = elect(state, seen, 3, designate=True)
    assert (refused.answer.code, refused.group) == (2012, state)
    assert state_of(elect(state, seen, 3, designate=True, unclean=True)) == (3, 2, (3,), 2)


def test_no_other_replica_is_elected_unless_that_is_allowed() -> None:
    state = group(1, 2, 3, in_sync=(1,))
    seen = sight(r2=(1, 5), r3=(1, 9))
    decision = elect(state, seen, 3)
    assert (decision.answer.code, decision.group) == (2012, state)
    waiting = rules.replace_master(state, seen, is_unclean=False)
    assert state_of(Decision(waiting)) == (None, 2, (1,), 1)
    assert rules.replace_master(waiting, seen, is_unclean=False) is waiting  # not once more
    returned = rules.replace_master(waiting, sight(1, 2, 3), is_unclean=False)
    assert state_of(Decision(returned)) == (1, 3, (1,), 2)
    assert state_of(elect(waiting, seen, 2, unclean=True)) == (3, 3, (3,), 2)
    assert "broker 3, whose log ends at 9 in epoch 1" in rules.unclean_loss(waiting, seen)


def test_an_unknown_broker_is_not_elected() -> None:
    assert elect(None, sight(), 1).answer.code == 2010
    fresh = elect(group(1, master=None, epoch=0, in_sync=()), sight(), 5)
    assert (fresh.answer.code, fresh.answer.remark) == (2012, "Failed to elect a new master")
    assert elect(group(1, 2), sight(1, 2), 7, designate=True).answer.code == 2012


def test_logs_of_a_later_epoch_stop_elections_until_an_operator_decides() -> None:
    state = group(1, 2, epoch=3)
    seen = sight(r2=(7, 100))
    refused = elect(state, seen, 2)
    assert (refused.answer.code, refused.group) == (2012, state)
    assert "is of epoch 7, but this controller knows no epoch after 3" in str(refused.answer.remark)
    assert rules.replace_master(state, seen, is_unclean=True).master_id is None
    assert state_of(elect(state, seen, 2, designate=True)) == (2, 8, (2,), 2)
    # Also the same master, which would not take a smaller epoch.
    again = elect(group(1, epoch=3), sight(r1=(7, 100)), 1, designate=True)
    assert state_of(again) == (1, 8, (1,), 2)


# --- cleaning -------------------------------------------------------------------------------------


def test_the_living_are_not_cleaned() -> None:
    state = group(1, 2)
    alive = clean(state, sight(1, 2), "2")
    assert (alive.answer.code, alive.group) == (2009, state)
    assert alive.answer.remark == "Broker [broker-a,  2] is still alive, clean up failure"
    assert clean(state, sight(), None).answer.code == 2009  # it has a master
    assert clean(state, sight(), "2;x").answer.code == 2009
    assert clean(None, sight(), "2").answer.code == 2009


def test_some_replicas_are_cleaned_and_the_others_stay() -> None:
    """Java forgets the whole group with -l, and its epochs if no replica in sync is left."""
    assert state_of(clean(group(1, 2, 3), sight(1), "2;3")) == (1, 1, (1,), 2)
    master = clean(group(1, 2, in_sync=(1,)), sight(1, 2), "1", living=True)
    assert state_of(master) == (None, 2, (), 2)
    assert clean(group(1, 2), sight(1), "1;2", living=True).group is None
    state = group(1, 2)
    assert clean(state, sight(), "9") == Decision(state)


def test_a_group_without_a_master_is_forgotten() -> None:
    assert clean(group(1, master=None), sight(), None) == Decision(None)
    assert clean(group(1), sight(1), None, living=True) == Decision(None)
