"""The brokers of each topic and their addresses, as registered by brokers.

    broker name -> cluster, id -> address     id 0 is the master
                   topic -> queues            its topics
    topic -> broker names                     brokers that may have it
    address -> latest sign of life, version of its tables, its connection, its broker names
    connection -> addresses

A broker registers its whole table every 30 s, and single topics when they change. Topics are added
and overwritten, never removed because they are missing: a broker that registers one topic still has
the others. An address is removed when it unregisters, when its connection ends, or when it was
silent for two minutes. A broker name is removed with its last address, and with it its queues. If
only the master is gone, the route is unchanged: consumers read from the slaves.

As in Java, any client can register as a broker: an address that takes over a live broker's name and
id is reported (``Registered.displaced``). All resources are limited.

Pure: the time is an argument, and a connection is any object, compared by identity. Lists are
sorted by name, so that equal tables give equal replies. Long operations are generators that yield
so that other requests are served; the table may change meanwhile. A removed broker is invisible at
once; ``tidy`` removes its name from its topics later.

It differs from Java 4.9 where 4.9 loses routes:

* A topic that a broker name does not have yet is added even if the version is unchanged. After a
  restart of the name server a broker may register a single topic first, and 4.9 then ignores all
  others until one of them changes (5.x adds them).
* An address unregisters itself, not the address that has its id by now (as 5.x).
* The end of a connection removes all brokers that registered over it; 4.9 removes one.
* A broker with an older state version does not replace a live one (as 5.x).

Source: rocketmq 4.9.7 and 5.3.3 ``RouteInfoManager``.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from reput.errors import LimitExceeded, excerpt
from reput.format import bodies, limits as format_limits
from reput.format.bodies import BrokerData, DataVersion, QueueData, TopicRouteData
from reput.format.codes import MASTER_ID, PERM_READ, PERM_WRITE
from reput.limits import Limit
from reput.namesrv import limits
from reput.remoting import long_replies
from reput.remoting.time_slices import Steps

EXPIRY_MS = 120_000
"""Silence after which a broker is removed, in ms."""
EXPIRED_MAX = 1_000
"""Silent brokers that are removed in one step."""


SYS_FLAG_UNIT = 1
"""Flag of a topic in unit mode."""
SYS_FLAG_UNIT_SUB = 2
"""Flag of a topic that other units subscribe to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The registration of a broker."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    """Address for clients, ``ip:port``."""
    ha_address: str = ""
    """Address for slaves, ``ip:port``."""
    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Sequence[bodies.TopicConfigData] = ()
    enable_acting_master: bool = False
    """Whether the slave with the lowest id serves requests while there is no master (5.x)."""
    filter_servers: Sequence[str] | None = None
    """None leaves the known filter servers; an empty list removes them."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The result of a registration, for the reply and for the log."""

    master_address: str | None
    """Address of the master for a slave; None if the master is not registered."""
    master_ha_address: str | None
    is_new: bool
    """True if the address was not registered before."""
    displaced: str | None = None
    """Address of another running broker with the same name and id; None if there was none."""
    is_ignored: bool = False
    """True if that address has a newer state version, and remains."""
    left_out: str = ""
    """Why a topic was left out; empty if none was."""
    left_out_counts: Mapping[str, int] = field(default_factory=dict)
    """Limit -> number of topics that were left out because of it."""


@dataclass(frozen=True, slots=True)
class ExpiredBroker:
    """A broker that was removed because it was silent."""

    address: str
    connection: object
    """Connection to be closed."""
    silent_ms: int


