"""Decisions one after another, durable before they count, and again after another leader's."""

import asyncio
from collections.abc import Sequence

import pytest

from controller_subject import until
from reput.controller import group as codec
from reput.controller.group import Group, Replica
from reput.controller.groups import Groups
from reput.controller.quorum import Conflict, Deposed, Peer, StoredValue
from reput.controller.rules import Decision
from reput.errors import CorruptRecord, LimitExceeded, WriteFailed
from reput.limits import Limit

LIMIT = Limit("groups", "groups", 2)


class _SharedStore:
    """A store in memory that others change too, and whose answers can get lost."""

    def __init__(self) -> None:
        self.entries: dict[str, StoredValue] = {}
        self.revision = 0
        self.loses_answers = False
        self.reads = 0
        self.is_slow = False

        self.fence = 0
        self.leader: Peer | None = None
        self.members: Sequence[Peer] = ()
        self.failure = self.place = ""
        self.term = 1

    async def lead(self) -> int:
        self.fence += 1
        return self.fence

    def leads(self, fence: int) -> bool:
        return fence == self.fence != 0

    async def until_deposed(self, fence: int) -> None:
        await until(lambda: fence != self.fence)

    async def read(self) -> dict[str, StoredValue]:
        self.reads += 1
        entries = dict(self.entries)
        await self.before_answer()
        return entries

    async def before_answer(self) -> None:
        """Do what a test wants to happen before an answer arrives."""

    def put(self, key: str, value: bytes | None) -> int:
        self.revision += 1
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = StoredValue(value, self.revision)
        return self.revision

    async def compare_and_set(
        self, key: str, value: bytes | None, *, revision: int, fence: int
    ) -> int:
        await asyncio.sleep(0)
        known = self.entries.get(key)
        if revision != (0 if known is None else known.revision):
            raise Conflict(f"{key} has changed")
        made = self.put(key, value)
        await self.before_answer()
        if self.loses_answers:
            raise WriteFailed("etcd", "no answer")
        return made

    async def close(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""


def group(name: str, epoch: int = 0) -> Group:
    return Group(
        cluster_name="C",
        broker_name=name,
        replicas={1: Replica("h:1", "h:1;1")},
        master_epoch=epoch,
    )


def next_epoch(current: Group | None) -> Decision:
    assert current is not None
    return Decision(current.with_master(1, current.master_epoch + 1))


async def led(store: _SharedStore) -> Groups:
    groups = Groups(store, LIMIT)
    await groups.lead()
    return groups


async def test_a_group_survives() -> None:
    store = _SharedStore()
    groups = await led(store)
    whole = group("a").with_master(1, 7, 4_000)
    await groups.change("a", lambda _: Decision(whole))
    assert (await led(store)).get("a") == whole
    assert codec.decode(codec.encode(whole)) == whole
    await groups.lead()
    await groups.change("a", lambda _: Decision(None))
    assert groups.all() == (await led(store)).all() == []


async def test_decisions_on_a_group_are_made_one_after_another() -> None:
    groups = await led(_SharedStore())
    await groups.change("a", lambda _: Decision(group("a")))
    await asyncio.gather(*(groups.change("a", next_epoch) for _ in range(10)))
    made = groups.get("a")
    assert made is not None
    assert made.master_epoch == 10
    assert groups.change_count == 11


async def test_an_unchanged_group_is_not_written() -> None:
    store = _SharedStore()
    groups = await led(store)
    await groups.change("a", lambda _: Decision(group("a")))
    before, decision = await groups.change("a", Decision)
    assert before is decision.group
    assert store.revision == 1


async def test_a_decision_is_made_again_after_that_of_another_leader() -> None:
    store = _SharedStore()
    groups = await led(store)
    await groups.change("a", lambda _: Decision(group("a")))
    store.put("a", codec.encode(group("a", epoch=6)))
    before, decision = await groups.change("a", next_epoch)
    assert before is not None
    assert decision.group is not None
    assert (before.master_epoch, decision.group.master_epoch) == (6, 7)


async def test_a_change_without_an_answer_is_read_before_the_next() -> None:
    store = _SharedStore()
    groups = await led(store)
    await groups.change("a", lambda _: Decision(group("a")))
    store.loses_answers = True
    with pytest.raises(WriteFailed):
        await groups.change("a", next_epoch)
    assert "no answer" in groups.failure
    store.loses_answers = False
    _, decision = await groups.change("a", next_epoch)
    assert decision.group is not None
    assert decision.group.master_epoch == 2
    assert groups.failure == ""


async def test_the_number_of_groups_is_limited() -> None:
    groups = await led(_SharedStore())
    for name in "ab":
        await groups.change(name, lambda _, name=name: Decision(group(name)))  # type: ignore[misc]
    with pytest.raises(LimitExceeded, match="limit groups"):
        await groups.change("c", lambda _: Decision(group("c")))
    await groups.change("a", next_epoch)


async def test_a_value_that_is_no_group_is_refused() -> None:
    store = _SharedStore()
    store.put("a", b'{"brokerName":7}')
    with pytest.raises(CorruptRecord, match="no replica group"):
        await led(store)


async def test_a_leader_that_was_deposed_answers_nothing_from_memory() -> None:
    store = _SharedStore()
    groups = await led(store)
    await groups.change("a", lambda _: Decision(group("a")))
    store.fence += 1
    with pytest.raises(Deposed):
        await groups.change("a", lambda known: Decision(known))
    assert not groups.is_leading


async def test_an_answer_that_arrives_in_the_next_time_of_leading_is_outdated() -> None:
    store = _SharedStore()
    groups = await led(store)
    await groups.change("a", lambda _: Decision(group("a")))

    async def another_leads() -> None:
        store.before_answer = _nothing  # type: ignore[method-assign]
        store.put("a", codec.encode(group("a", epoch=7)))
        store.fence += 1
        await groups.lead()

    store.before_answer = another_leads  # type: ignore[method-assign]
    await groups.change("a", next_epoch)
    _, decision = await groups.change("a", next_epoch)
    assert decision.group is not None
    assert decision.group.master_epoch == 8


async def test_values_that_were_read_before_a_change_do_not_replace_it() -> None:
    store = _SharedStore()
    groups = await led(store)
    await groups.change("a", lambda _: Decision(group("a")))

    async def changed_meanwhile() -> None:
        store.before_answer = _nothing  # type: ignore[method-assign]
        await groups.change("a", next_epoch)

    groups.refresh()
    store.before_answer = changed_meanwhile  # type: ignore[method-assign]
    await until(lambda: store.reads == 3)
    await until(lambda: not groups._is_outdated)
    known = groups.get("a")
    assert known is not None
    assert known.master_epoch == 1
    await groups.close()


async def _nothing() -> None:
    """Do nothing."""
