"""A simulated cluster, and the words that scenarios use for it.

    cluster sync            kinds: lone, sync, async, disk, three
    traffic 200             clients begin 200 operations
    advance 3s              time passes
    kill a                  power-cut, stop, start, promote, follow, pause a 3s
    cut a-b                 silence a->b, slow a->b, delay a-b 0.2s, heal
    disk a full             slow, failing, good
    clock a +60s
    send 10                 a client sends, and waits for the replies
    calm                    the fault is over: a send must succeed soon
    check                   heal everything, read everything, and judge

``a`` is the first master. ``promote b`` takes the role of a master that is dead or paused.
"""

import asyncio
import functools
import random
import shlex
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from faults.history import (
    Expectation,
    Fault,
    Guarantee,
    History,
    LogCopy,
    Problem,
    Status,
)
from reput.broker.replication.state import SlaveState
from reput.errors import ConnectionLost
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.store.config import BrokerRole, DivergedPolicy, DurableIn, FlushDiskType
from sim import workload as clients
from sim.check import Fact, Record, check, stored_keys
from sim.loop import Loop
from sim.node import BrokerHost, NameServerHost
from sim.words import ScenarioError, seconds
from sim.workload import Client, Workload

IN_SYNC_S = 90.0
SYNC_PERIOD_MS = 8_000
"""Time after which a slave has its master's consumer offsets: it copies them every 3 s, and takes
them when its own log is durable up to there."""
SAVED_MS = 3_000
"""Time after which a broker has saved its consumer offsets."""
QUIET_LOOKS = 10
SETTLE_S = 10.0
"""Time in which brokers ask for the outcome of all transactions."""

_COMMON: dict[str, Any] = {
    "slave_read_enable": True,
    "ha_diverged_policy": DivergedPolicy.TRUNCATE,
    "transaction_time_out": 1_000,
    "transaction_check_interval": 2_000,
    "message_delay_level": "1s 2s 3s 4s",
    # So that a short run sees what usually happens once in a minute.
    "flush_consumer_offset_interval": 1_000,
    "flush_delay_offset_interval": 1_000,
    "flush_commit_log_thorough_interval": 2_000,
    "flush_consume_queue_thorough_interval": 3_000,
}
_SLOW_FLUSH: dict[str, Any] = {"flush_interval_commit_log": 30_000}

KINDS: dict[str, tuple[Guarantee, BrokerRole, str, dict[str, Any], dict[str, Any]]] = {
    "lone": (
        Guarantee.DISK,
        BrokerRole.ASYNC_MASTER,
        "a",
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH, **_SLOW_FLUSH},
        {},
    ),
    "sync": (Guarantee.SYNC, BrokerRole.SYNC_MASTER, "ab", {}, {}),
    "async": (Guarantee.ASYNC, BrokerRole.ASYNC_MASTER, "ab", {}, {}),
    "disk": (
        Guarantee.DISK,
        BrokerRole.SYNC_MASTER,
        "ab",
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH, **_SLOW_FLUSH},
        {"ha_ack_after": DurableIn.DISK, **_SLOW_FLUSH},
    ),
    "three": (Guarantee.SYNC, BrokerRole.SYNC_MASTER, "abc", {}, {}),
}
"""Kind -> guarantee, role of masters, brokers, settings of masters, settings of slaves."""