@dataclass(frozen=True, slots=True)
class MembersChange:
    """Another broker of a name has the smallest id."""

    broker_name: str
    addresses: Mapping[int, str]
    """Addresses by id after the change."""
    enable_acting_master: bool
    offline_address: str | None = None
    """Address of the broker that had the smallest id; None: a smaller one has registered."""
    ha_address: str | None = None
    """Address for slaves of the broker that has registered."""


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Limits of all brokers together; each has an option."""

    brokers: Limit = limits.NAMESRV_BROKERS
    topics: Limit = limits.NAMESRV_TOPICS
    queues: Limit = limits.NAMESRV_QUEUES


@dataclass(slots=True, eq=False)
class _Broker:
    cluster: str
    """Cluster of its first registration."""
    clusters: set[str]
    addresses: dict[int, str]
    queues: dict[str, QueueData]
    """Queues by topic."""
    shapes: dict[tuple[int, ...], QueueData]
    """Distinct values of ``queues``, shared as thousands of topics have the same."""
    enable_acting_master: bool = False
    """Value of its latest registration."""
    has_set_permissions: bool = False
    """True if an operator has changed permissions since its tables changed (205, 327)."""


@dataclass(slots=True)
class _Alive:
    last_ms: int
    data_version: DataVersion | None
    """None while its topics are being added."""
    connection: object
    ha_address: str
    names: set[str]


_Names = tuple[str, ...] | set[str]
"""A single name is a tuple: small, and ignored by the garbage collector."""

_SHAPES_MAX = 256
_LIST_PART = 500
"""Topics, and brokers of topics, that are examined between two yields."""
_PART = 64
"""Topics that are added or removed between two yields."""


_NEVER_ACCEPTED = frozenset({limits.NAMESRV_NAME_LETTERS.name, format_limits.TOPIC_QUEUES.name})
"""Limits over which a topic is always left out."""


class RouteTable:
    """The table of one name server. Times come from any monotonic clock.

    Args:
        bounds: Limits of all brokers together.
        on_members: Gets each change of the smallest id of a name.
    """

    def __init__(
        self,
        bounds: RouteLimits | None = None,
        on_members: Callable[[MembersChange], object] = lambda _: None,
    ) -> None:
        self.bounds = bounds or RouteLimits()
        self._on_members = on_members
        self.takeover_count = 0
        """Number of takeovers of a live broker's name and id by another address."""
        self._brokers: dict[str, _Broker] = {}  # by name
        self._names: dict[str, _Names] = {}  # topic -> broker names, including removed ones
        self._clusters: dict[str, set[str]] = {}  # cluster -> broker names
        self._alive: dict[str, _Alive] = {}  # by address
        self._addresses: dict[int, set[str]] = {}  # id of a connection -> addresses
        self._filter_servers: dict[str, list[str]] = {}  # by address
        self._left: deque[tuple[str, Iterator[str]]] = deque()  # removed broker, its topics
        self._queue_count = 0
        self._topic_bytes = 0

    @property
    def broker_count(self) -> int:
        """Number of broker names."""
        return len(self._brokers)

    @property
    def address_count(self) -> int:
        """Number of addresses of brokers."""
        return len(self._alive)

    @property
    def topic_count(self) -> int:
        """Number of topics, including those of removed brokers until ``tidy``."""
        return len(self._names)

    # Brokers ----------------------------------------------------------------------------------

    def register(
        self, registration: Registration, connection: object, now_ms: int
    ) -> Steps[Registered]:
        """Apply a registration. Topics are accepted only from a master.

        Raises:
            LimitExceeded: There would be too many brokers. Topics over a limit are left out.
        """
        self._check(registration, connection)
        broker = self._brokers.get(registration.broker_name)
        displaced = None if broker is None else self._displaced(broker, registration, now_ms)
        if displaced:
            self.takeover_count += 1
            if _state(self._alive[displaced].data_version) > _state(registration.data_version):
                return Registered(None, None, False, displaced, is_ignored=True)
        if broker is None:
            broker = _Broker(registration.cluster, set(), {}, {}, {})
            self._brokers[registration.broker_name] = broker
        broker.enable_acting_master = registration.enable_acting_master
        broker.clusters.add(registration.cluster)
        self._clusters.setdefault(registration.cluster, set()).add(registration.broker_name)
        is_smallest = registration.broker_id < min(broker.addresses, default=0)
        is_first = registration.broker_id not in broker.addresses
        is_changed = is_first or self.is_changed(registration.address, registration.data_version)
        is_new = self._record_address(registration, broker, connection, now_ms)
        alive = self._alive[registration.address]
        alive.ha_address = registration.ha_address
        if is_smallest:
            change = MembersChange(
                registration.broker_name,
                dict(broker.addresses),
                broker.enable_acting_master,
                ha_address=registration.ha_address,
            )
            self._on_members(change)
        if registration.filter_servers:
            self._filter_servers[registration.address] = list(registration.filter_servers)
        elif registration.filter_servers is not None:
            self._filter_servers.pop(registration.address, None)

        left_out, counts = "", Counter[str]()
        if registration.broker_id == MASTER_ID:
            if is_changed:
                # until all are added: if interrupted, the broker registers them again
                alive.data_version = None
                broker.has_set_permissions = False
            for i, topic in enumerate(registration.topics):
                if i % _PART == _PART - 1:
                    yield
                if self._brokers.get(registration.broker_name) is not broker:
                    break
                try:
                    self._add(broker, registration.broker_name, topic)
                except LimitExceeded as error:
                    left_out = str(error)
                    counts[error.limit] += 1
        if self._alive.get(registration.address) is alive:
            # Topics without room are to be registered again: there may be room the next time.
            lacks_room = bool(counts.keys() - _NEVER_ACCEPTED)
            alive.data_version = None if lacks_room else registration.data_version

        master = broker.addresses.get(MASTER_ID) if registration.broker_id != MASTER_ID else None
        if master is None or master not in self._alive:
            return Registered(
                None, None, is_new, displaced, left_out=left_out, left_out_counts=counts
            )
        ha_address = self._alive[master].ha_address
        return Registered(
            master, ha_address, is_new, displaced, left_out=left_out, left_out_counts=counts
        )

    def _check(self, registration: Registration, connection: object) -> None:
        """Refuse a registration that exceeds a limit. Raises ``LimitExceeded``."""
        filter_servers = registration.filter_servers or ()
        limits.NAMESRV_FILTER_SERVERS.check(len(filter_servers))
        for name in (
            registration.cluster,
            registration.broker_name,
            registration.address,
            registration.ha_address,
            *filter_servers,
        ):
            limits.NAMESRV_NAME_LETTERS.check(len(name))
        broker, alive = (
            self._brokers.get(registration.broker_name),
            self._alive.get(registration.address),
        )
        if broker is None:
            self.bounds.brokers.check(len(self._brokers) + 1, "broker names")
        else:
            ids = broker.addresses.keys() | {registration.broker_id}
            limits.NAMESRV_BROKER_IDS.check(len(ids), excerpt(registration.broker_name))
            clusters = broker.clusters | {registration.cluster}
            limits.NAMESRV_BROKER_CLUSTERS.check(len(clusters), excerpt(registration.broker_name))
        if alive is None:
            self.bounds.brokers.check(len(self._alive) + 1, "addresses")
        else:
            names = alive.names | {registration.broker_name}
            limits.NAMESRV_ADDRESS_BROKERS.check(len(names), excerpt(registration.address))
        known = self._addresses.get(id(connection), set())
        if registration.address not in known:
            limits.NAMESRV_BROKERS_PER_CONNECTION.check(len(known) + 1)

    def _displaced(self, broker: _Broker, registration: Registration, now_ms: int) -> str | None:
        """Return another live address with the name and id of a registration, or None."""
        known = broker.addresses.get(registration.broker_id)
        alive = None if known is None or known == registration.address else self._alive.get(known)
        return known if alive is not None and alive.last_ms + EXPIRY_MS >= now_ms else None

    def _record_address(
        self, registration: Registration, broker: _Broker, connection: object, now_ms: int
    ) -> bool:
        """Record the address of a broker; return whether it is new."""
        # A slave that became master had another id: an address has only one.
        for broker_id, address in list(broker.addresses.items()):
            if address == registration.address and broker_id != registration.broker_id:
                del broker.addresses[broker_id]
        previous = broker.addresses.get(registration.broker_id)
        if previous is not None and previous != registration.address and previous in self._alive:
            self._alive[previous].names.discard(registration.broker_name)
        broker.addresses[registration.broker_id] = registration.address
        alive = self._alive.get(registration.address)
        is_new = alive is None
        if alive is None:
            alive = self._alive[registration.address] = _Alive(now_ms, None, connection, "", set())
        else:
            self._release(registration.address, alive)
            alive.last_ms, alive.connection = now_ms, connection
        alive.names.add(registration.broker_name)
        self._addresses.setdefault(id(connection), set()).add(registration.address)
        return is_new

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> list[str]:
        """Add one topic of registered brokers, as 5.x brokers may send it.

        Returns:
            Broker names that are not registered; if there are any, nothing is added.

        Raises:
            LimitExceeded: There are too many topics, or brokers of this one.
        """
        limits.NAMESRV_NAME_LETTERS.check(len(topic))
        queue_by_broker = {queue_data.broker_name: queue_data for queue_data in queues}
        limits.ROUTE_BROKERS.check(len(queue_by_broker), excerpt(topic))
        unknown = sorted(queue_by_broker.keys() - self._brokers.keys())
        if not unknown:
            for name, queue in queue_by_broker.items():
                self._put(self._brokers[name], name, topic, queue)
        return unknown

    def unregister(self, broker_name: str, broker_id: int, address: str) -> bool:
        """Remove an address of a broker that unregisters; return False if it was not registered.

        In Java it is removed under any id, so that a slave can unregister its promoted successor.
        """
        alive, broker = self._alive.get(address), self._brokers.get(broker_name)
        if broker is None or broker.addresses.get(broker_id) != address:
            was_there = False
        else:
            was_there = self._drop_address(broker_name, broker, address)
        if alive is None or alive.names:  # the address has other broker names
            return was_there
        self._forget(address)
        return True

    def disconnect(self, connection: object) -> list[str]:
        """Remove the brokers of a closed connection; return their addresses."""
        lost = sorted(self._addresses.get(id(connection), ()))
        for address in lost:
            self._remove(address)
        return lost

    def expire(self, now_ms: int) -> list[ExpiredBroker]:
        """Remove brokers that were silent for more than ``EXPIRY_MS``.

        Returns:
            The removed brokers, at most ``EXPIRED_MAX`` so that other requests are served.
        """
        gone = [
            ExpiredBroker(address, alive.connection, now_ms - alive.last_ms)
            for address, alive in sorted(self._alive.items())
            if alive.last_ms + EXPIRY_MS < now_ms
        ][:EXPIRED_MAX]
        for broker in gone:
            self._remove(broker.address)
        return gone

    @property
    def is_tidy(self) -> bool:
        """True if nothing is left of removed brokers."""
        return not self._left

    def tidy(self) -> Steps[None]:
        """Remove the topics of removed brokers; yield so that other requests are served."""
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
        """Return True if a broker's tables have changed since its latest registration."""
        return self.data_version(address) != data_version

    def data_version(self, address: str) -> DataVersion | None:
        """Return the version of the tables in a broker's latest registration."""
        alive = self._alive.get(address)
        return alive.data_version if alive else None

    def refresh(self, address: str, connection: object, now_ms: int) -> None:
        """Record a sign of life of a broker, if it is registered.

        The broker belongs to the connection from now on: the end of its former one, which may be
        noticed later, does not remove it.

        Raises:
            LimitExceeded: Too many brokers belong to this connection.
        """
        alive = self._alive.get(address)
        if alive is None:
            return
        known = self._addresses.get(id(connection), set())
        if address not in known:
            limits.NAMESRV_BROKERS_PER_CONNECTION.check(len(known) + 1)
            self._release(address, alive)
            alive.connection = connection
            self._addresses.setdefault(id(connection), set()).add(address)
        alive.last_ms = now_ms

    # Topics -----------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, everywhere or on the brokers of a cluster."""
        of_cluster = self._clusters.get(cluster, set()) if cluster else None
        for name in list(self._names.get(topic, ())):
            if of_cluster is not None and name not in of_cluster:
                continue
            broker = self._brokers.get(name)
            if broker is not None and broker.queues.pop(topic, None) is not None:
                self._queue_count -= 1
            self._unlink(topic, name)

    def wipe_write_permission(self, broker_name: str) -> Steps[int]:
        """Make all topics of a broker read-only; return their number."""
        return self._set_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> Steps[int]:
        """Make all topics of a broker readable and writable; return their number."""
        return self._set_permission(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    # Queries ----------------------------------------------------------------------------------

    def route(self, topic: str) -> Steps[TopicRouteData | None]:
        """Return the route of a topic; None if it has none."""
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
            filter_server_table={
                address: filters[address] for address in addresses if address in filters
            },
            queue_datas=queues,
        )

    def brokers(self) -> Iterator[BrokerData | None]:
        """Yield all brokers by name, and None so that other requests are served."""
        for i, name in enumerate(sorted(self._brokers)):
            if i % _PART == _PART - 1:
                yield None
            if name in self._brokers:
                yield self._broker_data(name)

    def broker(self, name: str) -> BrokerData | None:
        """Return a broker by name, or None."""
        return self._broker_data(name) if name in self._brokers else None

    def clusters(self) -> dict[str, list[str]]:
        """Return the names of the brokers of each cluster."""
        return {cluster: sorted(names) for cluster, names in sorted(self._clusters.items())}

    def topics(self) -> Steps[list[str]]:
        """Return all topics."""
        return self._topics_with(lambda topic, names: True)

    def topics_of_cluster(self, cluster: str) -> Steps[list[str]]:
        """Return the topics of the brokers of a cluster."""
        members = set(self._clusters.get(cluster, ()))
        return self._topics_with(lambda topic, names: not members.isdisjoint(names))

    def system_topics(self) -> Steps[tuple[list[str], str | None]]:
        """Return the topics named after clusters and brokers, and the address of a broker.

        Clients request the other system topics from that broker.
        """
        names = yield from long_replies.sort({*self._clusters, *self._brokers})
        first = self._brokers[min(self._brokers)].addresses if self._brokers else {}
        return names, first[min(first)] if first else None

    def unit_topics(self) -> Steps[list[str]]:
        """Return the topics in unit mode."""
        return self._topics_with_flag(lambda flag: flag & SYS_FLAG_UNIT != 0)

    def unit_sub_topics(self) -> Steps[list[str]]:
        """Return the topics that other units subscribe to."""
        return self._topics_with_flag(lambda flag: flag & SYS_FLAG_UNIT_SUB != 0)

    def unit_sub_topics_of_no_unit(self) -> Steps[list[str]]:
        """Return the topics that other units subscribe to and that are not in unit mode."""
        both = SYS_FLAG_UNIT | SYS_FLAG_UNIT_SUB
        return self._topics_with_flag(lambda flag: flag & both == SYS_FLAG_UNIT_SUB)

    # ------------------------------------------------------------------------------------------

    def _add(self, broker: _Broker, broker_name: str, topic: bodies.TopicConfigData) -> None:
        """Add or change a topic. Raises ``LimitExceeded`` if it must be left out.

        Also with a version that is known: a registration may be one of several parts with the same
        version. In Java only its new topics count then, and changed ones are lost.
        """
        name = topic.topic_name
        known = broker.queues.get(name)
        perm = known.perm if known is not None and broker.has_set_permissions else topic.perm
        if known is not None and _shape(known) == (
            perm, topic.read_queue_nums, topic.write_queue_nums, topic.topic_sys_flag
        ):  # fmt: skip
            return
        limits.NAMESRV_NAME_LETTERS.check(len(name), excerpt(name))
        queue = QueueData(
            broker_name=broker_name,
            perm=perm,
            read_queue_nums=topic.read_queue_nums,
            topic_sys_flag=topic.topic_sys_flag,
            write_queue_nums=topic.write_queue_nums,
        )
        self._put(broker, broker_name, name, queue)

    def _put(self, broker: _Broker, broker_name: str, topic: str, queue: QueueData) -> None:
        """Set the queues of a topic on a broker. Raises ``LimitExceeded``."""
        for count in (queue.read_queue_nums, queue.write_queue_nums):
            format_limits.TOPIC_QUEUES.check_count(count, excerpt(topic))
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
        broker.queues[topic] = broker.shapes.setdefault(_shape(queue), queue)

    def _unlink(self, topic: str, broker_name: str) -> None:
        """Remove a broker from a topic, unless it has the topic (again)."""
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
        """Remove an address from its connection."""
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
        """Remove an address of a broker; the broker name is removed with the last one."""
        ids = [broker_id for broker_id, known in broker.addresses.items() if known == address]
        is_smallest = bool(ids) and min(broker.addresses) in ids
        for broker_id in ids:
            del broker.addresses[broker_id]
        if is_smallest and broker.addresses:
            acting = broker.enable_acting_master
            self._on_members(MembersChange(broker_name, dict(broker.addresses), acting, address))
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
        if broker is not None:
            broker.has_set_permissions = True
        count = 0
        for i, topic in enumerate(list(broker.queues) if broker is not None else ()):
            if i % _PART == _PART - 1:
                yield
            if broker is None or self._brokers.get(broker_name) is not broker:
                break
            queue = broker.queues.get(topic)
            if queue is not None:
                # A new object: routes that were returned before must not change.
                changed = msgspec.structs.replace(queue, perm=change(queue.perm))
                self._put(broker, broker_name, topic, changed)
                count += 1
        return count

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        addresses = dict(sorted(broker.addresses.items()))
        return BrokerData(
            broker_addrs=addresses,
            broker_name=name,
            cluster=broker.cluster,
            enable_acting_master=broker.enable_acting_master,
        )

    def _topics_with(self, is_wanted: Callable[[str, Collection[str]], bool]) -> Steps[list[str]]:
        """Return the topics for which ``is_wanted`` holds, given the names of their brokers."""
        topics, examined_count = [], 0
        for topic in list(self._names):
            names = [
                name for name in self._names.get(topic, ()) if self._queue(topic, name) is not None
            ]
            if names and is_wanted(topic, names):
                topics.append(topic)
            examined_count += 1 + len(names)
            if examined_count > _LIST_PART:
                examined_count = 0
                yield
        return (yield from long_replies.sort(topics))

    def _topics_with_flag(self, is_wanted: Callable[[int], bool]) -> Steps[list[str]]:
        # One of several brokers decides, as in Java: a topic has the same flags on all.
        def has_flag(topic: str, names: Collection[str]) -> bool:
            queue = self._queue(topic, min(names))
            return queue is not None and is_wanted(queue.topic_sys_flag)

        return self._topics_with(has_flag)


def _shape(queue: QueueData) -> tuple[int, ...]:
    return queue.perm, queue.read_queue_nums, queue.write_queue_nums, queue.topic_sys_flag


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
