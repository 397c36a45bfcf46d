"""The route table: the behaviour of 4.9, and a flat model in any order of events."""

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from reput.format.bodies import DataVersion, TopicConfigData
from reput.namesrv import route_table
from reput.namesrv.route_table import _PART, EXPIRY_MS, Registration, RouteTable
from reput.remoting.time_slices import run_whole

CLUSTER = "DefaultCluster"
MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"
HA = "10.0.0.1:10912"


def topic(name: str, *, queues: int = 4, perm: int = 6, sys_flag: int = 0) -> TopicConfigData:
    return TopicConfigData(
        order=False,
        perm=perm,
        read_queue_nums=queues,
        topic_filter_type="SINGLE_TAG",
        topic_name=name,
        topic_sys_flag=sys_flag,
        write_queue_nums=queues,
    )


def registration_of(
    *names: str,
    version: int = 1,
    broker: str = "broker-a",
    broker_id: int = 0,
    address: str = MASTER,
    **more: object,
) -> Registration:
    return Registration(
        **{  # type: ignore[arg-type]
            "cluster": CLUSTER,
            "broker_name": broker,
            "broker_id": broker_id,
            "address": address,
            "ha_address": HA,
            "data_version": DataVersion(counter=version, timestamp=5),
            "topics": [topic(name) for name in names],
            **more,
        }
    )


@pytest.fixture
def routes() -> RouteTable:
    return RouteTable()


def addresses(routes: RouteTable, name: str) -> dict[int, str] | None:
    route = run_whole(routes.route(name))
    return None if route is None else route.broker_datas[0].broker_addrs


# --- registering ------------------------------------------------------------------


def test_filter_servers(routes: RouteTable) -> None:
    run_whole(routes.register(registration_of("A", filter_servers=["f:1"]), "c", 0))
    run_whole(routes.register(registration_of("A", filter_servers=None), "c", 0))
    assert run_whole(routes.route("A")).filter_server_table == {MASTER: ["f:1"]}  # type: ignore[union-attr]
    run_whole(routes.register(registration_of("A", filter_servers=[]), "c", 0))
    assert run_whole(routes.route("A")).filter_server_table == {}  # type: ignore[union-attr]


def test_each_part_of_a_registration_counts_with_the_same_version(routes: RouteTable) -> None:
    """A broker with many topics registers them in parts; Java ignores changes after the first."""
    old = [topic(name, queues=4) for name in "ABC"]
    run_whole(routes.register(registration_of(topics=old), "c", 0))
    for name in "ABC":
        part = registration_of(topics=[topic(name, queues=16)], version=2)
        run_whole(routes.register(part, "c", 0))
    for name in "ABC":
        route = run_whole(routes.route(name))
        assert [queue.write_queue_nums for queue in route.queue_datas] == [16]  # type: ignore[union-attr]


def test_a_registration_without_changes_leaves_permissions_of_operators(
    routes: RouteTable,
) -> None:
    run_whole(routes.register(registration_of("A"), "c", 0))
    run_whole(routes.wipe_write_permission("broker-a"))
    run_whole(routes.register(registration_of("A", "B"), "c", 0))
    perms = [run_whole(routes.route(name)).queue_datas[0].perm for name in "AB"]  # type: ignore[union-attr]
    assert perms == [4, 6]


# --- leaving ----------------------------------------------------------------------


def test_only_the_named_id_of_an_address_is_unregistered(routes: RouteTable) -> None:
    run_whole(routes.register(registration_of("A"), "c", 0))
    assert not routes.unregister("broker-a", 1, MASTER)
    assert addresses(routes, "A") == {0: MASTER}
    assert routes.unregister("broker-a", 0, MASTER)
    assert addresses(routes, "A") is None


def test_a_sign_of_life_takes_a_broker_to_its_connection(routes: RouteTable) -> None:
    """A broker whose tables have not changed sends only 322 after a reconnect."""
    run_whole(routes.register(registration_of("A"), "old", 0))
    routes.refresh(MASTER, "new", 1)
    assert routes.disconnect("old") == []
    assert addresses(routes, "A") == {0: MASTER}
    assert routes.disconnect("new") == [MASTER]


