"""Simulated controllers with scripted brokers, the words of their scenarios, and their rules.

    group three             kinds: two, three, unclean; pair, trio: controllers on an etcd
    advance 3s              time passes
    etcd lossy, late, good  its answers get lost, or come late
    kill a, power-cut c, start c, pause a 5s, disk full, disk good
    silence a-c, silence a->c, cut a-b, heal
    elect b                 an operator elects
    serving                 messages must be acknowledged soon, with what runs now
    revive                  start whatever does not run
    calm                    the fault is over: the group must be whole again soon
    steady                  no election since the last calm
    check                   heal everything, and judge

Controllers are ``c``, ``f`` and ``g``, or ``leader`` and ``other``; the etcd is ``e``. Brokers are
``a``, ``b`` and ``d``, or ``master`` and ``slave``.
Rules:

1. **two masters**: an epoch has one master, in all answers and notices.
2. **back**: an answer is never older than one that came before it was asked for.
3. **outside**: each master that is saved was in sync before, unless unclean elections are allowed.
4. **two lives**: the messages of an epoch have one order.
5. **lost**: a new master has all acknowledged messages, except messages that power cuts may take,
   of a lone broker or of several at once.
6. **late**: after a fault the group is whole again in time; without its master it continues.
7. **restless**: no election without a reason.
8. **twice**: an id is given to one broker only.
9. **usurped**: only the controller that has the leader's key changes anything.
"""

import asyncio
import random
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import replica_requests as requests
from reput.controller import group as codec
from reput.controller.group import Group
from reput.errors import ReputError
from reput.format import bodies, headers
from reput.format.bodies import SyncStateSet
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.controller_headers import MasterHeader
from reput.remoting.client import RemotingClient
from sim.check import Fact
from sim.etcd import EtcdHost
from sim.loop import Loop
from sim.network import Network
from sim.node import Host
from sim.replica import ControllerHost, Message, ReplicaHost
from sim.words import ScenarioError, seconds


class Kind(NamedTuple):
    """A kind of group."""

    brokers: str
    controllers: str = "c"
    is_unclean: bool = False

    @property
    def has_etcd(self) -> bool:
        """True if the controllers share an etcd."""
        return len(self.controllers) > 1


KINDS = {
    "two": Kind("ab"),
    "three": Kind("abd"),
    "unclean": Kind("abd", is_unclean=True),
    "pair": Kind("ab", "cf"),
    "trio": Kind("abd", "cfg"),
}
WHOLE_AGAIN_S = 40.0
"""Time after a fault in which the group must be whole: connections that were silent end after 20 s,
and a controller that has just started waits for its masters."""
SERVING_S = 4.0
_ETCD = "e"
_PREFIX = "/reput"
_MASTER_CODES = {
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_REGISTER_BROKER,
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
}


