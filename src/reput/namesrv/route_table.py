"""Which broker has which topic, and where it is: what brokers say, as long as they say it.

    topic -> broker name -> queues          what a topic has on a broker
    broker name -> cluster, id -> address   id 0 is the master
    address -> when it was heard of last, its tables' version, its connection

A broker tells its whole table every 30 s, and one topic when it changes. Topics are added and
overwritten, never removed because they are missing: a broker that tells one topic has the others
still. An address leaves when it unregisters, when its connection ends, or when nothing was heard of
it for two minutes. A broker name leaves with its last address, and takes its queues along. A master
that is gone alone leaves the route as it is: consumers read from the slaves.

Pure: the time is an argument, and a connection is any object, compared by identity. What is listed
is sorted by name, so that equal tables give equal replies.

It differs from Java 4.9 where 4.9 loses routes:

* A topic that a broker name does not have yet is taken though the version is the same. After a
  restart of the name server a broker may tell one topic first, and 4.9 then ignores all others
  until one of them changes (5.x takes them).
* An address unregisters itself, not whoever has its id by now (as 5.x).
* A connection that ends takes along all brokers that registered over it; 4.9 takes one.

Source: rocketmq 4.9.7 and 5.3.3 ``RouteInfoManager``.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from reput.format import bodies
from reput.format.bodies import BrokerData, ClusterInfo, DataVersion, QueueData, TopicRouteData

MASTER_ID = 0
EXPIRY_MS = 120_000
"""After this without a word a broker is taken for dead."""

PERM_READ = 4
PERM_WRITE = 2

SYS_FLAG_UNIT = 1
"""A topic of one unit of a deployment."""
SYS_FLAG_UNIT_SUB = 2
"""A topic that other units subscribe to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    """``ip:port`` where clients reach it."""
    ha_address: str = ""
    """``ip:port`` where slaves of it replicate from."""
    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Sequence[bodies.TopicConfigData] = ()
    filter_servers: Sequence[str] | None = None
    """None leaves those that are known; an empty list removes them."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What a broker learns from its registration."""

    master_address: str | None
    """For a slave, if its master is here."""
    master_ha_address: str | None
    is_new: bool
    """Whether its address was not here before."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A broker that was removed because nothing was heard of it."""

    address: str
    connection: object
    """To be closed."""
    silent_ms: int


@dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str]


@dataclass(slots=True)
class _Alive:
    last_ms: int
    data_version: DataVersion
    connection: object
    ha_address: str


