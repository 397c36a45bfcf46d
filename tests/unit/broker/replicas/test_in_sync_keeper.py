"""The in-sync set of a master, as scripts: what happens, and what puts obey after each check.

A line is a step: ``end N`` and ``ack ID N`` move the master's log and what a slave has of it,
``gone ID`` closes its connection, ``t MS`` lets time pass, ``answers MS`` is an answered question
for the master, ``answer WHAT`` decides what the controller does with requests from now on, and
``check`` is a check. It prints the members, the claimed brokers (``+``), and a request (``?``).
"""

import asyncio
from typing import cast

import pytest

from reput.broker.replicas.controllers import NoLeader, RefusedByController
from reput.broker.replicas.in_sync_keeper import InSyncKeeper
from reput.broker.replicas.lease import Lease
from reput.broker.replicas.member import Mastership, Member
from reput.clock import ManualClock
from reput.errors import ReputError
from reput.store.log.in_sync_set import InSyncSet
from reput.store.log.replica_acks import Replica, ReplicaAcks

LAG_MS_MAX = 15_000


class ScriptedMember:
    """The membership of broker 1, whose requests a script answers."""

    broker_id = 1

    def __init__(self, scene: "Scene") -> None:
        self.answered_ms = 0
        self.lease = Lease(1_000, scene.clock.monotonic_ms)
        self.answer = "grant"
        self.asked: list[int] | None = None
        self.during: tuple[list[int], list[int]] | None = None
        self._scene = scene

    async def alter_in_sync(self, of: Mastership, wanted: frozenset[int]) -> None:
        self.asked = sorted(wanted)
        self.during = self._scene.state()
        await asyncio.sleep(0)
        assert self.during == self._scene.state()  # nothing changes before the answer
        if self.answer == "refuse":
            raise RefusedByController(2001, "another epoch of the set")
        if self.answer == "lose":
            raise NoLeader("no answer")
        granted = of._replace(set_epoch=of.set_epoch + 1, in_sync=wanted)
        self._scene.keeper.take(granted)


class Scene:
    """A keeper with its master's set, slaves and clock."""

    def __init__(self, members: set[int], is_learner: bool = False) -> None:
        self.clock = ManualClock()
        self.end = 0
        self.replicas = ReplicaAcks()
        self.in_sync = InSyncSet(1, self.replicas, needs_all=True, may_act_alone=lambda: True)
        self.member = ScriptedMember(self)
        self._is_learner = is_learner
        mastership = Mastership(3, 1, 1, "", frozenset(members))
        self.standings: list[bool] = []
        self.keeper = InSyncKeeper(
            cast(Member, self.member),
            mastership,
            self.in_sync,
            self.replicas,
            lambda: self.end,
            LAG_MS_MAX,
            lambda: None,
            self.standings.append,
            self.clock,
        )

    def state(self) -> tuple[list[int], list[int]]:
        """Return the members, and the claimed brokers beside them."""
        members = self.in_sync.members
        return sorted(members), sorted(self.in_sync.claimed - members)

    async def step(self, line: str) -> str | None:
        match line.split():
            case ["end", number]:
                self.end = int(number)
            case ["ack", broker_id, number]:
                replica = self.replicas.of_broker(int(broker_id))
                if replica is None:
                    replica = Replica("", broker_id=int(broker_id), is_learner=self._is_learner)
                    self.replicas.add(replica)
                replica.acked_offset = int(number)
            case ["gone", broker_id]:
                replica = self.replicas.of_broker(int(broker_id))
                assert replica is not None
                self.replicas.remove(replica)
            case ["t", duration]:
                self.clock.advance(int(duration))
            case ["answers", time]:
                self.member.answered_ms = int(time)
            case ["answer", what]:
                self.member.answer = what
            case ["check"]:
                return await self._check()
            case _:
                raise AssertionError(line)
        return None

    async def _check(self) -> str:
        self.member.asked, problem = None, ""
        try:
            await self.keeper.check()
        except ReputError as error:
            problem = f" {type(error).__name__}"
        members, claimed = self.state()
        asked = "" if self.member.asked is None else " ?" + _text(self.member.asked)
        return f"{_text(members)} +{_text(claimed)}{asked}{problem}"


def _text(broker_ids: list[int]) -> str:
    return ",".join(map(str, broker_ids))