class Electorate:
    """The world of a run.

    Args:
        loop: The loop.
        chance: Source of all choices.
        folder: Folder for the controller's disk.
    """

    def __init__(self, loop: Loop, chance: random.Random, folder: Path) -> None:
        self.loop = loop
        self.chance = chance
        self._folder = folder
        self.facts: list[Fact] = []
        self.replicas: list[ReplicaHost] = []
        self._hosts: dict[str, Host] = {}
        self._controllers: list[ControllerHost] = []
        self._etcd: EtcdHost | None = None
        self._operator: RemotingClient
        self._is_unclean = False
        self._masters: dict[int, int] = {}
        """Epoch -> its master, as the brokers have received it."""
        self._answers: list[tuple[float, float, tuple[int, int]]] = []
        """Begin and end of a question about the master, and both epochs of the answer."""
        self._saved: Group | None = None
        self._ids: dict[int, str] = {}
        self._order: dict[tuple[int, int], int] = {}
        """Epoch and number of predecessors -> number of the message."""
        self._acked: dict[int, int] = {}
        """Number of an acknowledged message -> its epoch."""
        self._waived: set[int] = set()
        self._count = 0
        self._falls_alone = True
        self._calm_epoch = 0
        self.operations = 0

    # Words ----------------------------------------------------------------------------------------

    async def play(self, lines: Sequence[str]) -> None:
        """Play the lines of a scenario. Raises ``ScenarioError``."""
        for line in lines:
            words = shlex.split(line, comments=True)
            if not words:
                continue
            verb = getattr(self, f"do_{words[0].replace('-', '_')}", None)
            if verb is None:
                raise ScenarioError(f"{line!r}: no such word")
            self.loop.trace.add(self.loop.now, f"-- {line}")
            await verb(*words[1:])

    async def do_group(self, kind: str) -> None:
        """Start controllers and brokers."""
        brokers, controllers, self._is_unclean = KINDS[kind]
        quorum = ""
        if KINDS[kind].has_etcd:
            self._etcd = EtcdHost(
                self.loop, _ETCD, "10.0.0.8", self._drift(), self.chance, self._see_change
            )
            self._hosts[_ETCD] = self._etcd
            await self._etcd.start()
            quorum = f"etcd:http://{self._etcd.address}{_PREFIX}"
        for number, name in enumerate(controllers):
            controller = ControllerHost(
                self.loop,
                name,
                f"10.0.0.{20 + number}",
                self._folder / name,
                self._see_file,
                is_unclean=self._is_unclean,
                drift=self._drift(),
                quorum=quorum,
            )
            self._controllers.append(controller)
            self._hosts[name] = controller
            await controller.start()
        self._operator = RemotingClient()
        addresses = [controller.address for controller in self._controllers]
        for number, name in enumerate(brokers, 1):
            host = ReplicaHost(self, name, f"10.0.0.{number}", addresses, self._drift())
            self.replicas.append(host)
            self._hosts[name] = host
            await host.start()
        await self.do_calm()

    def _drift(self) -> float:
        return self.chance.choice((0.0, 0.0, 1e-4, -1e-4))

    async def do_advance(self, duration: str) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds(duration))

    async def do_kill(self, *names: str) -> None:
        """End programs as ``kill -9`` would."""
        for name in names:
            self._host(name).kill()

    async def do_power_cut(self, *names: str) -> None:
        """Cut the power of machines at the same time."""
        self._falls_alone = len(names) == 1
        for name in names:
            await self._host(name).power_cut(self.chance)

    async def do_start(self, *names: str) -> None:
        """Start programs."""
        for name in names:
            await self._host(name).start()

    async def do_pause(self, name: str, duration: str) -> None:
        """Let nothing of a program run for some time."""
        process = self._host(name).process
        assert process is not None
        self.loop.pause(process, seconds(duration))
        await asyncio.sleep(seconds(duration))

    async def do_silence(self, pair: str) -> None:
        """Let nothing arrive, in one direction (``a->c``) or both (``a-c``)."""
        for source, target in self._directions(pair):
            self.loop.network.silence(source, target)

    async def do_cut(self, pair: str) -> None:
        """End the connections between two hosts."""
        first, second = pair.split("-")
        self.loop.network.cut(self._host(first).ip, self._host(second).ip)

    async def do_heal(self) -> None:
        """Let all links work again."""
        self.loop.network.heal_all()

    async def do_disk(self, state: str) -> None:
        """Change the disks of the controllers: ``full`` or ``good``."""
        for controller in self._controllers:
            controller.disk.is_full = state == "full"

    async def do_etcd(self, state: str) -> None:
        """Change the etcd: ``lossy``, ``late`` or ``good``."""
        if self._etcd is not None:
            self._etcd.is_lossy, self._etcd.is_late = state == "lossy", state == "late"

    async def do_clock(self, name: str, change: str) -> None:
        """Set the time of day of a machine."""
        self._host(name).clock.jumped_ms += int(seconds(change.lstrip("+")) * 1000)

    async def do_elect(self, name: str) -> None:
        """Let an operator elect a broker."""
        host = self._host(name)
        assert isinstance(host, ReplicaHost)
        request = requests.elect(host.broker_id, designate=True)
        begun_s = self.loop.now
        for controller in self._controllers:
            try:
                reply = await self._operator.invoke(controller.address, request, 3_000)
            except ReputError:
                continue
            if reply.code != ResponseCode.CONTROLLER_NOT_LEADER:
                self.answered(request, reply, begun_s)
                return

    async def do_calm(self) -> None:
        """End a fault: the group must be whole again soon."""
        self.loop.network.heal_all()
        await self.do_disk("good")
        await self.do_etcd("good")
        count, end = len(self._acked), self.loop.now + WHOLE_AGAIN_S
        while not (self._is_whole() and len(self._acked) > count):
            if self.loop.now >= end:
                self.facts.append(Fact("late", self._state()))
                break
            await asyncio.sleep(0.25)
        self._calm_epoch = max(self._masters, default=0)

    async def do_revive(self) -> None:
        """Start whatever does not run."""
        for host in self._hosts.values():
            if not host.is_running:
                await self.do_start(host.name)

    async def do_serving(self) -> None:
        """Check that messages are acknowledged soon."""
        count, end = len(self._acked), self.loop.now + SERVING_S
        while len(self._acked) == count and self.loop.now < end:
            await asyncio.sleep(0.25)
        if len(self._acked) == count:
            self.facts.append(Fact("late", f"no broker serves: {self._state()}"))

    async def do_steady(self) -> None:
        """Check that there was no election since the last calm."""
        epoch = max(self._masters, default=0)
        if epoch != self._calm_epoch:
            text = f"epoch {epoch} instead of {self._calm_epoch}, though the master was well"
            self.facts.append(Fact("restless", text))

    async def do_check(self) -> None:
        """Heal everything, and wait until the group is whole."""
        await self.do_revive()
        await self.do_calm()

    # What brokers and the disk show ---------------------------------------------------------------

    def answered(self, request: Command, reply: Command, begun_s: float) -> None:
        """Take an answer or a notice about the master."""
        self.operations += 1
        if request.code not in _MASTER_CODES or not reply.ext_fields:
            return
        header = headers.decode(MasterHeader, reply.ext_fields)
        epoch, master_id = header.master_epoch, header.master_broker_id
        if epoch is None:
            return
        if request.code == RequestCode.CONTROLLER_GET_REPLICA_INFO:
            set_epoch = bodies.decode(SyncStateSet, reply.body).sync_state_set_epoch
            self._answers.append((begun_s, self.loop.now, (epoch, set_epoch)))
        if master_id is not None and self._masters.setdefault(epoch, master_id) != master_id:
            text = f"epoch {epoch} has the masters {self._masters[epoch]} and {master_id}"
            self.facts.append(Fact("two masters", text))

    def given(self, broker_id: int, code: str) -> None:
        """Take an id that a broker has got."""
        if self._ids.setdefault(broker_id, code) != code:
            self.facts.append(Fact("twice", f"id {broker_id} was given twice"))

    def _see_file(self, data: bytes) -> None:
        """Take a state that a controller has saved in its file."""
        entries = msgspec.json.decode(data.partition(b"\n")[2])["entries"]
        if requests.NAME in entries:
            self._see(codec.decode(msgspec.json.encode(entries[requests.NAME]["value"])))

    def _see_change(self, key: bytes, value: bytes, ip: str) -> None:
        """Take a change in etcd, by the controller with an address."""
        assert self._etcd is not None
        if key != f"{_PREFIX}/groups/{requests.NAME}".encode():
            return
        known = self._etcd.model.keys.get(f"{_PREFIX}/leader".encode())
        leader = None if known is None else msgspec.json.decode(known.value)["address"]
        if leader is None or leader.partition(":")[0] != ip:
            self.facts.append(Fact("usurped", f"{ip} has changed a group, but {leader} leads"))
        self._see(codec.decode(value))

    def _see(self, group: Group) -> None:
        """Take a group that was saved."""
        before, self._saved = self._saved, group
        if before is None:
            return
        epochs = group.master_epoch, group.set_epoch
        if epochs < (before.master_epoch, before.set_epoch) or (
            group.master_id != before.master_id and group.master_epoch == before.master_epoch
        ):
            text = f"{epochs} was saved after {(before.master_epoch, before.set_epoch)}"
            self.facts.append(Fact("back", text))
        is_new = group.master_epoch != before.master_epoch and group.master_id is not None
        is_outside = before.master_epoch > 0 and group.master_id not in before.in_sync
        if is_new and is_outside and not self._is_unclean:
            text = f"{group.master_id} is the master, but {before.in_sync} are in sync"
            self.facts.append(Fact("outside", text))

    def next_number(self) -> int:
        """Return the number of a new message."""
        self._count += 1
        return self._count

    def stored(self, host: ReplicaHost) -> None:
        """Take the last message of a master."""
        message, place = host.log[-1], len(host.log) - 1
        if self._order.setdefault((message.epoch, place), message.number) != message.number:
            text = f"two messages at place {place} of epoch {message.epoch}"
            if not any(fact.rule == "two lives" for fact in self.facts):
                self.facts.append(Fact("two lives", text))

    def acked(self, messages: Iterable[Message]) -> None:
        """Take messages that a master has acknowledged."""
        self._acked.update((message.number, message.epoch) for message in messages)

    def lost(self, host: ReplicaHost, messages: Iterable[Message]) -> None:
        """Take messages that a power cut took from a broker.

        They may be lost if no other broker that is well has them; also if several brokers fall at
        once: until their heartbeats are missed, one that has fallen may be elected.
        """
        others = [
            replica
            for replica in self.replicas
            if replica is not host and self._falls_alone and self._is_well(replica)
        ]
        kept = {message.number for replica in others for message in replica.log}
        self._waived |= {message.number for message in messages} - kept

    def promoted(self, host: ReplicaHost, epoch: int) -> None:
        """Take a broker that becomes the master."""
        if self._is_unclean:
            return
        had = {message.number for message in host.log}
        missing = sorted(self._acked.keys() - had - self._waived)
        if missing:
            text = f"{len(missing)} acknowledged messages, as {host.name} is the master of {epoch}"
            self.facts.append(Fact("lost", text))
            self._waived.update(missing)

    def replica(self, broker_id: int | None) -> ReplicaHost | None:
        """Return the broker with an id."""
        return next((host for host in self.replicas if host.broker_id == broker_id != 0), None)

    def is_linked(self, first: ReplicaHost, second: ReplicaHost) -> bool:
        """Return whether two brokers that run can reach each other."""
        if not (self._is_well(first) and self._is_well(second)):
            return False
        network: Network = self.loop.network
        pairs = ((first.ip, second.ip), (second.ip, first.ip))
        return not any(network.link(*pair).is_silent for pair in pairs)

    def judge(self, errors: Sequence[str]) -> list[Any]:
        """Return what was broken, with the errors that programs have reported."""
        latest, known = (0, 0), sorted(self._answers, key=lambda answer: answer[1])
        asked = sorted(self._answers)
        number = 0
        for begun_s, _, epoch in asked:
            while number < len(known) and known[number][1] < begun_s:
                latest = max(latest, known[number][2])
                number += 1
            if epoch < latest:
                self.facts.append(Fact("back", f"epoch {epoch} was answered after {latest}"))
        return [*self.facts, *(Fact("broken", text) for text in errors)]

    def failures(self) -> list[str]:
        """Return the errors that no program has handled."""
        texts: list[str] = []
        for host in self._hosts.values():
            texts += host.failures
            texts += host.process.failures if host.process is not None else ()
        return texts

    def release(self) -> None:
        """Release the controller's folder."""
        for controller in self._controllers:
            controller._release()

    # Parts of words -------------------------------------------------------------------------------

    def _host(self, name: str) -> Any:
        for host in self.replicas:
            if (name == "master" and host.is_master) or (name == "slave" and not host.is_master):
                return host
        for controller in self._controllers:
            if name == ("leader" if controller.is_leading else "other"):
                return controller
        running = (controller for controller in self._controllers if controller.is_running)
        return self._hosts.get(name) or next(running, self._controllers[0])

    def _directions(self, pair: str) -> list[tuple[str, str]]:
        if "->" in pair:
            source, target = pair.split("->")
            return [(self._host(source).ip, self._host(target).ip)]
        first, second = (self._host(name).ip for name in pair.split("-"))
        return [(first, second), (second, first)]

    def _is_well(self, host: ReplicaHost) -> bool:
        return host.process is not None and not host.process.is_paused

    def _is_whole(self) -> bool:
        """Return whether the group has a master, and all brokers follow it, in sync."""
        if not any(host.is_running and host.is_leading for host in self._controllers):
            return False
        group = self._saved
        ids = {host.broker_id for host in self.replicas}
        if group is None or set(group.in_sync) != ids or 0 in ids:
            return False
        masters = [host for host in self.replicas if host.is_master]
        return len(masters) == 1 and all(
            host.life is not None
            and host.life.epoch == group.master_epoch
            and host.life.master_id == group.master_id
            for host in self.replicas
        )

    def _state(self) -> str:
        texts = [f"saved: {self._saved}"]
        for host in self.replicas:
            life = host.life
            known = None if life is None else (life.epoch, life.master_id, sorted(life.in_sync))
            texts.append(f"{host.name} (id {host.broker_id}, {len(host.log)} messages): {known}")
        return "; ".join(texts)


