"""Faults of controllers, put in by hand: the simulation must find each of them.

python -m sim.election_faults                 # all of them, up to 300 seeds each
python -m sim.election_faults early-answer    # some, by name
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import seeds
from reput.controller import etcd_quorum, group as codec, rules
from reput.controller.elections import Elections
from reput.controller.etcd_client import Compare, Transaction
from reput.controller.etcd_quorum import EtcdQuorum
from reput.controller.file_quorum import FileQuorum
from reput.controller.group import Group
from reput.controller.groups import Groups
from reput.controller.liveness import Liveness, Sight
from reput.errors import ReputError
from sim.electorate import plan
from sim.faults import Patch, both, replaced, skipped
from sim.replica import StateDisk
from sim.run import play

SEEDS_MAX = 300


def _early_answer() -> Patch:
    """Answer while the change is still being written."""

    async def compare_and_set(
        original: Any, self: Any, key: str, value: Any, *, revision: int, fence: int
    ) -> int:
        self._late = getattr(self, "_late", 0) + 1
        work = original(self, key, value, revision=self._known(key), fence=fence)
        asyncio.get_running_loop().create_task(_quietly(work))
        return 1_000 + self._late

    async def _quietly(work: Any) -> None:
        await asyncio.sleep(0.5)
        with contextlib.suppress(ReputError):  # it was answered already
            await work

    def known(self: Any, key: str) -> int:
        entry = self._entries.get(key)
        return 0 if entry is None else int(entry.revision)

    patch = mock.patch.object(FileQuorum, "_known", known, create=True)
    return both(patch, replaced(FileQuorum, "compare_and_set", compare_and_set))


def _without_sync() -> Patch:
    return both(skipped(StateDisk, "sync_file"), skipped(StateDisk, "sync_folder"))


def _always_unclean() -> Patch:
    def elected(original: Any, group: Group, seen: Sight, wanted: Any, *, is_unclean: bool) -> Any:
        return original(group, seen, wanted, is_unclean=True)

    return replaced(rules, "_elected", elected)


def _master_keeps_its_epoch() -> Patch:
    """Answer a master that registers again as Java does."""

    def register(original: Any, group: Any, seen: Sight, header: Any, *, is_unclean: bool) -> Any:
        if group is None or header.broker_id != group.master_id:
            return original(group, seen, header, is_unclean=is_unclean)
        with mock.patch.object(rules, "replace_master", lambda kept, *_, **__: kept):
            return original(group, seen, header, is_unclean=is_unclean)

    return replaced(rules, "register", register)


def _slave_stays_in_sync() -> Patch:
    """Leave a replica in the set that registers again, as Java does."""

    def register(original: Any, group: Any, seen: Sight, header: Any, *, is_unclean: bool) -> Any:
        if group is None or header.broker_id == group.master_id:
            return original(group, seen, header, is_unclean=is_unclean)
        decision = original(group, seen, header, is_unclean=is_unclean)
        kept = group if decision.group is not None and not decision.answer.code else decision.group
        return decision._replace(group=kept)

    return replaced(rules, "register", register)


def _same_epoch() -> Patch:
    def with_master(original: Any, self: Group, broker_id: Any, epoch: int, *rest: Any) -> Any:
        return original(self, broker_id, max(1, epoch - 1), *rest)

    return replaced(Group, "with_master", with_master)


def _follower_elects() -> Patch:
    """Elect when any broker dies (rmq #8380)."""

    def close(original: Any, self: Liveness, connection: object) -> Any:
        names = original(self, connection)
        for name in names:
            for entry in self._entries.get(name, {}).values():
                entry.seen_ms = -(1 << 40)
        return names

    return replaced(Liveness, "close", close)


def _silence_is_life() -> Patch:
    return mock.patch("reput.controller.liveness._is_alive", return_value=True)


def _old_master_changes_the_set() -> Patch:
    def refusal(original: Any, group: Group, seen: Sight, header: Any, body: Any) -> Any:
        return None

    return replaced(rules, "_alter_refusal", refusal)


def _forgotten_lease() -> Patch:
    def leads(original: Any, self: EtcdQuorum, fence: int) -> bool:
        return fence == self._fence != 0

    return replaced(EtcdQuorum, "leads", leads)


def _without_fence() -> Patch:
    """Change values without the condition that the leader's key is still the leader's."""

    def transaction(*, compare: Any = (), **steps: Any) -> Transaction:
        kept = [item for item in compare if not (_is_of_leader(item) and item.mod_revision)]
        return Transaction(compare=kept, **steps)

    return mock.patch.object(etcd_quorum, "Transaction", transaction)


def _without_revision() -> Patch:
    """Change values without the condition that they are those which were read."""

    def transaction(*, compare: Any = (), **steps: Any) -> Transaction:
        kept = [item for item in compare if item.target != "MOD" or _is_of_leader(item)]
        return Transaction(compare=kept, **steps)

    return mock.patch.object(etcd_quorum, "Transaction", transaction)


def _is_of_leader(condition: Compare) -> bool:
    return condition.key.endswith(b"/leader")


def _no_doubt() -> Patch:
    """Keep the fencing number after a lost answer: the change may be made later."""
    return mock.patch.object(
        EtcdQuorum, "_is_in_doubt", property(lambda _: False, lambda *_: None), create=True
    )


async def _leads_from_memory(original: Any, self: Groups) -> None:
    self._fence = await self._store.lead()


FAULTS: dict[str, tuple[str, Callable[[], Patch]]] = {
    "early-answer": ("an election is answered before it is durable", _early_answer),
    "without-sync": ("the state is not synced", _without_sync),
    "always-unclean": ("a replica that is not in sync is elected", _always_unclean),
    "same-epoch": ("a new master has the old epoch", _same_epoch),
    "master-keeps-epoch": ("a master that lost power continues", _master_keeps_its_epoch),
    "slave-stays-in-sync": ("a slave that lost power stays in sync", _slave_stays_in_sync),
    "follower-elects": ("the end of a connection kills all brokers", _follower_elects),
    "silence-is-life": ("a silent master is alive for ever", _silence_is_life),
    "set-of-anybody": ("anybody changes the set", _old_master_changes_the_set),
    "not-presumed": (
        "after a start, a master that was not heard yet is dead",
        lambda: skipped(Elections, "presume"),
    ),
    "slept": (
        "the controller's own sleep is the silence of all",
        lambda: replaced(Elections, "now_ms", lambda _original, self: self._clock.monotonic_ms()),
    ),
    "no-look": (
        "a dead master is noticed only when its connection ends",
        lambda: skipped(Elections, "check_all"),
    ),
    "forgotten-lease": ("a leader answers after the end of its lease", _forgotten_lease),
    "without-fence": ("a deposed leader changes groups", _without_fence),
    "without-revision": ("a change replaces one that was not read", _without_revision),
    "no-doubt": ("a change is made later, unnoticed", _no_doubt),
    "leads-from-memory": (
        "a new leader does not read what the one before has saved",
        lambda: replaced(Groups, "lead", _leads_from_memory),
    ),
    "all-answer": (
        "controllers answer that do not lead",
        lambda: mock.patch.object(Groups, "is_leading", new=True),
    ),
    "stale-groups": (
        "a change that was not saved counts",
        lambda: replaced(Groups, "_change", _counts_before_it_is_saved),
    ),
}


async def _counts_before_it_is_saved(original: Any, self: Groups, name: str, decide: Any) -> Any:
    group, revision = self._entries.get(name, (None, 0))
    decision = decide(group)
    if decision.group is not group:
        self._entries[name] = decision.group, revision
        value = codec.encode(decision.group)
        fence = self._fence
        made = await self._store.compare_and_set(name, value, revision=revision, fence=fence)
        self._entries[name] = decision.group, made
    return group, decision


def search(name: str, first: int, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """Return how many seeds a fault takes, and what was found; None if none finds it."""
    _, put_in = FAULTS[name]
    for number in range(seeds_max):
        lines = plan(first + number)
        with put_in():
            outcome = play(first + number, lines)
        if outcome.problems and not play(first + number, lines).problems:
            return number + 1, str(outcome.problems[0])
    return None


def main() -> int:
    """Search faults; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("names", nargs="*", help="by default all")
    parser.add_argument("--first", type=int, help="first seed; by default that of today")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="maximum of a fault")
    options = parser.parse_args()
    missed = []
    for name in options.names or FAULTS:
        first = options.first if options.first is not None else seeds.today()
        result = search(name, first, options.seeds)
        if result is None:
            missed.append(name)
        text = "NOT FOUND" if result is None else f"{result[0]} seeds: {result[1][:150]}"
        print(f"{name:20} {text}", flush=True)  # noqa: T201 - a command
    print(f"{len(missed)} not found: {', '.join(missed) or 'none'}")  # noqa: T201
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