def test_connections_are_compared_by_identity(routes: RouteTable) -> None:
    run_whole(routes.register(registration_of("A"), [1], 0))
    assert routes.disconnect([1]) == []


# --- topics -----------------------------------------------------------------------


def test_write_permission(routes: RouteTable) -> None:
    run_whole(
        routes.register(
            registration_of(topics=[topic("A", perm=6), topic("B", perm=4), topic("C", perm=7)]),
            "",
            0,
        )
    )
    before = run_whole(routes.route("A"))
    assert run_whole(routes.wipe_write_permission("broker-a")) == 3
    assert run_whole(routes.wipe_write_permission("nobody")) == 0

    def perms() -> list[int]:
        return [run_whole(routes.route(name)).queue_datas[0].perm for name in "ABC"]  # type: ignore[union-attr]

    assert perms() == [4, 4, 5]
    assert run_whole(routes.add_write_permission("broker-a")) == 3
    assert perms() == [6, 6, 6]
    assert before is not None
    assert before.queue_datas[0].perm == 6, "a route that was handed out changes no more"


def test_equal_tables_have_equal_listings() -> None:
    both = [registration_of("A", "B"), registration_of("A", broker="b", address=SLAVE)]
    table, other = RouteTable(), RouteTable()
    for registration in both:
        run_whole(table.register(registration, "", 0))
    for registration in reversed(both):
        run_whole(other.register(registration, "", 0))
    assert run_whole(table.route("A")) == run_whole(other.route("A"))
    assert [broker.broker_name for broker in table.brokers() if broker] == ["b", "broker-a"]


# --- long work in steps -------------------------------------------------------


def test_a_large_registration_yields_to_other_work(routes: RouteTable) -> None:
    count = 10_000
    names = [f"topic-{i:05}" for i in range(count)]
    steps = list(routes.register(registration_of(*names), "c", 0))
    assert len(steps) >= count // 100
    assert run_whole(routes.topics()) == names
    assert len(list(routes.topics())) >= count // 1_000
    assert len(list(routes.wipe_write_permission("broker-a"))) >= count // 100
    routes.disconnect("c")
    assert run_whole(routes.topics()) == []
    assert len(list(routes.tidy())) >= count // 100
    assert routes.topic_count == 0


def test_a_broker_that_unregisters_while_registering_is_removed(routes: RouteTable) -> None:
    names = [f"T{i}" for i in range(1_000)]
    work = routes.register(registration_of(*names), "c", 0)
    next(work)
    routes.disconnect("c")
    run_whole(routes.register(registration_of("T5", broker="broker-b", address=SLAVE), "s", 0))
    run_whole(work)
    assert run_whole(routes.topics()) == ["T5"]
    run_whole(routes.tidy())
    assert routes.topic_count == 1


def test_an_interrupted_registration_is_requested_again(routes: RouteTable) -> None:
    run_whole(routes.register(registration_of(topics=[topic("A", queues=1)]), "c", 0))
    names = [topic(f"T{i}") for i in range(1_000)]
    work = routes.register(
        registration_of(topics=[*names, topic("A", queues=9)], version=2), "c", 0
    )
    next(work)
    work.close()
    assert routes.is_changed(MASTER, registration_of(version=2).data_version)
    run_whole(routes.register(registration_of(topics=[topic("A", queues=9)], version=2), "c", 0))
    route = run_whole(routes.route("A"))
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 9


def test_a_broker_that_returns_before_the_cleanup_keeps_its_topics(routes: RouteTable) -> None:
    names = [f"T{i:03}" for i in range(300)]
    run_whole(routes.register(registration_of(*names), "c", 0))
    routes.disconnect("c")
    tidying = routes.tidy()
    next(tidying)
    run_whole(routes.register(registration_of(*names[::2]), "c", 0))
    run_whole(tidying)
    assert run_whole(routes.topics()) == names[::2]
    assert routes.topic_count == 150