# --- random scenarios -----------------------------------------------------------------------------


def plan(seed: int, faults: int = 5, kind: str | None = None) -> list[str]:
    """Return the lines of a scenario: faults one after another, as the guarantees assume.

    Args:
        seed: Source of all choices.
        faults: Number of faults.
        kind: Kind of the group; by default the seed chooses it.
    """
    chance = random.Random(seed)
    drawn = chance.choice(("two", "three", "unclean", "pair", "trio", "trio"))
    kind = kind or drawn
    lines = [f"group {kind}"]
    for _ in range(faults):
        has_etcd = KINDS[kind].has_etcd and chance.random() < 0.7
        fault = (_etcd_fault if has_etcd else _fault)(chance, KINDS[kind].brokers)
        lines += [*fault, "calm", f"advance {_time(chance, 0.5, 3)}"]
    return [*lines, "check"]


def _time(chance: random.Random, least: float, most: float) -> str:
    return f"{chance.uniform(least, most):.1f}s"


def _fault(chance: random.Random, names: str) -> list[str]:
    first, second = chance.sample(names, 2)
    short, longer = _time(chance, 0.1, 3), _time(chance, 4, 9)
    pause = chance.choice((short, longer))
    stories: list[Callable[[], list[str]]] = [
        lambda: [f"kill {first}", f"advance {pause}", f"start {first}"],
        lambda: [f"power-cut {first}", f"advance {pause}", f"start {first}"],
        lambda: [f"power-cut {first}", f"advance {short}", f"start {first}", "advance 1.5s",
                 f"kill {second}", f"advance {longer}", f"start {second}"],
        lambda: [f"power-cut {first} {second}", f"advance {pause}", f"start {second} {first}"],
        lambda: ["kill c", f"advance {pause}", "start c", "advance 4s", "steady"],
        lambda: ["power-cut c", f"advance {pause}", "start c", "advance 4s", "steady"],
        lambda: [f"kill {first}", f"advance {short}", "power-cut c", f"advance {short}", "start c",
                 f"advance {longer}", f"start {first}"],
        lambda: ["kill c", f"kill {first}", f"advance {longer}", f"kill {second}",
                 f"advance {short}", "start c", f"start {first}", f"advance {longer}",
                 f"start {second}"],
        lambda: ["kill slave", "advance 4s", "steady", "revive"],
        lambda: ["power-cut slave", "advance 4s", "steady", "revive"],
        lambda: ["kill master", "advance 1s", "serving", "revive"],
        lambda: ["power-cut master", "advance 5s", "serving", "revive"],
        lambda: [f"silence {first}-{second}", "power-cut slave", "advance 0.3s", "revive",
                 "advance 1.2s", "kill master", f"advance {longer}", "heal", "revive"],
        lambda: ["disk full", "kill master", "advance 2s", "kill c", "disk good", "revive"],
        lambda: [f"pause {first} 6s", "advance 1.2s", f"kill {second}", f"advance {longer}",
                 "revive"],
        lambda: [f"pause {first} {pause}"],
        lambda: ["pause c 15s", "advance 2s", "steady"],
        lambda: [f"silence {first}-c", f"advance {longer}", "heal"],
        lambda: [f"silence {first}->c", f"advance {longer}", "heal"],
        lambda: [f"silence c->{first}", f"advance {longer}", "heal"],
        lambda: [f"silence {first}-{second}", f"advance {longer}", "heal"],
        lambda: [f"cut {first}-c"],
        lambda: ["disk full", f"kill {first}", f"advance {pause}", "disk good", "advance 2s",
                 f"start {first}"],
        lambda: [f"elect {first}", f"advance {short}"],
        lambda: ["clock c +60s", "advance 2s", "clock c -60s", "advance 2s", "steady"],
    ]  # fmt: skip
    return chance.choice(stories)()


