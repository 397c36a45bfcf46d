"""The route table: what 4.9's does, and a flat model in any order of events."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reput.format.bodies import BrokerData, DataVersion, QueueData, TopicConfigData
from reput.namesrv.route_table import EXPIRY_MS, Registered, Registration, RouteTable

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


def said(
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
    route = routes.route(name)
    return None if route is None else route.broker_datas[0].broker_addrs


# --- registering ------------------------------------------------------------------


def test_a_master_brings_its_topics(routes: RouteTable) -> None:
    registered = routes.register(said("A", "B"), "connection", 0)
    assert registered == Registered(None, None, is_new=True)
    assert routes.topics() == ["A", "B"]
    route = routes.route("A")
    assert route is not None
    assert route.broker_datas == [
        BrokerData(broker_addrs={0: MASTER}, broker_name="broker-a", cluster=CLUSTER)
    ]
    assert route.queue_datas == [
        QueueData(
            broker_name="broker-a", perm=6, read_queue_nums=4, topic_sys_flag=0, write_queue_nums=4
        )
    ]
    assert route.filter_server_table == {}
    assert not routes.register(said("A"), "connection", 0).is_new


def test_a_slave_brings_no_topics_and_learns_its_master(routes: RouteTable) -> None:
    slave = said("S", broker_id=1, address=SLAVE)
    assert routes.register(slave, "s", 0) == Registered(None, None, is_new=True)
    routes.register(said("A"), "m", 0)
    assert routes.register(slave, "s", 0) == Registered(MASTER, HA, is_new=False)
    assert routes.topics() == ["A"]
    assert addresses(routes, "A") == {0: MASTER, 1: SLAVE}


def test_topics_are_never_removed_by_being_left_out(routes: RouteTable) -> None:
    routes.register(said("A", "B"), "c", 0)
    routes.register(said("A", version=2), "c", 0)
    assert routes.topics() == ["A", "B"]


def test_an_unchanged_version_changes_no_topic(routes: RouteTable) -> None:
    routes.register(said("A"), "c", 0)
    routes.register(said(topics=[topic("A", queues=9)]), "c", 0)
    assert routes.route("A").queue_datas[0].read_queue_nums == 4  # type: ignore[union-attr]
    routes.register(said(topics=[topic("A", queues=9)], version=2), "c", 0)
    assert routes.route("A").queue_datas[0].read_queue_nums == 9  # type: ignore[union-attr]


def test_one_topic_first_does_not_hide_the_others(routes: RouteTable) -> None:
    """After a restart of the name server, a new topic is told before the whole table."""
    routes.register(said("New"), "c", 0)
    routes.register(said("New", "Old"), "c", 0)
    assert routes.topics() == ["New", "Old"]


def test_the_state_version_counts(routes: RouteTable) -> None:
    routes.register(said("A"), "c", 0)
    newer = DataVersion(counter=1, timestamp=5, state_version=1)
    assert not routes.is_changed(MASTER, DataVersion(counter=1, timestamp=5))
    assert routes.is_changed(MASTER, newer)


def test_a_slave_that_becomes_the_master_has_one_id(routes: RouteTable) -> None:
    routes.register(said("A"), "m", 0)
    routes.register(said(broker_id=1, address=SLAVE), "s", 0)
    routes.disconnect("m")
    assert addresses(routes, "A") == {1: SLAVE}
    routes.register(said("A", "B", broker_id=0, address=SLAVE), "s", 0)
    assert addresses(routes, "A") == {0: SLAVE}
    assert routes.topics() == ["A", "B"]


def test_a_restarted_master_at_another_address_replaces_the_old_one(routes: RouteTable) -> None:
    routes.register(said("A"), "old", 0)
    routes.register(said("A", address=SLAVE), "new", 0)
    assert addresses(routes, "A") == {0: SLAVE}
    routes.disconnect("old")
    assert addresses(routes, "A") == {0: SLAVE}


def test_a_reconnected_broker_outlives_its_old_connection(routes: RouteTable) -> None:
    routes.register(said("A"), "old", 0)
    routes.register(said("A"), "new", 0)
    assert routes.disconnect("old") == []
    assert routes.topics() == ["A"]


def test_filter_servers(routes: RouteTable) -> None:
    routes.register(said("A", filter_servers=["f:1"]), "c", 0)
    routes.register(said("A", filter_servers=None), "c", 0)
    assert routes.route("A").filter_server_table == {MASTER: ["f:1"]}  # type: ignore[union-attr]
    routes.register(said("A", filter_servers=[]), "c", 0)
    assert routes.route("A").filter_server_table == {}  # type: ignore[union-attr]


def test_one_topic_of_registered_brokers(routes: RouteTable) -> None:
    """5.x with ``enableSingleTopicRegister``."""
    queue = QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)
    assert routes.register_topic("New", [queue]) == ["broker-a"]
    assert routes.topics() == []
    routes.register(said("A"), "c", 0)
    assert routes.register_topic("New", [queue]) == []
    assert routes.register_topic("None", []) == []
    assert routes.topics() == ["A", "New"]


# --- leaving ----------------------------------------------------------------------


def test_a_connection_takes_all_its_brokers_along(routes: RouteTable) -> None:
    """A 5.x container registers several over one connection; 4.9 removes one of them."""
    connection = object()
    routes.register(said("A"), connection, 0)
    routes.register(said("B", broker="broker-b", address=SLAVE), connection, 0)
    assert routes.disconnect(object()) == []
    assert routes.disconnect(connection) == [MASTER, SLAVE]
    assert routes.topics() == []
    assert routes.cluster_info().broker_addr_table == {}
    assert routes.cluster_info().cluster_addr_table == {}


def test_connections_are_compared_by_identity(routes: RouteTable) -> None:
    routes.register(said("A"), [1], 0)
    assert routes.disconnect([1]) == []


def test_a_lost_master_leaves_the_route(routes: RouteTable) -> None:
    routes.register(said("A"), "m", 0)
    routes.register(said(broker_id=1, address=SLAVE), "s", 0)
    routes.disconnect("m")
    assert addresses(routes, "A") == {1: SLAVE}
    routes.disconnect("s")
    assert routes.route("A") is None
    assert routes.topics() == []


def test_unregistering(routes: RouteTable) -> None:
    routes.register(said("A"), "m", 0)
    routes.register(said(broker_id=1, address=SLAVE), "s", 0)
    assert routes.unregister("broker-a", SLAVE)
    assert not routes.unregister("broker-a", SLAVE)
    assert not routes.unregister("nobody", "1.2.3.4:5")
    assert addresses(routes, "A") == {0: MASTER}
    assert routes.unregister("broker-a", MASTER)
    assert routes.topics() == []


def test_the_old_one_does_not_unregister_the_new_one(routes: RouteTable) -> None:
    routes.register(said("A"), "old", 0)
    routes.register(said("A", address=SLAVE), "new", 0)
    routes.unregister("broker-a", MASTER)
    assert addresses(routes, "A") == {0: SLAVE}


def test_expiry_is_after_two_minutes(routes: RouteTable) -> None:
    assert EXPIRY_MS == 120_000
    routes.register(said("A"), "m", 1_000)
    assert routes.expire(121_000) == []
    (gone,) = routes.expire(121_001)
    assert (gone.address, gone.connection, gone.silent_ms) == (MASTER, "m", 120_001)
    assert routes.topics() == []
    assert routes.expire(500_000) == []


def test_a_sign_of_life_delays_expiry(routes: RouteTable) -> None:
    routes.register(said("A"), "m", 0)
    routes.refresh(MASTER, 60_000)
    routes.refresh("unknown:1", 60_000)
    assert routes.expire(180_000) == []
    routes.register(said("A"), "m", 180_000)
    assert routes.expire(300_000) == []
    assert len(routes.expire(300_001)) == 1


# --- topics -----------------------------------------------------------------------


def test_deleting_a_topic(routes: RouteTable) -> None:
    routes.register(said("A", "B"), "m", 0)
    routes.register(said("A", broker="b", address=SLAVE, cluster="Other"), "s", 0)
    routes.delete_topic("A", "Nowhere")
    routes.delete_topic("None", CLUSTER)
    routes.delete_topic("A", "Other")
    assert addresses(routes, "A") == {0: MASTER}
    routes.delete_topic("A", CLUSTER)
    assert routes.topics() == ["B"]
    routes.delete_topic("B")
    routes.delete_topic("B")
    assert routes.topics() == []


def test_write_permission(routes: RouteTable) -> None:
    routes.register(
        said(topics=[topic("A", perm=6), topic("B", perm=4), topic("C", perm=7)]), "", 0
    )
    before = routes.route("A")
    assert routes.wipe_write_permission("broker-a") == 3
    assert routes.wipe_write_permission("nobody") == 0

    def perms() -> list[int]:
        return [routes.route(name).queue_datas[0].perm for name in "ABC"]  # type: ignore[union-attr]

    assert perms() == [4, 4, 5]
    assert routes.add_write_permission("broker-a") == 3
    assert perms() == [6, 6, 6]
    assert before is not None
    assert before.queue_datas[0].perm == 6, "a route that was handed out changes no more"


def test_lists_of_topics(routes: RouteTable) -> None:
    flags = {"Plain": 0, "Unit": 1, "Sub": 2, "Both": 3}
    topics = [topic(name, sys_flag=flag) for name, flag in flags.items()]
    routes.register(said(topics=topics), "m", 0)
    routes.register(said("Z", broker="b", address=SLAVE, cluster="Other"), "s", 0)
    assert routes.unit_topics() == ["Both", "Unit"]
    assert routes.unit_sub_topics() == ["Both", "Sub"]
    assert routes.unit_sub_topics_of_no_unit() == ["Sub"]
    assert routes.topics_of_cluster("Other") == ["Z"]
    assert routes.topics_of_cluster("Nowhere") == []
    assert routes.system_topics() == (["DefaultCluster", "Other", "b", "broker-a"], SLAVE)
    assert routes.cluster_info().cluster_addr_table == {CLUSTER: ["broker-a"], "Other": ["b"]}


def test_an_empty_table(routes: RouteTable) -> None:
    assert routes.route("A") is None
    assert routes.system_topics() == ([], None)
    assert routes.data_version(MASTER) is None


def test_equal_tables_are_listed_equally() -> None:
    both = [said("A", "B"), said("A", broker="b", address=SLAVE)]
    one, other = RouteTable(), RouteTable()
    for registration in both:
        one.register(registration, "", 0)
    for registration in reversed(both):
        other.register(registration, "", 0)
    assert one.route("A") == other.route("A")
    assert list(one.cluster_info().broker_addr_table) == ["b", "broker-a"]


# --- against a model --------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
ADDRESSES = st.sampled_from([f"h:{port}" for port in range(5)])
IDS = st.integers(0, 2)
TOPICS = st.sampled_from(["T1", "T2", "T3"])
CLUSTERS = st.sampled_from(["c1", "c2"])
CONNECTIONS = st.sampled_from(["x", "y", "z"])


@dataclass
class Model:
    """The same as flat facts, each with all of its keys."""

    places: dict[tuple[str, int], str] = field(default_factory=dict)  # name, id -> address
    cluster_of: dict[str, str] = field(default_factory=dict)
    in_cluster: set[tuple[str, str]] = field(default_factory=set)
    alive: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # ms, version, connection
    perms: dict[tuple[str, str], int] = field(default_factory=dict)  # topic, name

    def forget(self, *addresses: str) -> None:
        self.alive = {one: value for one, value in self.alive.items() if one not in addresses}
        self.places = {key: one for key, one in self.places.items() if one not in addresses}
        self.tidy()

    def tidy(self) -> None:
        names = {name for name, _ in self.places}
        self.cluster_of = {name: one for name, one in self.cluster_of.items() if name in names}
        self.in_cluster = {(one, name) for one, name in self.in_cluster if name in names}
        self.perms = {key: perm for key, perm in self.perms.items() if key[1] in names}


class RouteMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
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
        registration = said(
            broker=name,
            broker_id=broker_id,
            address=address,
            version=version,
            cluster=cluster,
            topics=[topic(one, perm=perm) for one, perm in topics.items()],
        )
        found = self.routes.register(registration, connection, self.now_ms)
        model = self.model
        is_first = (name, broker_id) not in model.places
        for other in range(3):
            if model.places.get((name, other)) == address and other != broker_id:
                del model.places[name, other]
        model.places[name, broker_id] = address
        model.cluster_of.setdefault(name, cluster)
        model.in_cluster.add((cluster, name))
        was = model.alive.get(address)
        takes_all = is_first or was is None or was[1] != version
        for one, perm in topics.items():
            if broker_id == 0 and (takes_all or (one, name) not in model.perms):
                model.perms[one, name] = perm
        model.alive[address] = (self.now_ms, version, connection)
        assert found.is_new == (was is None)
        master = model.places.get((name, 0))
        wanted = master if broker_id and master in model.alive else None
        assert found.master_address == wanted

    @rule(name=NAMES, address=ADDRESSES)
    def unregister(self, name: str, address: str) -> None:
        self.routes.unregister(name, address)
        self.model.alive.pop(address, None)
        places = self.model.places.items()
        self.model.places = {k: one for k, one in places if (k[0], one) != (name, address)}
        self.model.tidy()

    @rule(connection=CONNECTIONS)
    def disconnect(self, connection: str) -> None:
        lost = sorted(one for one, (_, _, its) in self.model.alive.items() if its == connection)
        assert self.routes.disconnect(connection) == lost
        self.model.forget(*lost)

    @rule(passed_ms=st.sampled_from([1, 59_999, 60_000, 120_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        late = sorted(
            one
            for one, (last_ms, _, _) in self.model.alive.items()
            if self.now_ms - last_ms > 120_000
        )
        assert [one.address for one in self.routes.expire(self.now_ms)] == late
        self.model.forget(*late)

    @rule(address=ADDRESSES)
    def sign_of_life(self, address: str) -> None:
        self.routes.refresh(address, self.now_ms)
        if address in self.model.alive:
            self.model.alive[address] = (self.now_ms, *self.model.alive[address][1:])

    @rule(name=TOPICS, cluster=st.none() | CLUSTERS)
    def delete_topic(self, name: str, cluster: str | None) -> None:
        self.routes.delete_topic(name, cluster)
        self.model.perms = {
            (one, broker): perm
            for (one, broker), perm in self.model.perms.items()
            if one != name or (cluster and (cluster, broker) not in self.model.in_cluster)
        }

    @rule(name=NAMES, is_wipe=st.booleans())
    def write_permission(self, name: str, is_wipe: bool) -> None:
        keys = [key for key in self.model.perms if key[1] == name]
        for key in keys:
            self.model.perms[key] = self.model.perms[key] & 4 if is_wipe else 6
        change = self.routes.wipe_write_permission if is_wipe else self.routes.add_write_permission
        assert change(name) == len(keys)

    @invariant()
    def routes_are_those_of_the_model(self) -> None:
        model = self.model
        assert self.routes.topics() == sorted({one for one, _ in model.perms})
        for name in ("T1", "T2", "T3"):
            brokers = sorted(broker for one, broker in model.perms if one == name)
            route = self.routes.route(name)
            if not brokers:
                assert route is None
                continue
            assert route is not None
            found = [(one.broker_name, one.perm) for one in route.queue_datas]
            assert found == [(broker, model.perms[name, broker]) for broker in brokers]
            assert [one.broker_name for one in route.broker_datas] == brokers

    @invariant()
    def the_cluster_is_that_of_the_model(self) -> None:
        model, info = self.model, self.routes.cluster_info()
        found = {
            (name, broker_id): address
            for name, one in info.broker_addr_table.items()
            for broker_id, address in one.broker_addrs.items()
        }
        assert found == model.places
        clusters = {name: one.cluster for name, one in info.broker_addr_table.items()}
        assert clusters == model.cluster_of
        members = {(c, name) for c, names in info.cluster_addr_table.items() for name in names}
        assert members == model.in_cluster
        for cluster in ("c1", "c2"):
            wanted = {one for one, name in model.perms if (cluster, name) in model.in_cluster}
            assert self.routes.topics_of_cluster(cluster) == sorted(wanted)


TestAgainstModel = RouteMachine.TestCase