SCRIPTS = {
    "a slave is claimed, gets the rest, and is added": """
        end 1000
        ack 2 400
        check -> 1 +2
        end 1500
        ack 2 999
        check -> 1 +2
        ack 2 1000
        check -> 1,2 + ?1,2
        check -> 1,2 +""",
    "a slave that lacks much is not claimed": """
        end 4194305
        ack 2 0
        check -> 1 +
        ack 2 1
        check -> 1 +2""",
    "a claimed slave that makes no progress is given up, and tried again after a pause": """
        end 1000
        ack 2 400
        check -> 1 +2
        t 999
        check -> 1 +2
        t 1
        check -> 1 +
        t 999
        check -> 1 +
        t 1
        check -> 1 +2""",
    "a claimed slave that is gone delays no put": """
        end 1000
        ack 2 400
        check -> 1 +2
        gone 2
        check -> 1 +""",
    "a slave that was refused stays claimed, and is asked for again": """
        end 1000
        ack 2 1000
        answer refuse
        check -> 1 +2 ?1,2 RefusedByController
        answer grant
        check -> 1,2 + ?1,2""",
    "a slave that may have been added must have everything, connected or not": """
        end 1000
        ack 2 1000
        answer lose
        check -> 1 +2 ?1,2 NoLeader
        gone 2
        t 5000
        answers 4000
        check -> 1 +2
        t 5000
        answers 9999
        check -> 1 +2
        answers 10000
        check -> 1 +""",
}
"""Of a master that is alone in sync."""

SHRINKING = {
    "a member that is gone is removed after a second, and not before the answer": """
        end 1000
        ack 2 1000
        check -> 1,2 +
        gone 2
        t 999
        check -> 1,2 +
        t 1
        check -> 1 + ?1""",
    "a refused removal changes nothing": """
        check -> 1,2 +
        t 1000
        answer refuse
        check -> 1,2 + ?1 RefusedByController
        check -> 1,2 + ?1 RefusedByController""",
    "a removal without an answer changes nothing": """
        check -> 1,2 +
        t 1000
        answer lose
        check -> 1,2 + ?1 NoLeader
        answers 60000
        t 60000
        check -> 1,2 + ?1 NoLeader
        answer grant
        check -> 1 + ?1""",
    "a member that returns in time stays": """
        end 1000
        ack 2 1000
        check -> 1,2 +
        gone 2
        t 900
        ack 2 1000
        check -> 1,2 +
        t 900
        check -> 1,2 +""",
    "a member that lags too long is removed, though it is connected": """
        end 1000
        ack 2 1000
        check -> 1,2 +
        end 2000
        check -> 1,2 +
        t 14999
        check -> 1,2 +
        t 1
        check -> 1 + ?1""",
    "a member that was removed returns, and is not removed for what it lacked before": """
        check -> 1,2 +
        ack 2 0
        end 2000
        check -> 1,2 +
        t 15000
        check -> 1 + ?1
        check -> 1 +2
        end 3000
        check -> 1 +2
        ack 2 2500
        check -> 1,2 + ?1,2
        check -> 1,2 +""",
    "a member under load has at some time what was there before": """
        end 1000
        ack 2 1000
        check -> 1,2 +
        end 2000
        t 14999
        check -> 1,2 +
        ack 2 2000
        end 3000
        t 1
        check -> 1,2 +
        t 14999
        check -> 1,2 +""",
    "one leaves while another one comes": """
        end 1000
        ack 3 1000
        check -> 1,2,3 + ?1,2,3
        t 1000
        check -> 1,3 + ?1,3""",
}
"""Of a master and slave 2 that are in sync."""


@pytest.mark.parametrize(
    ("members", "script"),
    [
        *(pytest.param({1}, script, id=name) for name, script in SCRIPTS.items()),
        *(pytest.param({1, 2}, script, id=name) for name, script in SHRINKING.items()),
    ],
)
async def test_scripts(members: set[int], script: str) -> None:
    scene = Scene(members)
    played = []
    for line in filter(None, map(str.strip, script.splitlines())):
        step, arrow, _ = line.partition(" -> ")
        seen = await scene.step(step)
        played.append(f"{step} -> {seen}" if arrow else step)
    assert played == script.split("\n        ")[1:]


async def test_a_learner_is_never_in_sync() -> None:
    scene = Scene({1}, is_learner=True)
    for line in ("end 1000", "ack 2 1000"):
        await scene.step(line)
    assert await scene.step("check") == "1 +"


async def test_a_master_registers_while_it_can_acknowledge() -> None:
    """Else it must not register in place of its successor."""
    scene = Scene({1, 2})
    scene.member.lease.renew(scene.clock.monotonic_ms())
    for line in ("check", "t 800", "check", "end 9", "ack 2 9", "check"):
        await scene.step(line)
    assert scene.standings == [True, False, True]