def test_cleanup_is_linear_in_the_brokers_that_leave() -> None:
    """Work is counted in visits to brokers: each leaves separately."""
    looked_at = 0

    class Counted(RouteTable):
        def _drop_address(self, *arguments: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return super()._drop_address(*arguments)  # type: ignore[arg-type]

    routes = Counted()
    for i in range(2_000):
        run_whole(
            routes.register(registration_of(broker=f"b{i}", address=f"h:{i}"), f"c{i % 20}", 0)
        )
    for i in range(10):
        routes.disconnect(f"c{i}")
    while routes.expire(EXPIRY_MS + 1):
        pass
    assert looked_at == 2_000
    assert routes.broker_count == 0


# --- against a model --------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
ADDRESSES = st.sampled_from([f"h:{port}" for port in range(5)])
IDS = st.integers(0, 2)
TOPICS = st.sampled_from(["T1", "T2", "T3"])
CLUSTERS = st.sampled_from(["c1", "c2"])
CONNECTIONS = st.sampled_from(["x", "y", "z"])


@dataclass
class Model:
    """The route table as flat facts, each with its whole key."""

    places: dict[tuple[str, int], str] = field(default_factory=dict)  # Name, id -> address.
    cluster_of: dict[str, str] = field(default_factory=dict)
    in_cluster: set[tuple[str, str]] = field(default_factory=set)
    alive: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # ms, version, connection
    perms: dict[tuple[str, str], int] = field(default_factory=dict)  # Topic, name.
    has_set_permissions: set[str] = field(default_factory=set)  # Names: set by an operator.

    def forget(self, *addresses: str) -> None:
        self.alive = {
            address: value for address, value in self.alive.items() if address not in addresses
        }
        self.places = {
            key: address for key, address in self.places.items() if address not in addresses
        }
        self.tidy()

    def tidy(self) -> None:
        names = {name for name, _ in self.places}
        self.cluster_of = {
            name: cluster for name, cluster in self.cluster_of.items() if name in names
        }
        self.in_cluster = {(cluster, name) for cluster, name in self.in_cluster if name in names}
        self.perms = {key: perm for key, perm in self.perms.items() if key[1] in names}
        self.has_set_permissions &= names


class RouteMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        route_table._PART = 1  # Other work runs between any two topics.
        self.routes = RouteTable()
        self.model = Model()
        self.now_ms = 0

    @rule(
        cluster=CLUSTERS,
        name=NAMES,
        broker_id=IDS,
        address=ADDRESSES,
        version=st.integers(0, 2),
        topics=st.dictionaries(TOPICS, st.sampled_from([2, 4, 6])),
        connection=CONNECTIONS,
    )
    def register(
        self,
        cluster: str,
        name: str,
        broker_id: int,
        address: str,
        version: int,
        topics: dict[str, int],
        connection: str,
    ) -> None:
        registration = registration_of(
            broker=name,
            broker_id=broker_id,
            address=address,
            version=version,
            cluster=cluster,
            topics=[topic(topic_name, perm=perm) for topic_name, perm in topics.items()],
        )
        result = run_whole(self.routes.register(registration, connection, self.now_ms))
        model = self.model
        is_first = (name, broker_id) not in model.places
        for other in range(3):
            if model.places.get((name, other)) == address and other != broker_id:
                del model.places[name, other]
        model.places[name, broker_id] = address
        model.cluster_of.setdefault(name, cluster)
        model.in_cluster.add((cluster, name))
        was = model.alive.get(address)
        if broker_id == 0 and (is_first or was is None or was[1] != version):
            model.has_set_permissions.discard(name)
        for topic_name, perm in topics.items():
            is_set = name in model.has_set_permissions and (topic_name, name) in model.perms
            if broker_id == 0 and not is_set:
                model.perms[topic_name, name] = perm
        model.alive[address] = (self.now_ms, version, connection)
        assert result.is_new == (was is None)
        master = model.places.get((name, 0))
        wanted = master if broker_id and master in model.alive else None
        assert result.master_address == wanted

    @rule(name=NAMES, broker_id=IDS, address=ADDRESSES)
    def unregister(self, name: str, broker_id: int, address: str) -> None:
        self.routes.unregister(name, broker_id, address)
        if self.model.places.get((name, broker_id)) == address:
            del self.model.places[name, broker_id]
        if address not in self.model.places.values():
            self.model.alive.pop(address, None)
        self.model.tidy()

    @rule(connection=CONNECTIONS)
    def disconnect(self, connection: str) -> None:
        lost = sorted(
            address for address, (_, _, its) in self.model.alive.items() if its == connection
        )
        assert self.routes.disconnect(connection) == lost
        self.model.forget(*lost)

    @rule(passed_ms=st.sampled_from([1, 59_999, 60_000, 120_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        late = sorted(
            broker
            for broker, (last_ms, _, _) in self.model.alive.items()
            if self.now_ms - last_ms > 120_000
        )
        assert [broker.address for broker in self.routes.expire(self.now_ms)] == late
        self.model.forget(*late)

    @rule(address=ADDRESSES, connection=CONNECTIONS)
    def sign_of_life(self, address: str, connection: str) -> None:
        self.routes.refresh(address, connection, self.now_ms)
        if address in self.model.alive:
            version = self.model.alive[address][1]
            self.model.alive[address] = (self.now_ms, version, connection)

    @rule(name=TOPICS, cluster=st.none() | CLUSTERS)
    def delete_topic(self, name: str, cluster: str | None) -> None:
        self.routes.delete_topic(name, cluster)
        self.model.perms = {
            (topic_name, broker): perm
            for (topic_name, broker), perm in self.model.perms.items()
            if topic_name != name or (cluster and (cluster, broker) not in self.model.in_cluster)
        }

    @rule(name=NAMES, is_wipe=st.booleans())
    def write_permission(self, name: str, is_wipe: bool) -> None:
        keys = [key for key in self.model.perms if key[1] == name]
        if name in self.model.cluster_of:
            self.model.has_set_permissions.add(name)
        for key in keys:
            self.model.perms[key] = self.model.perms[key] & 4 if is_wipe else 6
        change = self.routes.wipe_write_permission if is_wipe else self.routes.add_write_permission
        assert run_whole(change(name)) == len(keys)

    @rule(steps=st.integers(1, 4))
    def tidying_continues(self, steps: int) -> None:
        for _ in itertools.islice(self.routes.tidy(), steps):
            pass

    @invariant()
    def routes_equal_those_of_the_model(self) -> None:
        model = self.model
        assert run_whole(self.routes.topics()) == sorted(
            {topic_name for topic_name, _ in model.perms}
        )
        for name in ("T1", "T2", "T3"):
            brokers = sorted(broker for topic_name, broker in model.perms if topic_name == name)
            route = run_whole(self.routes.route(name))
            if not brokers:
                assert route is None
                continue
            assert route is not None
            perms = [(data.broker_name, data.perm) for data in route.queue_datas]
            assert perms == [(broker, model.perms[name, broker]) for broker in brokers]
            assert [data.broker_name for data in route.broker_datas] == brokers

    def teardown(self) -> None:
        """Check that no state of removed brokers is left."""
        run_whole(self.routes.tidy())
        assert self.routes.is_tidy
        for address in list(self.model.alive):
            for name, broker_id in itertools.product("abc", range(3)):
                self.routes.unregister(name, broker_id, address)
        run_whole(self.routes.tidy())
        counts = (self.routes.broker_count, self.routes.address_count, self.routes.topic_count)
        assert counts == (0, 0, 0)
        assert self.routes._queue_count == self.routes._topic_bytes == 0
        assert not self.routes._addresses
        route_table._PART = _PART

    @invariant()
    def the_cluster_equals_that_of_the_model(self) -> None:
        model = self.model
        brokers = [broker for broker in self.routes.brokers() if broker is not None]
        places = {
            (broker.broker_name, broker_id): address
            for broker in brokers
            for broker_id, address in broker.broker_addrs.items()
        }
        assert places == model.places
        clusters = {broker.broker_name: broker.cluster for broker in brokers}
        assert clusters == model.cluster_of
        members = {(c, name) for c, names in self.routes.clusters().items() for name in names}
        assert members == model.in_cluster
        for cluster in ("c1", "c2"):
            wanted = {
                topic_name
                for topic_name, name in model.perms
                if (cluster, name) in model.in_cluster
            }
            assert run_whole(self.routes.topics_of_cluster(cluster)) == sorted(wanted)


def test_the_table_agrees_with_the_model() -> None:
    run_state_machine_as_test(RouteMachine)
