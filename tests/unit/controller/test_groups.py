"""Decisions one after another, durable before they count, and again after another leader's."""

import asyncio

import pytest

from reput.controller import group as codec
from reput.controller.group import Group, Replica
from reput.controller.groups import Groups
from reput.controller.quorum import Conflict, StoredValue
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

    async def lead(self) -> int:
        return 1

    async def read(self) -> dict[str, StoredValue]:
        self.reads += 1
        return dict(self.entries)

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
        if self.loses_answers:
            raise WriteFailed("etcd", "no answer")
        return made

    async def close(self) -> None:
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