class Cluster:
    """The cluster of a run.

    Args:
        loop: The loop.
        chance: Source of all choices.
        folder: Folder for all disks.
    """

    serve_again_ms = 25_000
    """Time after a fault in which a send must succeed, in ms."""
    master: BrokerHost

    def __init__(self, loop: Loop, chance: random.Random, folder: Path) -> None:
        self.loop = loop
        self.chance = chance
        self._folder = folder
        self.history = History()
        self.record: Record
        self.workload: Workload
        self._hosts: dict[str, Any] = {}
        self.brokers: list[BrokerHost] = []
        self._fault: tuple[str, int] | None = None
        self._is_begun = False

    def now_ms(self) -> int:
        """Return the virtual time, in ms."""
        return int(self.loop.now * 1000)

    # Words --------------------------------------------------------------------------------------

    async def play(self, lines: Sequence[str]) -> None:
        """Play the lines of a scenario. Raises ``ScenarioError``."""
        for line in lines:
            words = shlex.split(line, comments=True)
            if not words:
                continue
            verb = getattr(self, f"do_{words[0].replace('-', '_')}", None)
            if verb is None:
                raise ScenarioError(f"{line!r}: no such word; words are {', '.join(_words())}")
            self.loop.trace.add(self.loop.now, f"-- {line}")
            try:
                await verb(*words[1:])
            except (TypeError, KeyError, ValueError) as error:
                raise ScenarioError(f"{line!r}: {error}") from error

    async def do_cluster(self, kind: str) -> None:
        """Start a name server, the brokers of a kind, and clients."""
        self._guarantee, self._role, names, self._of_masters, self._of_slaves = KINDS[kind]
        self.history.guarantee = self._guarantee
        self.history.replicas = list(names)
        self.history.sync_period_ms = SYNC_PERIOD_MS if len(names) > 1 else SAVED_MS
        self.history.has_confirmed_reads = kind == "lone"
        namesrv = NameServerHost(self.loop, "n", "10.0.0.9", self._folder / "n", self._drift())
        self._hosts["n"] = namesrv
        await namesrv.start()
        for number, name in enumerate(names, 1):
            ip, folder = f"10.0.0.{number}", self._folder / name
            broker = BrokerHost(self.loop, name, ip, folder, namesrv.address, {}, self._drift())
            broker.broker_id = number
            self.brokers.append(broker)
            self._hosts[name] = broker
        machines = []
        for number in range(1, 8):
            client = Client(self.loop, f"c{number}", f"10.0.1.{number}")
            client.start()
            machines.append(client)
            self._hosts[client.name] = client
        self.probe = machines[6]
        self.master = self.brokers[0]
        self.workload = Workload(
            self._believed,
            self.brokers,
            namesrv.address,
            machines[:6],
            self.history,
            random.Random(self.chance.getrandbits(64)),
            self.now_ms,
        )
        self.record = Record(self.history, self.workload.sight)
        self.history.faults.append(Fault("start", 0, self.now_ms()))
        await self._start_all()
        for topic, count in clients.QUEUES.items():
            await self._create_topic(topic, count)
        self._is_begun = True
        await self._wait(self._is_in_sync, 60)

    def _believed(self) -> BrokerHost:
        """Return the broker that clients take for the master."""
        return self.master

    async def _start_all(self) -> None:
        await self._start(self.master, is_master=True)
        for broker in self.brokers[1:]:
            await self._start(broker, is_master=False)

    def _drift(self) -> float:
        return self.chance.choice((0.0, 0.0, 1e-4, -1e-4))

    async def do_advance(self, duration: str) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds(duration))

    async def do_traffic(self, count: str, pause: str = "0.2s") -> None:
        """Start the clients, for a number of operations."""
        self.workload.start(int(count), seconds(pause))

    async def do_later(self, share: str) -> None:
        """Let the push consumer put off a share of its messages, 0 to 1."""
        self.workload.put_off_share = float(share)

    async def do_send(self, count: str) -> None:
        """Send messages one after another."""
        for _ in range(int(count)):
            await self.workload.send("probe", self.probe.remoting)

    async def do_start(self, *names: str) -> None:
        """Start programs in the roles that they had."""
        for name in names:
            host = self._hosts[name]
            if isinstance(host, BrokerHost):
                await self._start(host, is_master=host is self.master)
            else:
                await host.start()

    async def do_kill(self, *names: str) -> None:
        """End programs as ``kill -9`` would."""
        for name in names:
            self._disturb(f"kill {name}", is_death=True)
            self._hosts[name].kill()

    async def do_power_cut(self, *names: str) -> None:
        """Cut the power of machines at the same time."""
        for name in names:
            self._disturb(f"power-cut {name}", is_death=True)
            await self._hosts[name].power_cut(self.chance)
        if len(names) > 1 or len(self.brokers) == 1:
            self._new_term()

    async def do_stop(self, *names: str) -> None:
        """Stop brokers as SIGTERM would."""
        for name in names:
            self._disturb(f"stop {name}")
            host = self._broker(name)
            await host.stop()

    async def do_pause(self, name: str, duration: str) -> None:
        """Let nothing of a program run for some time."""
        self._disturb(f"pause {name}")
        process = self._hosts[name].process
        assert process is not None
        self.loop.pause(process, seconds(duration))

    async def do_promote(self, name: str, how: str = "restart") -> None:
        """Make a slave the master, by a restart or in the running process (``live``)."""
        self._disturb(f"promote {name}", is_death=True)
        broker = self._broker(name)
        broker.settings = self._settings(is_master=True)
        if how == "live":
            await broker.change_role(self._role, 0)
        else:
            if broker.is_running:
                await broker.stop()
            await self._start(broker, is_master=True)
        self.master = broker
        self._new_term()
        self.record.promotions += 1

    async def do_follow(self, *names: str) -> None:
        """Start old masters as slaves."""
        for name in names:
            await self._start(self._broker(name), is_master=False)

    async def do_cut(self, pair: str) -> None:
        """End the connections between two hosts."""
        self._disturb(f"cut {pair}")
        self.loop.network.cut(*self._ips(pair))

    async def do_silence(self, pair: str) -> None:
        """Let nothing arrive, in one direction (``a->b``) or both (``a-b``)."""
        self._disturb(f"silence {pair}")
        for source, target in self._directions(pair):
            self.loop.network.silence(source, target)

    async def do_slow(self, pair: str) -> None:
        """Let a reader take few bytes at once."""
        self._disturb(f"slow {pair}")
        for source, target in self._directions(pair):
            link = self.loop.network.link(source, target)
            link.bytes_at_once, link.delay_s = 700, (0.001, 0.005)

    async def do_delay(self, pair: str, duration: str) -> None:
        """Delay all bytes."""
        self._disturb(f"delay {pair}")
        for source, target in self._directions(pair):
            self.loop.network.link(source, target).delay_s = (0.001, seconds(duration))

    async def do_heal(self) -> None:
        """Let all links work again."""
        self.loop.network.heal_all()

    async def do_disk(self, name: str, state: str) -> None:
        """Change a disk: ``slow``, ``full``, ``failing`` or ``good``."""
        if state != "good":
            self._disturb(f"disk {name} {state}")
        broker = self._broker(name)
        broker.disk.is_full = state == "full"
        broker.disk.fails_syncs = state == "failing"
        broker.worker_s = (0.01, 0.4) if state == "slow" else (0.0, 0.002)
        if broker.process is not None:
            broker.process.worker_s = broker.worker_s

    async def do_clock(self, name: str, change: str) -> None:
        """Set the time of day of a machine."""
        self.record.jumps_ms.append(self.now_ms())
        change_ms = int(seconds(change.lstrip("+")) * 1000)
        self._hosts[name].clock.jumped_ms += change_ms
        # Also one that is set forward: the next master may have an earlier time.
        self.record.set_back_ms += abs(change_ms)

    async def do_calm(self) -> None:
        """End a fault: from now on, a send must succeed within some time."""
        name, started_ms = self._fault or ("calm", self.now_ms())
        self._fault = None
        now_ms = self.now_ms()
        self.history.faults.append(Fault(name, started_ms, now_ms))
        self.history.expectations.append(Expectation(name, now_ms, self.serve_again_ms))
        await self._probe_until_ok(now_ms + self.serve_again_ms)
        self._compare_prefixes()

    async def _probe_until_ok(self, end_ms: int) -> None:
        """Send until a send succeeds, or the time is over."""
        while self.now_ms() < end_ms:
            send = await self.workload.send("probe", self.probe.remoting)
            if send.status is Status.OK:
                return
            await asyncio.sleep(0.5)

    async def do_check(self) -> None:
        """Heal everything, wait until all is delivered, and read everything."""
        self.loop.network.heal_all()
        for broker in self.brokers:
            await self.do_disk(broker.name, "good")
            if not broker.is_running:
                await self._start(broker, is_master=broker is self.master)
        await self.do_calm()
        if not await self._wait(lambda: self.workload.is_idle, 300):
            self.record.facts.append(Fact("late", "the clients do not get on"))
        if not await self._wait(self._is_in_sync, IN_SYNC_S):
            self.record.facts.append(Fact("late", f"never in sync: {self._states()}"))
        # Delayed messages, and half messages that brokers ask for.
        await asyncio.sleep((max(clients.DELAYS_MS) + self.record.set_back_ms) / 1000 + SETTLE_S)
        await self._wait(self._is_in_sync, IN_SYNC_S)
        client = self.probe.remoting
        await self._read_from([self.master])
        wanted = stored_keys(self.history)
        if not self.record.promotions and self.workload.sight.groups:
            await self._wait(lambda: not self.workload.undelivered(clients.PUSHERS, wanted), 90)
            await self.workload.drain_pops(client, wanted)
            await self._wait(self._is_in_sync, IN_SYNC_S)
        await self._read_from(self.brokers)
        for broker in self.brokers:
            for queue_id in range(clients.QUEUES[clients.TOPIC]):
                await self._persist(
                    functools.partial(self.workload.observe, client, broker, queue_id)
                )
        await self.workload.stop()

    async def _read_from(self, brokers: Sequence[BrokerHost]) -> None:
        """Read everything, as final reads, at a time when no broker writes: they write at times."""
        reads = self.history.reads
        count = len(reads)
        for _ in range(QUIET_LOOKS):
            del reads[count:]
            self.history.logs.clear()
            await self._wait(self._is_in_sync, IN_SYNC_S)
            for broker in brokers:
                self.history.logs.append(_log_copy(broker))
                await self._persist(
                    functools.partial(self.workload.read_all, self.probe.remoting, broker)
                )
            ends = [copy.end for copy in self.history.logs]
            if ends == [_log_copy(broker).end for broker in brokers] and len(set(ends)) == 1:
                return
            await asyncio.sleep(1)

    def release(self) -> None:
        """Close the files of all brokers that still run."""
        for broker in self.brokers:
            if broker.broker is not None and hasattr(broker.broker, "store"):
                broker.broker.store.abandon()

    @property
    def operations(self) -> int:
        """The number of operations that clients have begun."""
        return sum(self.workload.counts.values()) if hasattr(self, "workload") else 0

    def judge(self, errors: Sequence[str]) -> list[Problem | Fact]:
        """Return what was broken, with the errors that programs have reported."""
        self.record.errors += errors
        return check(self.record)

    def failures(self) -> list[str]:
        """Return the errors that no program has handled."""
        texts: list[str] = []
        for host in self._hosts.values():
            texts += host.failures
            texts += host.process.failures if host.process is not None else ()
        return texts

    # Parts of words -----------------------------------------------------------------------------

    def _broker(self, name: str) -> BrokerHost:
        host = self._hosts[name]
        if not isinstance(host, BrokerHost):
            raise ScenarioError(f"{name} is no broker")
        return host

    def _directions(self, pair: str) -> list[tuple[str, str]]:
        if "->" in pair:
            source, target = pair.split("->")
            return [(self._hosts[source].ip, self._hosts[target].ip)]
        first, second = self._ips(pair)
        return [(first, second), (second, first)]

    def _ips(self, pair: str) -> tuple[str, str]:
        first, second = pair.split("-")
        return self._hosts[first].ip, self._hosts[second].ip

    def _disturb(self, name: str, *, is_death: bool = False) -> None:
        if self._fault is None:
            self._fault = name, self.now_ms()
        if is_death:
            self.record.deaths_ms.append(self.now_ms())

    def _new_term(self) -> None:
        self.history.term += 1

    def _settings(self, *, is_master: bool) -> dict[str, Any]:
        return {**_COMMON, **(self._of_masters if is_master else self._of_slaves)}

    async def _start(self, broker: BrokerHost, *, is_master: bool) -> None:
        broker.settings = self._settings(is_master=is_master)
        if is_master:
            await broker.start(self._role, 0)
        else:
            await broker.start(BrokerRole.SLAVE, self.brokers.index(broker) + 1)

    async def _create_topic(self, topic: str, count: int) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(count),
            "writeQueueNums": str(count),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        request = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
        await self.probe.remoting.invoke(self.master.address, request, 5_000)

    async def _wait(self, is_done: Callable[[], bool], within_s: float) -> bool:
        """Wait until something is so, for a time; return whether it is."""
        end = self.loop.now + within_s
        while not is_done():
            if self.loop.now >= end:
                return False
            await asyncio.sleep(0.25)
        return True

    async def _persist(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Repeat a request whose connection is lost: it may be an old one."""
        for _ in range(3):
            try:
                await ask()
                return
            except ConnectionLost:
                await asyncio.sleep(1)
        await ask()

    def _is_in_sync(self) -> bool:
        """Return whether all brokers have the same log, dispatched, and the same topics."""
        ends = set()
        for broker in self.brokers:
            running = broker.broker
            if running is None or not running.is_open:
                return False
            store = running.store
            if store.has_more_to_do:
                return False
            topics = running.parts.topics.all().keys()
            queues = tuple(
                (topic, queue_id, store.max_offset(topic, queue_id))
                for topic, count in sorted(self.workload._topics.items())
                if topic in topics
                for queue_id in range(count)
                # An old master may keep a topic whose messages its successor has never had.
                if store.max_offset(topic, queue_id)
            )
            ends.add((store.max_physical_offset, queues))
        return len(ends) == 1

    def _states(self) -> str:
        texts = []
        for broker in self.brokers:
            running = broker.broker
            if running is None or not running.is_open:
                texts.append(f"{broker.name} is not open")
                continue
            text = f"{broker.name} ends at {running.store.max_physical_offset}"
            if broker is not self.master:
                status = running.parts.replication.follower.status
                text += f", {status.state}: {status.reason}"
            texts.append(text)
        return "; ".join(texts)

    def _compare_prefixes(self) -> None:
        """Compare the log of each slave that follows with its master's."""
        master = self.master.broker
        if master is None or not master.is_open:
            return
        whole = _log_copy(self.master)
        for broker in self.brokers:
            running = broker.broker
            if broker is self.master or running is None or not running.is_open:
                continue
            if running.parts.replication.follower.status.state is not SlaveState.FOLLOWING:
                continue
            copy = _log_copy(broker)
            start, end = max(whole.start, copy.start), min(whole.end, copy.end)
            mine = whole.data[start - whole.start : end - whole.start]
            if mine != copy.data[start - copy.start : end - copy.start]:
                text = f"the logs of {self.master.name} and {broker.name} differ before {end}"
                self.record.facts.append(Fact("prefix", text))


def _log_copy(broker: BrokerHost) -> LogCopy:
    """Return the bytes of a broker's log."""
    assert broker.broker is not None
    log = broker.broker.store.log
    end = broker.broker.store.max_physical_offset
    files = sorted((broker.root / "commitlog").glob("[0-9]" * 20))
    starts = [int(file.name) for file in files]
    start = max([log.min_offset, *starts[:1]])
    parts = []
    for file, file_start in zip(files, starts, strict=True):
        first, last = max(start - file_start, 0), end - file_start
        if last > 0:
            parts.append(file.read_bytes()[first:last])
    return LogCopy(broker.name, start, b"".join(parts))


def _words() -> list[str]:
    return [name[3:].replace("_", "-") for name in vars(Cluster) if name.startswith("do_")]