class RouteTable:
    """The table of one name server. Times come from any one clock that only goes forwards."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, QueueData]] = {}  # topic -> broker name
        self._brokers: dict[str, _Broker] = {}  # by name
        self._clusters: dict[str, set[str]] = {}  # cluster -> broker names
        self._alive: dict[str, _Alive] = {}  # by address
        self._filter_servers: dict[str, list[str]] = {}  # by address

    # Brokers come and go ----------------------------------------------------------------------

    def register(self, said: Registration, connection: object, now_ms: int) -> Registered:
        """Take what a broker says. Of topics only a master is believed."""
        self._clusters.setdefault(said.cluster, set()).add(said.broker_name)
        broker = self._brokers.get(said.broker_name)
        if broker is None:
            broker = self._brokers[said.broker_name] = _Broker(said.cluster, {})
        # A slave that became the master had another id: an address has one of them.
        for broker_id, address in list(broker.addresses.items()):
            if address == said.address and broker_id != said.broker_id:
                del broker.addresses[broker_id]
        is_first = said.broker_id not in broker.addresses
        broker.addresses[said.broker_id] = said.address

        if said.broker_id == MASTER_ID:
            is_changed = is_first or self.is_changed(said.address, said.data_version)
            self._take_topics(said.broker_name, said.topics, only_new=not is_changed)
        is_new = said.address not in self._alive
        self._alive[said.address] = _Alive(now_ms, said.data_version, connection, said.ha_address)
        if said.filter_servers:
            self._filter_servers[said.address] = list(said.filter_servers)
        elif said.filter_servers is not None:
            self._filter_servers.pop(said.address, None)

        master = broker.addresses.get(MASTER_ID) if said.broker_id != MASTER_ID else None
        if master is None or master not in self._alive:
            return Registered(None, None, is_new)
        return Registered(master, self._alive[master].ha_address, is_new)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> list[str]:
        """Take one topic of brokers that are registered, as 5.x brokers may tell it.

        Returns:
            The names that are not registered; if there are any, nothing is taken.
        """
        told = {one.broker_name: one for one in queues}
        unknown = sorted(told.keys() - self._brokers.keys())
        if told and not unknown:
            self._queues.setdefault(topic, {}).update(told)
        return unknown

    def unregister(self, broker_name: str, address: str) -> bool:
        """Remove a broker that says good-bye; return whether it was here."""
        was_alive = self._forget(address)
        broker = self._brokers.get(broker_name)
        was_there = broker is not None and self._drop_address(broker_name, broker, address)
        return was_there or was_alive

    def disconnect(self, connection: object) -> list[str]:
        """Remove the brokers whose connection ended; return their addresses."""
        lost = sorted(
            address for address, one in self._alive.items() if one.connection is connection
        )
        for address in lost:
            self._remove(address)
        return lost

    def expire(self, now_ms: int) -> list[Gone]:
        """Remove the brokers of which nothing was heard for more than ``EXPIRY_MS``."""
        gone = [
            Gone(address, one.connection, now_ms - one.last_ms)
            for address, one in sorted(self._alive.items())
            if one.last_ms + EXPIRY_MS < now_ms
        ]
        for one in gone:
            self._remove(one.address)
        return gone

    def is_changed(self, address: str, data_version: DataVersion) -> bool:
        """Whether a broker's tables are not those that it told last."""
        return self.data_version(address) != data_version

    def data_version(self, address: str) -> DataVersion | None:
        """Return the version of the tables that a broker told last."""
        alive = self._alive.get(address)
        return alive.data_version if alive else None

    def refresh(self, address: str, now_ms: int) -> None:
        """Note that a broker was heard of, if it is registered."""
        alive = self._alive.get(address)
        if alive is not None:
            alive.last_ms = now_ms

    # Topics -----------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or on the brokers of a cluster."""
        if not cluster:
            self._queues.pop(topic, None)
        elif topic in self._queues:
            self._drop_queues(topic, self._clusters.get(cluster, ()))

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take new messages away from a broker; return on how many topics."""
        return self._set_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Make all topics of a broker readable and writable; return how many there are."""
        return self._set_permission(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    # Looking up -------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """Return where a topic is; None if nowhere."""
        queues = self._queues.get(topic, {})
        names = sorted(queues)
        brokers = [self._broker_data(name) for name in names if name in self._brokers]
        if not brokers:
            return None
        filters = self._filter_servers
        addresses = [one for broker in brokers for one in broker.broker_addrs.values()]
        return TopicRouteData(
            broker_datas=brokers,
            filter_server_table={one: filters[one] for one in addresses if one in filters},
            queue_datas=[queues[name] for name in names],
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in sorted(self._brokers)},
            cluster_addr_table={
                cluster: sorted(names) for cluster, names in sorted(self._clusters.items())
            },
        )

    def topics(self) -> list[str]:
        """Return all topics."""
        return sorted(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that a broker of the cluster has."""
        names = self._clusters.get(cluster, set())
        return sorted(topic for topic, queues in self._queues.items() if names & queues.keys())

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the topics that are named after clusters and brokers, and some broker's address.

        Whoever asks goes on to ask that broker for the others.
        """
        names = sorted({*self._clusters, *self._brokers})
        first = self._brokers[min(self._brokers)].addresses if self._brokers else {}
        return names, first[min(first)] if first else None

    def unit_topics(self) -> list[str]:
        """Return the topics of one unit."""
        return self._topics_with(lambda flag: flag & SYS_FLAG_UNIT != 0)

    def unit_sub_topics(self) -> list[str]:
        """Return the topics that other units subscribe to."""
        return self._topics_with(lambda flag: flag & SYS_FLAG_UNIT_SUB != 0)

    def unit_sub_topics_of_no_unit(self) -> list[str]:
        """Return the topics that other units subscribe to and that are of no unit."""
        both = SYS_FLAG_UNIT | SYS_FLAG_UNIT_SUB
        return self._topics_with(lambda flag: flag & both == SYS_FLAG_UNIT_SUB)

    # ------------------------------------------------------------------------------------------

    def _take_topics(
        self, broker_name: str, topics: Sequence[bodies.TopicConfigData], *, only_new: bool
    ) -> None:
        for topic in topics:
            queues = self._queues.setdefault(topic.topic_name, {})
            if only_new and broker_name in queues:
                continue
            queues[broker_name] = QueueData(
                broker_name=broker_name,
                perm=topic.perm,
                read_queue_nums=topic.read_queue_nums,
                topic_sys_flag=topic.topic_sys_flag,
                write_queue_nums=topic.write_queue_nums,
            )

    def _forget(self, address: str) -> bool:
        self._filter_servers.pop(address, None)
        return self._alive.pop(address, None) is not None

    def _remove(self, address: str) -> None:
        self._forget(address)
        for broker_name, broker in list(self._brokers.items()):
            self._drop_address(broker_name, broker, address)

    def _drop_address(self, broker_name: str, broker: _Broker, address: str) -> bool:
        """Remove an address of a broker; the name leaves with its last one."""
        ids = [broker_id for broker_id, one in broker.addresses.items() if one == address]
        for broker_id in ids:
            del broker.addresses[broker_id]
        if not broker.addresses:
            del self._brokers[broker_name]
            for cluster, names in list(self._clusters.items()):
                names.discard(broker_name)
                if not names:
                    del self._clusters[cluster]
            for topic in list(self._queues):
                self._drop_queues(topic, (broker_name,))
        return bool(ids)

    def _drop_queues(self, topic: str, broker_names: Collection[str]) -> None:
        queues = self._queues[topic]
        for name in broker_names:
            queues.pop(name, None)
        if not queues:
            del self._queues[topic]

    def _set_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._queues.values():
            queue = queues.get(broker_name)
            if queue is not None:
                # A new value: a route that was handed out stays as it was.
                queues[broker_name] = msgspec.structs.replace(queue, perm=change(queue.perm))
                count += 1
        return count

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        addresses = dict(sorted(broker.addresses.items()))
        return BrokerData(broker_addrs=addresses, broker_name=name, cluster=broker.cluster)

    def _topics_with(self, wanted: Callable[[int], bool]) -> list[str]:
        # Of several brokers one is asked, as Java does: a topic has the same flags on all.
        return sorted(
            topic
            for topic, queues in self._queues.items()
            if wanted(queues[min(queues)].topic_sys_flag)
        )