def _etcd_fault(chance: random.Random, names: str) -> list[str]:
    """Return a fault of controllers that share an etcd."""
    first, second = chance.sample(names, 2)
    short, longer = _time(chance, 0.1, 2), _time(chance, 4, 9)
    stories: list[Callable[[], list[str]]] = [
        lambda: ["kill leader", f"advance {longer}", "serving", "revive", "advance 2s", "steady"],
        lambda: ["power-cut leader", f"advance {longer}", "serving", "revive"],
        lambda: ["kill leader", f"kill {first}", f"advance {longer}", "revive"],
        lambda: ["power-cut leader master", f"advance {longer}", "advance 4s", "serving", "revive"],
        lambda: [f"pause leader {longer}", f"advance {short}"],
        lambda: [f"kill {first}", f"pause leader {longer}", "revive"],
        lambda: ["silence leader-e", f"advance {longer}", "serving", "heal", f"advance {short}"],
        lambda: ["silence leader->e", f"kill {first}", f"advance {longer}", "heal", "revive"],
        lambda: ["silence e->leader", f"kill {first}", f"advance {longer}", "heal", "revive"],
        lambda: ["silence e->leader", f"elect {first}", f"advance {longer}", "heal"],
        lambda: ["silence leader->e", f"elect {first}", f"elect {second}", f"advance {short}",
                 "heal"],
        lambda: [f"silence leader-{first}", f"advance {longer}", "heal"],
        lambda: [f"silence other-{first}", f"advance {longer}", "kill leader", f"advance {longer}",
                 "heal", "revive"],
        lambda: ["cut leader-e", f"advance {short}", "steady"],
        lambda: ["kill e", f"advance {short}", "start e", "advance 4s", "steady"],
        lambda: ["power-cut e", f"advance {longer}", "start e", "advance 4s", "steady"],
        lambda: ["kill e", f"kill {first}", f"advance {longer}", "start e", "revive"],
        lambda: [f"pause e {longer}", "advance 4s", "steady"],
        lambda: ["etcd lossy", f"kill {first}", f"advance {longer}", "etcd good", "revive"],
        lambda: ["etcd lossy", "kill leader", f"elect {first}", f"advance {longer}", "revive"],
        lambda: ["etcd lossy", f"silence {first}-{second}", f"advance {longer}", "heal"],
        lambda: ["etcd late", "elect slave", "kill leader", "etcd good", "advance 9s", "revive"],
        lambda: ["etcd late", "elect slave", "etcd good", "elect slave", "advance 9s"],
        lambda: ["etcd late", f"elect {first}", "kill other", f"advance {longer}", "revive"],
        lambda: ["kill leader", "kill leader", f"advance {longer}", "revive", "advance 5s"],
        lambda: ["kill other", f"advance {short}", "steady", "revive"],
    ]  # fmt: skip
    return chance.choice(stories)()
