"""A simulated cluster under a controller, which elects its masters.

    cluster led             a name server, a controller ``k``, brokers ``a``, ``b``, ``c``
    cluster led-alone       the same; a master acknowledges alone
    elect b                 an operator elects
    serving                 a send must succeed soon, although something is dead
    alone a                 only clients hear a broker, and it hears only them
    start-all               whatever does not run is started
    steady                  no election since the last ``calm``

The words are those of ``cluster``; ``promote`` and ``follow`` are not needed. ``master``, ``slave``
and ``other`` are the brokers by their roles when the line begins, and ``lonely`` is the broker that
was left alone last. Further rules:

1. **two masters**: an epoch has one master.
2. **alone**: after healing all brokers are in sync.
3. **restless**: no election without a reason.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import replica_requests as requests
from faults.history import Expectation, Guarantee
from reput.errors import ReputError
from reput.store.config import BrokerRole
from sim import cluster
from sim.check import Fact
from sim.cluster import Cluster
from sim.node import BrokerHost
from sim.replica import ControllerHost

WATCH_S = 0.05
CONTROLLER = "k"

_OF_BROKERS: dict[str, Any] = {
    "enable_controller_mode": True,
    "all_ack_in_sync_state_set": True,
    "min_in_sync_replicas": 2,
    "ha_max_time_slave_not_catchup": 5_000,
}

_ALONE: dict[str, Any] = {
    **_OF_BROKERS,
    "all_ack_in_sync_state_set": False,
    "min_in_sync_replicas": 1,
}

cluster.KINDS["led"] = (Guarantee.SYNC, BrokerRole.SLAVE, "abc", _OF_BROKERS, _OF_BROKERS)
cluster.KINDS["led-alone"] = (Guarantee.ASYNC, BrokerRole.SLAVE, "abc", _ALONE, _ALONE)


class LedCluster(Cluster):
    """The cluster of a run."""

    serve_again_ms = 10_000

    _masters: dict[int, str]
    """Epoch -> its master."""
    _calm_count = 0
    """Number of masters when the last fault was over."""
    _known: BrokerHost
    _lonely = ""

    @property
    def master(self) -> BrokerHost:
        """The master with the latest epoch that runs, or that did."""
        for broker in self.brokers:
            if _epoch(broker) > _epoch(self._known):
                self._known = broker
        return self._known

    def _believed(self) -> BrokerHost:
        """Return a broker that a client takes for the master: now and then an old one."""
        believing = [broker for broker in self.brokers if _epoch(broker)]
        if len(believing) > 1 and self.chance.random() < 0.5:
            return self.chance.choice(believing)
        return self.master

    @master.setter
    def master(self, broker: BrokerHost) -> None:
        self._known = broker

    async def play(self, lines: Sequence[str]) -> None:
        """Play the lines of a scenario. Raises ``ScenarioError``."""
        for line in lines:
            await super().play([self._named(line)])

    def _named(self, line: str) -> str:
        """Return a line with names instead of roles."""
        if not self.brokers:
            return line
        master = self.master
        slaves = [broker.name for broker in self.brokers if broker is not master]
        names = {"master": master.name, "slave": slaves[0], "other": slaves[-1]}
        names["lonely"] = self._lonely
        return re.sub("|".join(names), lambda match: names[match[0]], line)

    async def _start_all(self) -> None:
        self._masters = {}
        # With allAckInSyncStateSet no client sees a message that may be lost.
        self.history.has_confirmed_reads = self._guarantee is Guarantee.SYNC
        controller = ControllerHost(
            self.loop,
            CONTROLLER,
            "10.0.0.8",
            self._folder / CONTROLLER,
            lambda _: None,
            is_unclean=False,
            drift=self._drift(),
        )
        self._hosts[CONTROLLER] = controller
        await controller.start()
        self._controller = controller.address
        for broker in self.brokers:
            await self._start(broker, is_master=False)
        self._watch = asyncio.create_task(self._watch_masters())
        if not await self._wait(self._are_all_members, 30):
            self.record.facts.append(Fact("alone", f"never a group: {self._states()}"))

    async def _start(self, broker: BrokerHost, *, is_master: bool) -> None:
        settings = self._settings(is_master=is_master)
        broker.settings = {**settings, "controller_addr": self._controller}
        await broker.start(BrokerRole.SLAVE, -1)

    async def _watch_masters(self) -> None:
        while True:
            if sum(_epoch(broker) > 0 for broker in self.brokers) > 1:
                # What consumers of the old one have done is unknown to the new one.
                self.record.deaths_ms.append(self.now_ms())
            for broker in self.brokers:
                epoch = _epoch(broker)
                if epoch and epoch not in self._masters:
                    self._masters[epoch] = broker.name
                    self._new_term()
                    self.record.deaths_ms.append(self.now_ms())
                if epoch and self._masters[epoch] != broker.name:
                    text = f"{self._masters[epoch]} and {broker.name} in epoch {epoch}"
                    self.record.facts.append(Fact("two masters", text))
                    self._masters[epoch] = broker.name
            await asyncio.sleep(WATCH_S)

    def _are_all_members(self) -> bool:
        master = self.master.broker
        if master is None or not master.is_open or not master.identity.is_master:
            return False
        in_sync = master.store.in_sync
        return in_sync is not None and len(in_sync.members) == len(self.brokers)

    async def do_calm(self) -> None:
        """End a fault; brokers look every 10 s whether a full disk has space again."""
        name, _ = self._fault or ("", 0)
        self.serve_again_ms = 25_000 if name.endswith("full") else LedCluster.serve_again_ms
        await super().do_calm()
        self._calm_count = len(self._masters)

    async def do_serving(self) -> None:
        """Expect that a send succeeds soon, although something is dead."""
        now_ms = self.now_ms()
        self.history.expectations.append(Expectation("serving", now_ms, self.serve_again_ms))
        await self._probe_until_ok(now_ms + self.serve_again_ms)

    async def do_alone(self, name: str) -> None:
        """Let a broker and clients hear one another, and no other program."""
        self._lonely = name
        for other in ("a", "b", "c", CONTROLLER, "n"):
            if other != name:
                await self.do_silence(f"{name}-{other}")

    async def do_start_all(self) -> None:
        """Start whatever does not run."""
        for name, host in self._hosts.items():
            if not host.is_running:
                await self.do_start(name)

    async def do_steady(self) -> None:
        """Expect that there was no election."""
        if len(self._masters) > self._calm_count:
            self.record.facts.append(Fact("restless", f"masters by epoch: {self._masters}"))

    async def do_elect(self, name: str) -> None:
        """Let an operator elect a broker."""
        broker = self._broker(name)
        group = None if broker.broker is None else broker.broker._group
        if group is None or group.member.broker_id is None:
            return
        request = requests.elect(group.member.broker_id, designate=True)
        try:
            await self.probe.remoting.invoke(self._hosts[CONTROLLER].address, request, 3_000)
        except ReputError:
            return

    async def do_check(self) -> None:
        """Heal everything, wait until all is delivered, and read everything."""
        self.loop.network.heal_all()
        controller = self._hosts[CONTROLLER]
        if not controller.is_running:
            await controller.start()
        self.record.promotions = max(len(self._masters) - 1, 0)
        await super().do_check()
        if not await self._wait(self._are_all_members, 20):
            self.record.facts.append(Fact("alone", f"not all are in sync: {self._states()}"))


def _epoch(host: BrokerHost) -> int:
    """Return the epoch in which a broker is master; 0 if it is not."""
    broker = host.broker
    if broker is None or not broker.is_open or not broker.identity.is_master:
        return 0
    group = broker._group
    return 0 if group is None else group.own_epoch
