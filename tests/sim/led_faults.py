"""Faults put in by hand for brokers under a controller; see ``sim.faults``."""

from typing import Any
from unittest import mock

from reput.broker.replicas.in_sync_keeper import InSyncKeeper
from reput.broker.replicas.member import Member
from reput.broker.replicas.roles import GroupRoles
from reput.store.log.in_sync_set import InSyncSet
from reput.store.message_store import MessageStore
from sim.fault import Fault, Patch, replaced, skipped


def _shrinks_before_the_answer() -> Patch:
    async def ask(original: Any, self: Any, wanted: frozenset[int], now_ms: int) -> None:
        if not wanted >= self._mastership.in_sync:
            self._mastership = self._mastership._replace(in_sync=wanted)
            self._apply()
        await original(self, wanted, now_ms)

    return replaced(InSyncKeeper, "_ask", ask)


def _lease_for_ever() -> Patch:
    return replaced(InSyncSet, "__init__", _without_lease)


def _without_lease(original: Any, self: Any, *args: Any, **options: Any) -> None:
    original(self, *args, **{**options, "may_act_alone": lambda: True})


def _claims_are_ready_at_once() -> Patch:
    def acked(_original: Any, self: Any, broker_id: int) -> int:
        return 1 << 62

    return replaced(InSyncKeeper, "_acked", acked)


def _claimed_do_not_count() -> Patch:
    def change(original: Any, self: Any, members: Any, claimed: Any = frozenset()) -> None:
        original(self, members)

    return replaced(InSyncSet, "change", change)


def _lost_answer_is_a_refusal() -> Patch:
    async def ask(original: Any, self: Any, wanted: frozenset[int], now_ms: int) -> None:
        try:
            await original(self, wanted, now_ms)
        finally:
            self._unknown.clear()
            self._apply()

    return replaced(InSyncKeeper, "_ask", ask)


def _other_slave_acknowledges() -> Patch:
    def of_broker(_original: Any, self: Any, broker_id: int) -> Any:
        return max(
            self._replicas.replicas, key=lambda replica: replica.acked_offset or 0, default=None
        )

    def confirmed(_original: Any, self: InSyncSet, log_end: int) -> int:
        best = of_broker(None, self, 0)
        if not self.others:
            return log_end
        return min(log_end, 0 if best is None else best.acked_offset or 0)

    return replaced(InSyncSet, "confirmed", confirmed)


def _same_master_ignores_epoch() -> Patch:
    async def become(original: Any, self: GroupRoles, wanted: Any) -> None:
        if not self._host.identity.is_master:
            await original(self, wanted)

    return replaced(GroupRoles, "_become_master", become)


def _consumers_see_unconfirmed() -> Patch:
    return mock.patch.object(MessageStore, "_is_dispatch_confirmed", property(lambda _self: False))


def _slave_shows_unconfirmed() -> Patch:
    return skipped(MessageStore, "await_confirmation")


def _old_master_stays() -> Patch:
    async def become(original: Any, self: GroupRoles, wanted: Any) -> None:
        if not self._host.identity.is_master:
            await original(self, wanted)

    return replaced(GroupRoles, "_become_slave", become)


def _old_answers_are_taken() -> Patch:
    def take(original: Any, self: Member, answer: Any, in_sync_set: Any) -> None:
        self.mastership = self.mastership._replace(epoch=0, set_epoch=0)
        original(self, answer, in_sync_set)

    return replaced(Member, "_take", take)


def _never_shrinks() -> Patch:
    return skipped(InSyncKeeper, "_is_lost", False)


LED_FAULTS: dict[str, Fault] = {
    "shrinks-before-answer": Fault(
        "a master removes a slave from its set before the controller agrees",
        ("led",),
        _shrinks_before_the_answer,
    ),
    "lease-for-ever": Fault(
        "a master acknowledges alone for ever", ("led-alone",), _lease_for_ever
    ),
    "claims-too-early": Fault(
        "a slave is added before it has everything",
        ("led",),
        _claims_are_ready_at_once,
        is_found_soon=False,
    ),
    "claimed-do-not-count": Fault(
        "a slave that is being added need not have a message (rocketmq #5663)",
        ("led",),
        _claimed_do_not_count,
        is_found_soon=False,
    ),
    "lost-answer-is-refusal": Fault(
        "a request without an answer counts as refused",
        ("led",),
        _lost_answer_is_a_refusal,
        is_found_soon=False,
    ),
    "one-of-the-set": Fault(
        "one slave of the set is enough", ("led",), _other_slave_acknowledges, is_found_soon=False
    ),
    "same-master-new-epoch": Fault(
        "a master does not notice its new epoch (rocketmq #9689)",
        ("led",),
        _same_master_ignores_epoch,
    ),
    "slave-shows-unconfirmed": Fault(
        "a slave that starts shows unconfirmed messages",
        ("led",),
        _slave_shows_unconfirmed,
        scenario="led-unconfirmed",
    ),
    "consumers-see-unconfirmed": Fault(
        "messages are dispatched before the in-sync set has them",
        ("led",),
        _consumers_see_unconfirmed,
    ),
    "old-master-stays": Fault(
        "a deposed master continues (rocketmq #7017)", ("led",), _old_master_stays
    ),
    "never-shrinks": Fault("a dead slave stays in the set", ("led",), _never_shrinks),
    "old-answers": Fault(
        "an older answer about the master is taken", ("led",), _old_answers_are_taken
    ),
}
