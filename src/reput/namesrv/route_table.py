"""Which broker has which topic, and where it is: what brokers say, as long as they say it.

    broker name -> cluster, id -> address   id 0 is the master
                   topic -> queues          what it has
    topic -> broker names                   who may have it
    address -> when it was heard of last, its tables' version, its connection, its broker names
    connection -> addresses

A broker tells its whole table every 30 s, and one topic when it changes. Topics are added and
overwritten, never removed because they are missing: a broker that tells one topic has the others
still. An address leaves when it unregisters, when its connection ends, or when nothing was heard of
it for two minutes. A broker name leaves with its last address, and takes its queues along. A master
that is gone alone leaves the route as it is: consumers read from the slaves.

Whoever registers is believed, as by Java: another address that takes over a broker's name and id
while that one is alive is reported (``Registered.displaced``). What everybody may cost is bounded.

Pure: the time is an argument, and a connection is any object, compared by identity. What is listed
is sorted by name, so that equal tables give equal replies. What is long is a generator that yields
where others may have their turn; the table may have changed when it goes on. A broker that left is
gone at once; that its topics' names lead to it is forgotten by ``tidy``.

It differs from Java 4.9 where 4.9 loses routes:

* A topic that a broker name does not have yet is taken though the version is the same. After a
  restart of the name server a broker may tell one topic first, and 4.9 then ignores all others
  until one of them changes (5.x takes them).
* An address unregisters itself, not whoever has its id by now (as 5.x).
* A connection that ends takes along all brokers that registered over it; 4.9 takes one.
* A broker with an older state version does not take over from one that is alive (as 5.x).

Source: rocketmq 4.9.7 and 5.3.3 ``RouteInfoManager``.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from reput import limits
from reput.errors import LimitExceeded, excerpt
from reput.format import bodies
from reput.format.bodies import BrokerData, DataVersion, QueueData, TopicRouteData
from reput.format.codes import MASTER_ID, PERM_READ, PERM_WRITE
from reput.limits import Limit
from reput.remoting import long_replies
from reput.remoting.time_slices import Steps

EXPIRY_MS = 120_000
"""After this without a word a broker is taken for dead."""
EXPIRED_MAX = 1_000
"""Brokers that are removed in one go because they are silent."""


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
    """What a broker learns from its registration, and what was noticed."""

    master_address: str | None
    """For a slave, if its master is here."""
    master_ha_address: str | None
    is_new: bool
    """Whether its address was not here before."""
    displaced: str | None = None
    """The address that had the name and id, if it was alive: two claim to be this broker."""
    is_ignored: bool = False
    """Whether the one that was displaced has a newer state version, and remains."""
    left_out: str = ""
    """Why a topic was left out, if any was."""
    left_out_counts: Mapping[str, int] = field(default_factory=dict)
    """Limit -> topics that it left out."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A broker that was removed because nothing was heard of it."""

    address: str
    connection: object
    """To be closed."""
    silent_ms: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all brokers together may cost; each has a key of its own in the settings."""

    brokers: Limit = limits.NAMESRV_BROKERS
    topics: Limit = limits.NAMESRV_TOPICS
    queues: Limit = limits.NAMESRV_QUEUES


@dataclass(slots=True, eq=False)
class _Broker:
    cluster: str
    """The first one that it named."""
    clusters: set[str]
    addresses: dict[int, str]
    queues: dict[str, QueueData]
    """By topic."""
    shapes: dict[tuple[int, ...], QueueData]
    """Values of ``queues``: thousands of topics have the same."""


@dataclass(slots=True)
class _Alive:
    last_ms: int
    data_version: DataVersion | None
    """None while its topics are taken."""
    connection: object
    ha_address: str
    names: set[str]


_Names = tuple[str, ...] | set[str]
"""One name is a tuple: small, and nothing that Python's collector looks at."""

_SHAPES_MAX = 256
_LIST_PART = 500
"""Topics and brokers of theirs that are looked at before others have their turn."""
_PART = 64
"""Topics that are taken, or forgotten, before others have their turn."""


class RouteTable:
    """The table of one name server. Times come from any one clock that only goes forwards.

    Args:
        bounds: What all brokers together may cost.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.takeover_count = 0
        """How often another address took the name and id of a broker that was alive."""
        self._brokers: dict[str, _Broker] = {}  # by name
        self._names: dict[str, _Names] = {}  # topic -> broker names, gone ones among them
        self._clusters: dict[str, set[str]] = {}  # cluster -> broker names
        self._alive: dict[str, _Alive] = {}  # by address
        self._addresses: dict[int, set[str]] = {}  # id of a connection -> addresses
        self._filter_servers: dict[str, list[str]] = {}  # by address
        self._left: deque[tuple[str, Iterator[str]]] = deque()  # gone broker, its topics
        self._queue_count = 0
        self._topic_bytes = 0

    @property
    def broker_count(self) -> int:
        """Broker names."""
        return len(self._brokers)

    @property
    def address_count(self) -> int:
        """Addresses of brokers."""
        return len(self._alive)

    @property
    def topic_count(self) -> int:
        """Topics; those that left with their brokers count until they are tidied away."""
        return len(self._names)

    # Brokers come and go ----------------------------------------------------------------------

    def register(self, said: Registration, connection: object, now_ms: int) -> Steps[Registered]:
        """Take what a broker says. Of topics only a master is believed.

        Raises:
            LimitExceeded: It is one too many. Topics that are too many are left out.
        """
        self._check(said, connection)
        broker = self._brokers.get(said.broker_name)
        displaced = None if broker is None else self._displaced(broker, said, now_ms)
        if displaced:
            self.takeover_count += 1
            if _state(self._alive[displaced].data_version) > _state(said.data_version):
                return Registered(None, None, False, displaced, is_ignored=True)
        if broker is None:
            broker = _Broker(said.cluster, set(), {}, {}, {})
            self._brokers[said.broker_name] = broker
        broker.clusters.add(said.cluster)
        self._clusters.setdefault(said.cluster, set()).add(said.broker_name)
        is_first = said.broker_id not in broker.addresses
        is_changed = is_first or self.is_changed(said.address, said.data_version)
        is_new = self._place(said, broker, connection, now_ms)
        alive = self._alive[said.address]
        alive.ha_address = said.ha_address
        if said.filter_servers:
            self._filter_servers[said.address] = list(said.filter_servers)
        elif said.filter_servers is not None:
            self._filter_servers.pop(said.address, None)

        left_out, counts = "", Counter[str]()
        if said.broker_id == MASTER_ID:
            if is_changed:
                alive.data_version = None  # until all are taken: who is cut off tells them again
            for i, topic in enumerate(said.topics):
                if i % _PART == _PART - 1:
                    yield
                if self._brokers.get(said.broker_name) is not broker:
                    break
                try:
                    self._take(broker, said.broker_name, topic, only_new=not is_changed)
                except LimitExceeded as error:
                    left_out = str(error)
                    counts[error.limit] += 1
        if self._alive.get(said.address) is alive:
            # Those for which there was no room are told again: there may be some the next time.
            lacks_room = bool(counts.keys() - {limits.NAMESRV_NAME_LETTERS.name})
            alive.data_version = None if lacks_room else said.data_version

        master = broker.addresses.get(MASTER_ID) if said.broker_id != MASTER_ID else None
        if master is None or master not in self._alive:
            return Registered(
                None, None, is_new, displaced, left_out=left_out, left_out_counts=counts
            )
        ha_address = self._alive[master].ha_address
        return Registered(
            master, ha_address, is_new, displaced, left_out=left_out, left_out_counts=counts
        )

    def _check(self, said: Registration, connection: object) -> None:
        """Refuse a registration that costs too much. Raises ``LimitExceeded``."""
        filter_servers = said.filter_servers or ()
        limits.NAMESRV_FILTER_SERVERS.check(len(filter_servers))
        for name in (
            said.cluster,
            said.broker_name,
            said.address,
            said.ha_address,
            *filter_servers,
        ):
            limits.NAMESRV_NAME_LETTERS.check(len(name))
        broker, alive = self._brokers.get(said.broker_name), self._alive.get(said.address)
        if broker is None:
            self.bounds.brokers.check(len(self._brokers) + 1, "broker names")
        else:
            ids = broker.addresses.keys() | {said.broker_id}
            limits.NAMESRV_BROKER_IDS.check(len(ids), excerpt(said.broker_name))
            clusters = broker.clusters | {said.cluster}
            limits.NAMESRV_BROKER_CLUSTERS.check(len(clusters), excerpt(said.broker_name))
        if alive is None:
            self.bounds.brokers.check(len(self._alive) + 1, "addresses")
        else:
            names = alive.names | {said.broker_name}
            limits.NAMESRV_ADDRESS_BROKERS.check(len(names), excerpt(said.address))
        known = self._addresses.get(id(connection), set())
        if said.address not in known:
            limits.NAMESRV_BROKERS_PER_CONNECTION.check(len(known) + 1)

    def _displaced(self, broker: _Broker, said: Registration, now_ms: int) -> str | None:
        """Return who has the name and id that somebody else registers, if that one is alive."""
        known = broker.addresses.get(said.broker_id)
        alive = None if known is None or known == said.address else self._alive.get(known)
        return known if alive is not None and alive.last_ms + EXPIRY_MS >= now_ms else None

    def _place(self, said: Registration, broker: _Broker, connection: object, now_ms: int) -> bool:
        """Note where a broker is; return whether its address is new."""
        # A slave that became the master had another id: an address has one of them.
        for broker_id, address in list(broker.addresses.items()):
            if address == said.address and broker_id != said.broker_id:
                del broker.addresses[broker_id]
        was = broker.addresses.get(said.broker_id)
        if was is not None and was != said.address and was in self._alive:
            self._alive[was].names.discard(said.broker_name)
        broker.addresses[said.broker_id] = said.address
        alive = self._alive.get(said.address)
        is_new = alive is None
        if alive is None:
            alive = self._alive[said.address] = _Alive(now_ms, None, connection, "", set())
        else:
            self._release(said.address, alive)
            alive.last_ms, alive.connection = now_ms, connection
        alive.names.add(said.broker_name)
        self._addresses.setdefault(id(connection), set()).add(said.address)
        return is_new

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> list[str]:
        """Take one topic of brokers that are registered, as 5.x brokers may tell it.

        Returns:
            The names that are not registered; if there are any, nothing is taken.

        Raises:
            LimitExceeded: There are too many topics, or brokers in this one.
        """
        limits.NAMESRV_NAME_LETTERS.check(len(topic))
        told = {one.broker_name: one for one in queues}
        limits.ROUTE_BROKERS.check(len(told), excerpt(topic))
        unknown = sorted(told.keys() - self._brokers.keys())
        if not unknown:
            for name, queue in told.items():
                self._put(self._brokers[name], name, topic, queue)
        return unknown

    def unregister(self, broker_name: str, address: str) -> bool:
        """Remove a broker that says good-bye; return whether it was here."""
        alive, broker = self._alive.get(address), self._brokers.get(broker_name)
        was_there = broker is not None and self._drop_address(broker_name, broker, address)
        if alive is None or alive.names:  # elsewhere it goes on
            return was_there
        self._forget(address)
        return True

    def disconnect(self, connection: object) -> list[str]:
        """Remove the brokers whose connection ended; return their addresses."""
        lost = sorted(self._addresses.get(id(connection), ()))
        for address in lost:
            self._remove(address)
        return lost

    def expire(self, now_ms: int) -> list[Gone]:
        """Remove brokers of which nothing was heard for more than ``EXPIRY_MS``.

        Returns:
            Those that were removed: ``EXPIRED_MAX`` at most, so that others have their turn.
        """
        gone = [
            Gone(address, alive.connection, now_ms - alive.last_ms)
            for address, alive in sorted(self._alive.items())
            if alive.last_ms + EXPIRY_MS < now_ms
        ][:EXPIRED_MAX]
        for one in gone:
            self._remove(one.address)
        return gone

    @property
    def is_tidy(self) -> bool:
        """Whether nothing is left of brokers that are gone."""
        return not self._left

    def tidy(self) -> Steps[None]:
        """Forget the topics of brokers that are gone; yield where others may have their turn."""
        while self._left:
            name, topics = self._left[0]
            for i, topic in enumerate(topics):
                self._queue_count -= 1
                self._unlink(topic, name)
                if i % _PART == _PART - 1:
                    yield
            self._left.popleft()
            yield

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
        of_cluster = self._clusters.get(cluster, set()) if cluster else None
        for name in list(self._names.get(topic, ())):
            if of_cluster is not None and name not in of_cluster:
                continue
            broker = self._brokers.get(name)
            if broker is not None and broker.queues.pop(topic, None) is not None:
                self._queue_count -= 1
            self._unlink(topic, name)

    def wipe_write_permission(self, broker_name: str) -> Steps[int]:
        """Take new messages away from a broker; return on how many topics."""
        return self._set_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> Steps[int]:
        """Make all topics of a broker readable and writable; return how many there are."""
        return self._set_permission(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    # Looking up -------------------------------------------------------------------------------

    def route(self, topic: str) -> Steps[TopicRouteData | None]:
        """Return where a topic is; None if nowhere."""
        brokers: list[BrokerData] = []
        queues: list[QueueData] = []
        addresses: list[str] = []
        for i, name in enumerate(sorted(self._names.get(topic, ()))):
            if i % _PART == _PART - 1:
                yield
            queue = self._queue(topic, name)
            if queue is not None:
                broker = self._broker_data(name)
                brokers.append(broker)
                queues.append(queue)
                addresses += broker.broker_addrs.values()
        if not brokers:
            return None
        filters = self._filter_servers
        return TopicRouteData(
            broker_datas=brokers,
            filter_server_table={one: filters[one] for one in addresses if one in filters},
            queue_datas=queues,
        )

    def brokers(self) -> Iterator[BrokerData | None]:
        """Yield all brokers by name, and None where others may have their turn."""
        for i, name in enumerate(sorted(self._brokers)):
            if i % _PART == _PART - 1:
                yield None
            if name in self._brokers:
                yield self._broker_data(name)

    def clusters(self) -> dict[str, list[str]]:
        """Return the names of the brokers of each cluster."""
        return {cluster: sorted(names) for cluster, names in sorted(self._clusters.items())}

    def topics(self) -> Steps[list[str]]:
        """Return all topics."""
        return self._topics_with(lambda topic, names: True)

    def topics_of_cluster(self, cluster: str) -> Steps[list[str]]:
        """Return the topics that a broker of the cluster has."""
        members = set(self._clusters.get(cluster, ()))
        return self._topics_with(lambda topic, names: not members.isdisjoint(names))

    def system_topics(self) -> Steps[tuple[list[str], str | None]]:
        """Return the topics that are named after clusters and brokers, and some broker's address.

        Whoever asks goes on to ask that broker for the others.
        """
        names = yield from long_replies.sort({*self._clusters, *self._brokers})
        first = self._brokers[min(self._brokers)].addresses if self._brokers else {}
        return names, first[min(first)] if first else None

    def unit_topics(self) -> Steps[list[str]]:
        """Return the topics of one unit."""
        return self._topics_with_flag(lambda flag: flag & SYS_FLAG_UNIT != 0)

    def unit_sub_topics(self) -> Steps[list[str]]:
        """Return the topics that other units subscribe to."""
        return self._topics_with_flag(lambda flag: flag & SYS_FLAG_UNIT_SUB != 0)

    def unit_sub_topics_of_no_unit(self) -> Steps[list[str]]:
        """Return the topics that other units subscribe to and that are of no unit."""
        both = SYS_FLAG_UNIT | SYS_FLAG_UNIT_SUB
        return self._topics_with_flag(lambda flag: flag & both == SYS_FLAG_UNIT_SUB)

    # ------------------------------------------------------------------------------------------

    def _take(
        self, broker: _Broker, broker_name: str, topic: bodies.TopicConfigData, *, only_new: bool
    ) -> None:
        """Take a topic. Raises ``LimitExceeded``: it is left out."""
        name = topic.topic_name
        if only_new and name in broker.queues:
            return
        limits.NAMESRV_NAME_LETTERS.check(len(name), excerpt(name))
        queue = QueueData(
            broker_name=broker_name,
            perm=topic.perm,
            read_queue_nums=topic.read_queue_nums,
            topic_sys_flag=topic.topic_sys_flag,
            write_queue_nums=topic.write_queue_nums,
        )
        self._put(broker, broker_name, name, queue)

    def _put(self, broker: _Broker, broker_name: str, topic: str, queue: QueueData) -> None:
        """Set what a broker has of a topic. Raises ``LimitExceeded``."""
        names = self._names.get(topic)
        if topic not in broker.queues:
            self.bounds.queues.check(self._queue_count + 1)
            if names is None:
                size = len(topic.encode("utf-8", "surrogatepass"))
                self.bounds.topics.check(len(self._names) + 1)
                limits.NAMESRV_TOPIC_BYTES.check(self._topic_bytes + size)
                self._topic_bytes += size
            self._queue_count += 1
        self._names[topic] = _with(names or (), broker_name)
        if len(broker.shapes) >= _SHAPES_MAX:
            broker.shapes.clear()
        shape = (queue.perm, queue.read_queue_nums, queue.write_queue_nums, queue.topic_sys_flag)
        broker.queues[topic] = broker.shapes.setdefault(shape, queue)

    def _unlink(self, topic: str, broker_name: str) -> None:
        """Forget that a broker had a topic, unless it has it (again)."""
        names = self._names.get(topic)
        if names is None or self._queue(topic, broker_name) is not None:
            return
        names = _without(names, broker_name)
        if names:
            self._names[topic] = names
        else:
            del self._names[topic]
            self._topic_bytes -= len(topic.encode("utf-8", "surrogatepass"))

    def _queue(self, topic: str, broker_name: str) -> QueueData | None:
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.queues.get(topic)

    def _release(self, address: str, alive: _Alive) -> None:
        """Forget that an address registered over its connection."""
        known = self._addresses.get(id(alive.connection))
        if known is not None:
            known.discard(address)
            if not known:
                del self._addresses[id(alive.connection)]

    def _forget(self, address: str) -> None:
        self._filter_servers.pop(address, None)
        alive = self._alive.pop(address, None)
        if alive is not None:
            self._release(address, alive)

    def _remove(self, address: str) -> None:
        alive = self._alive.get(address)
        for broker_name in list(alive.names) if alive is not None else ():
            broker = self._brokers.get(broker_name)
            if broker is not None:
                self._drop_address(broker_name, broker, address)
        self._forget(address)

    def _drop_address(self, broker_name: str, broker: _Broker, address: str) -> bool:
        """Remove an address of a broker; the name leaves with its last one."""
        ids = [broker_id for broker_id, one in broker.addresses.items() if one == address]
        for broker_id in ids:
            del broker.addresses[broker_id]
        if ids and address in self._alive:
            self._alive[address].names.discard(broker_name)
        if not broker.addresses:
            del self._brokers[broker_name]
            for cluster in broker.clusters:
                members = self._clusters.get(cluster, set())
                members.discard(broker_name)
                if not members:
                    self._clusters.pop(cluster, None)
            self._left.append((broker_name, iter(broker.queues)))
        return bool(ids)

    def _set_permission(self, broker_name: str, change: Callable[[int], int]) -> Steps[int]:
        broker = self._brokers.get(broker_name)
        count = 0
        for i, topic in enumerate(list(broker.queues) if broker is not None else ()):
            if i % _PART == _PART - 1:
                yield
            if broker is None or self._brokers.get(broker_name) is not broker:
                break
            queue = broker.queues.get(topic)
            if queue is not None:
                # A new value: a route that was handed out stays as it was.
                changed = msgspec.structs.replace(queue, perm=change(queue.perm))
                self._put(broker, broker_name, topic, changed)
                count += 1
        return count

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        addresses = dict(sorted(broker.addresses.items()))
        return BrokerData(broker_addrs=addresses, broker_name=name, cluster=broker.cluster)

    def _topics_with(self, is_wanted: Callable[[str, Collection[str]], bool]) -> Steps[list[str]]:
        """Return the topics, with the names of brokers that have them, that are wanted."""
        found, looked_at = [], 0
        for topic in list(self._names):
            names = [
                name for name in self._names.get(topic, ()) if self._queue(topic, name) is not None
            ]
            if names and is_wanted(topic, names):
                found.append(topic)
            looked_at += 1 + len(names)
            if looked_at > _LIST_PART:
                looked_at = 0
                yield
        return (yield from long_replies.sort(found))

    def _topics_with_flag(self, is_wanted: Callable[[int], bool]) -> Steps[list[str]]:
        # Of several brokers one is asked, as Java does: a topic has the same flags on all.
        def has_flag(topic: str, names: Collection[str]) -> bool:
            queue = self._queue(topic, min(names))
            return queue is not None and is_wanted(queue.topic_sys_flag)

        return self._topics_with(has_flag)


def _with(names: _Names, name: str) -> _Names:
    if name in names:
        return names
    if not names:
        return (name,)
    if isinstance(names, tuple):
        return {*names, name}
    names.add(name)
    return names


def _without(names: _Names, name: str) -> _Names:
    if isinstance(names, set):
        names.discard(name)
        return names
    return () if names == (name,) else names


def _state(data_version: DataVersion | None) -> int:
    return 0 if data_version is None else data_version.state_version
