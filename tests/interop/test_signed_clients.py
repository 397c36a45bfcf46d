"""Unmodified clients with credentials on our broker with access control 1.0 and 2.0.

They have an account that may use only the topics and groups named here. With ``REPUT_INTEROP=all``
all clients run, also over TLS, and on the official brokers, because the tests expect their
behaviour.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from interop import secured_cluster as secured
from interop.clusters import Cluster, until
from interop.conftest import StartOracle, _or_skip
from interop.java_cluster import ClientError, JavaClient, JavaCluster, JavaMessage, Queue
from interop.java_oracle import wants_all_versions
from interop.other_clients import (
    ClientUnavailable,
    CppClient,
    GoClient,
    GoTlsClient,
    NodeClient,
    OtherClient,
    OtherClientError,
)
from interop.secured_cluster import ADMIN, ADMIN_SECRET, OTHER_TOPIC, USER, USER_SECRET
from interop.test_reply import ReplyOracle
from interop.test_transactions import PATIENT, TransactionOracle
from reput.client import Admin, Message, MessageQueue, NoRoute, blocking
from reput.client.config import ClientConfig
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("test_signed_clients")]

SETTINGS = {
    **PATIENT,
    "messageDelayLevel": "1s 1s 1s 1s 1s",
    "enablePropertyFilter": True,
    "traceTopicEnable": True,
}
OFFICIAL = {"1.0": "4.9.7", "2.0": "5.5.0"}
"""Version of the official broker with each access control."""
BODIES = [b"%d" % number for number in range(8)]


class Secured(NamedTuple):
    """A running cluster with access control."""

    cluster: Cluster
    rules: str
    """Version of its access control."""
    is_tls: bool

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv

    @property
    def is_ours(self) -> bool:
        return isinstance(self.cluster, ReputCluster)

    @property
    def has_all(self) -> bool:
        """Whether it has pops, checks batches, and serves queries: not 4.9.7."""
        return self.is_ours or self.rules == "2.0"

    def admin(self) -> blocking.Admin:
        return blocking.Admin(client=self.config())

    def config(self) -> ClientConfig:
        return secured.config_of(self.namesrv, ADMIN, ADMIN_SECRET, use_tls=self.is_tls)

    def count(self, topic: str) -> int:
        """Return the number of stored messages of a topic."""
        with self.admin() as admin:
            return sum(row.max_offset for row in admin.topic_status(topic).values())


MODES = {False: "permissive", True: "enforcing"}
CLUSTERS = [("1.0", False, False), ("2.0", False, False)]
"""Access control, whether all connections use TLS, and whether the broker is the official one."""
if wants_all_versions():
    CLUSTERS += [("1.0", True, False), ("2.0", True, False)]
    CLUSTERS += [("1.0", False, True), ("2.0", False, True)]


def cluster_id(case: tuple[str, bool, bool]) -> str:
    rules, is_tls, is_official = case
    return f"{'official' if is_official else 'reput'}-{rules}{'-tls' if is_tls else ''}"


@pytest.fixture(scope="module", params=CLUSTERS, ids=cluster_id)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    rules, is_tls, is_official = request.param
    folder = tmp_path_factory.mktemp("signed")
    version = OFFICIAL[rules]
    settings = {**SETTINGS, **secured.SETTINGS[version]}
    file = {"conf/plain_acl.yml": secured.plain_acl(TOPICS, GROUPS)} if rules == "1.0" else {}
    if is_official:
        cluster: Cluster = JavaCluster(version, folder, settings, files=file)
    else:
        (folder / "conf").mkdir()
        for name, text in file.items():
            (folder / name).write_text(text)
        more = {"rocketmqHome": str(folder), "tls.server.mode": MODES[is_tls]}
        cluster = ReputCluster(folder, settings | more)
    with cluster:
        running = Secured(cluster, rules, is_tls)
        asyncio.run(prepare(running))
        yield running


async def prepare(broker: Secured) -> None:
    async with Admin(client=broker.config()) as admin:
        for topic in (*TOPICS, OTHER_TOPIC, *FOREIGN):
            await admin.create_topic(topic, queue_count=2)
        if broker.rules == "2.0":
            topics = TOPICS | {TRACE_TOPIC: "PUB"}
            if not broker.is_ours:  # consumers of 5.5.0 need Get for offsets
                topics = {name: f"{value}|GET" for name, value in topics.items()}
            await secured.create_user(admin, topics, GROUPS)


# --- Go, C++, Node ------------------------------------------------------------------------

OTHERS: tuple[type[OtherClient], ...] = (CppClient,)
if wants_all_versions():
    OTHERS += (GoClient, GoTlsClient, NodeClient)


@pytest.fixture(scope="module", params=OTHERS, ids=lambda kind: kind.name)
def other(request: pytest.FixtureRequest, broker: Secured) -> OtherClient:
    if broker.is_tls != (request.param is GoTlsClient):
        pytest.skip("no such case: only this Go client has TLS, and needs no test without")
    try:
        client: OtherClient = request.param()
    except ClientUnavailable as reason:
        if wants_all_versions():
            raise
        pytest.skip(f"missing client: {reason}")
    return client


def variables(access_key: str, secret_key: str, token: str = "") -> dict[str, str]:
    return {
        "ROCKETMQ_ACCESS_KEY": access_key,
        "ROCKETMQ_SECRET_KEY": secret_key,
        "ROCKETMQ_SECURITY_TOKEN": token,
        "ROCKETMQ_TLS": "true",  # for the client that knows it
    }


@pytest.mark.sampled(14)
def test_another_client_sends_and_consumes(broker: Secured, other: OtherClient) -> None:
    other.environment = variables(USER, USER_SECRET)
    topic = group = f"by-{other.name}"
    for how, count in other.ways.items():
        assert len(other.produce(broker.namesrv, topic, BODIES, how, tags="a")) == count
    if isinstance(other, NodeClient) and not broker.is_ours and broker.rules == "2.0":
        pytest.skip(
            "no such case: ali-ons ends with an error if 5.5.0 has no offset of its retry topic"
        )
    again = BODIES[:1] if other.can_try_again and wants_all_versions() else []
    received = other.consume(broker.namesrv, topic, group, 8 * len(other.ways), "a", again=again)
    bodies = sorted(message["body"] for message in received)
    assert bodies == sorted(BODIES * len(other.ways))
    redelivered = {message["body"] for message in received if message.get("reconsume_times")}
    assert redelivered >= {*again}


@pytest.mark.rotating
def test_another_client_is_refused(broker: Secured, other: OtherClient) -> None:
    topic = f"by-{other.name}"
    before = broker.count(topic)
    strangers = [
        (topic, variables(USER, "wrong-secret")),
        (topic, variables("a-stranger", USER_SECRET)),
        (OTHER_TOPIC, variables(USER, USER_SECRET)),
    ]
    if isinstance(other, GoClient):  # it does not sign the token, and Java requires that
        strangers.append((topic, variables(USER, USER_SECRET, "token")))
    for target, other.environment in strangers:
        with pytest.raises(OtherClientError):
            other.produce(broker.namesrv, target, [b"x"])
    assert (broker.count(topic), broker.count(OTHER_TOPIC)) == (before, 0)


# --- Java ---------------------------------------------------------------------------------

AnyOracle = TypeVar("AnyOracle", TransactionOracle, ReplyOracle)


class Java(NamedTuple):
    """Java's clients of a version, with the keys of the account."""

    client: JavaClient
    start_oracle: StartOracle
    properties: dict[str, str]
    """System properties of each process."""

    def oracle(self, kind: type[AnyOracle]) -> AnyOracle:
        """Start another Java process."""
        signed = type(f"Signed{kind.__name__}", (kind,), {"properties": self.properties})
        return self.start_oracle(signed, self.client.version)


def properties_of(broker: Secured, access_key: str, secret_key: str) -> dict[str, str]:
    return {
        "reput.accessKey": access_key,
        "reput.secretKey": secret_key,
        "reput.trace": "true",
        "rocketmq.client.rebalance.waitInterval": "1000",
        "tls.enable": str(broker.is_tls).lower(),
    }


VERSIONS = ("4.5.2", "4.9.7", "5.5.0") if wants_all_versions() else ("5.5.0",)


@pytest.fixture(scope="module", params=VERSIONS)
def java(
    request: pytest.FixtureRequest,
    broker: Secured,
    start_oracle: StartOracle,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Java]:
    properties = properties_of(broker, USER, USER_SECRET)
    folder = tmp_path_factory.mktemp("java")
    with _or_skip(lambda: JavaClient(request.param, folder, properties=properties)) as client:
        yield Java(client, start_oracle, properties)


QUICK = {"pollNameServerInterval": 500, "heartbeatBrokerInterval": 500}
"""Settings that let a consumer learn of its retry topic soon, and of its pop mode."""


def sends(java: Java, broker: Secured, name: str) -> None:
    """Send in all ways, and send each message back once."""
    client = java.client
    bodies = []
    with (
        client.push_consumer(broker.namesrv, name, name, "tag", laters=1, **QUICK) as consumer,
        client.producer(broker.namesrv) as producer,
    ):
        for how in ("sync", "async", "oneway", "batch"):
            bodies += [f"{how} {number}".encode() for number in range(2)]
            messages = [JavaMessage(name, body, tags="tag") for body in bodies[-2:]]
            producer.send(messages, how)
        bodies += [b"ordered", b"delayed"]
        producer.send_ordered([JavaMessage(name, b"ordered", tags="tag")], "a")
        producer.send([JavaMessage(name, b"delayed", tags="tag", delay_level=1)])
        received = consumer.take(2 * len(bodies))
    assert sorted(message.body for message in received) == sorted(bodies * 2)
    assert sum(message.reconsume_times for message in received) == len(bodies)
    until(lambda: broker.count(TRACE_TOPIC) > 0)


def orderly(java: Java, broker: Secured, name: str) -> None:
    client = java.client
    queue = Queue(name, "broker-a", 1)
    with (
        client.push_consumer(broker.namesrv, name, name, orderly=True) as consumer,
        client.producer(broker.namesrv) as producer,
    ):
        producer.send([JavaMessage(name, body) for body in BODIES], queue=queue)
        assert [message.body for message in consumer.take(8)] == BODIES


def sql(java: Java, broker: Secured, name: str) -> None:
    client = java.client
    with (
        client.push_consumer(broker.namesrv, name, name, "a > 1", sql=True) as consumer,
        client.producer(broker.namesrv) as producer,
    ):
        for value in "12":
            producer.send([JavaMessage(name, value.encode(), properties={"a": value})])
        assert [message.body for message in consumer.take(1)] == [b"2"]


def pull(java: Java, broker: Secured, name: str) -> None:
    """Pull, commit, and query messages by key, unique key and id."""
    client, queue = java.client, Queue(name, "broker-a", 0)
    with (
        client.producer(broker.namesrv) as producer,
        client.pull_consumer(broker.namesrv, name) as consumer,
    ):
        sent = producer.send([JavaMessage(name, body, keys="key") for body in BODIES], queue=queue)
        # 5.5.0 dispatches to queues a moment later.
        until(lambda: [message.body for message in consumer.pull(queue, 0).messages] == BODIES)
        assert consumer.search_offset(queue, 0) == consumer.min_offset(queue) == 0
        consumer.commit(queue, 3)
        until(lambda: consumer.committed(queue) == 3)
        consumer.send_back(queue, 0, 1)

        def by_key() -> set[bytes]:
            with contextlib.suppress(ClientError):  # the index is written a moment later
                return {message.body for message in consumer.query(name, "key")}
            return set()

        if broker.has_all:  # 4.9.7 refuses signed queries of clients of 4.9.7
            until(lambda: by_key() == {*BODIES})
            assert consumer.view(name, sent[0].msg_id).body == BODIES[0]
        assert consumer.view(name, sent[1].offset_msg_id).body == BODIES[1]


def lite(java: Java, broker: Secured, name: str) -> None:
    client = java.client
    with (
        client.lite_pull_consumer(broker.namesrv, name, name) as consumer,
        client.producer(broker.namesrv) as producer,
    ):
        producer.send([JavaMessage(name, body) for body in BODIES])
        assert {message.body for message in consumer.take(8)} == {*BODIES}
        consumer.commit()
        queues = consumer.queues(name)
        until(lambda: sum(max(consumer.committed(queue), 0) for queue in queues) == 8)


def pop(java: Java, broker: Secured, name: str) -> None:
    client = java.client
    with broker.admin() as admin:
        admin.create_group(name, broker="broker-a")
        admin.set_request_mode(name, name, "POP", broker="broker-a")
    with (
        client.push_consumer(
            broker.namesrv, name, name, clientRebalance=False, **QUICK
        ) as consumer,
        client.producer(broker.namesrv) as producer,
    ):
        producer.send([JavaMessage(name, body) for body in BODIES])
        received = consumer.take(8)
    assert {message.body for message in received} == {*BODIES}
    assert all("POP_CK" in message.properties for message in received)


def transactions(java: Java, broker: Secured, name: str) -> None:
    with contextlib.closing(java.oracle(TransactionOracle)) as oracle:
        number = oracle.ask_one("start", broker.namesrv, name)
        for body, local, check in (
            ("committed", "commit", "unknown"),
            ("checked", "unknown", "commit"),
            ("rolled back", "rollback", "unknown"),
        ):
            oracle.ask_one("send", number, name, body, local, check, "")
        with java.client.push_consumer(broker.namesrv, name, name) as consumer:
            bodies = {message.body for message in consumer.take(2)}
        assert bodies == {b"committed", b"checked"}


def replies(java: Java, broker: Secured, name: str) -> None:
    with contextlib.closing(java.oracle(ReplyOracle)) as oracle:
        oracle.ask_one("replier", broker.namesrv, name, name)
        reply = oracle.ask_one("request", broker.namesrv, name, "a", 55_000)
    assert reply["body"] == "re: a"


def dead_letters(java: Java, broker: Secured, name: str) -> None:
    client = java.client
    with (
        client.push_consumer(
            broker.namesrv, name, name, laters=9, maxReconsumeTimes=1, **QUICK
        ) as consumer,
        client.producer(broker.namesrv) as producer,
    ):
        producer.send([JavaMessage(name, b"dead")])
        consumer.take(2)
        with broker.admin() as admin:
            dead = MessageQueue(f"%DLQ%{name}", "broker-a", 0)
            until(lambda: dead.topic in admin.topic_configs(broker.cluster.address))
            until(lambda: max_offset(admin, dead) == 1)


def max_offset(admin: blocking.Admin, queue: MessageQueue) -> int:
    with contextlib.suppress(NoRoute):  # 5.5.0 registers a new topic a moment later
        return admin.max_offset(queue)
    return 0


def since(java: Java, broker: Secured, name: str) -> None:
    """Consume from a time with a permission to read alone."""
    with blocking.Producer("admin", client=broker.config()) as producer:
        for body in BODIES:
            producer.send(Message(name, body))
    with java.client.push_consumer(
        broker.namesrv, name, name, from_where="CONSUME_FROM_TIMESTAMP",
        consumeTimestamp="20200131235959",
    ) as consumer:  # fmt: skip
        assert {message.body for message in consumer.take(8)} == {*BODIES}
    assert_refused(java.client, broker, "sync", name, name)


def refused(java: Java, broker: Secured, name: str) -> None:
    """The same exceptions with both brokers."""
    for request in ("sync", "pull", *["batch"] * broker.has_all):
        assert_refused(java.client, broker, request, OTHER_TOPIC, name)
    assert_refused(java.client, broker, "pull", name, "other-group")


SPACE = "tenant"


def in_namespace(java: Java, broker: Secured, name: str, **space: str) -> None:
    """Send in a namespace, and send each message back once."""
    client = java.client
    with (
        client.push_consumer(broker.namesrv, name, name, laters=1, **QUICK, **space) as consumer,
        client.producer(broker.namesrv, **space) as producer,
    ):
        producer.send([JavaMessage(name, body) for body in BODIES])
        received = consumer.take(2 * len(BODIES))
    assert sorted(message.body for message in received) == sorted(BODIES * 2)
    assert sum(message.reconsume_times for message in received) == len(BODIES)
    assert {message.topic for message in received} == {name}


def namespaces(java: Java, broker: Secured, name: str) -> None:
    """Use a namespace that is a part of names, as permissions name them."""
    in_namespace(java, broker, name, namespace=SPACE)
    for request in ("sync", "pull"):
        error = refusal(java.client, broker, request, name, name, namespace="other")
        assert_error(error, broker, "(topic|group)", f"other%{name}")
        error = refusal(java.client, broker, request, name, name)
        assert_error(error, broker, "(topic|group)", name)


def namespaces_2(java: Java, broker: Secured, name: str) -> None:
    """Use a namespace in fields of requests, which are signed; brokers do not separate topics."""
    in_namespace(java, broker, name, namespaceV2=SPACE)
    in_namespace(java, broker, name, namespaceV2="other")
    for request in ("sync", "pull"):
        error = refusal(java.client, broker, request, OTHER_TOPIC, name, namespaceV2=SPACE)
        assert_error(error, broker, "topic", OTHER_TOPIC)


REFUSALS = {
    "1.0": (1, "AclException: No default permission for {kind}:{name}"),
    "2.0": (16, "User:some-user has no permission to access {kind}:{name}"),
}
"""Code and text of refusals."""


def assert_refused(
    client: JavaClient, broker: Secured, request: str, topic: str, group: str
) -> None:
    """Assert that the topic is refused, or the group if it is not one of the account's."""
    error = refusal(client, broker, request, topic, group)
    kind, name = ("topic", topic) if group in GROUPS else ("group", group)
    assert_error(error, broker, kind, name)


def assert_error(error: ClientError, broker: Secured, kind: str, name: str) -> None:
    """Assert that a client's exception is the refusal of a topic or a group."""
    code, text = REFUSALS[broker.rules]
    assert error.code == code
    assert re.search(text.format(kind=kind, name=name), error.trace, re.IGNORECASE)


def refusal(
    client: JavaClient, broker: Secured, request: str, topic: str, group: str, **settings: str
) -> ClientError:
    """Return the exception of a pull, or of a send in one of Java's ways."""
    if request == "pull":
        with (
            client.pull_consumer(broker.namesrv, group, **settings) as consumer,
            pytest.raises(ClientError) as error,
        ):
            consumer.pull(Queue(topic, "broker-a", 0), 0)
    else:
        with (
            client.producer(broker.namesrv, **settings) as producer,
            pytest.raises(ClientError) as error,
        ):
            producer.send([JavaMessage(topic, b"x")], request)
    return error.value


CASES: tuple[Callable[[Java, Secured, str], None], ...] = (
    sends, orderly, sql, pull, lite, pop, transactions, replies, dead_letters, since, refused,
    namespaces, namespaces_2,
)  # fmt: skip
SINCE = {
    "lite": "4.9.7",
    "namespaces_2": "5.5.0",
    "pop": "5.5.0",
    "replies": "4.9.7",
    "transactions": "4.9.7",
}
"""First tested version with the feature."""


def name_of(case: Callable[[Java, Secured, str], None], version: str) -> str:
    return f"java-{version.replace('.', '-')}-{case.__name__}"


@pytest.mark.rotating
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_java_clients_with_credentials(
    broker: Secured, java: Java, case: Callable[[Java, Secured, str], None]
) -> None:
    needed = SINCE.get(case.__name__, "")
    if java.client.version < needed or (case is pop and not broker.has_all):
        pytest.skip(f"no such case: it is newer than {java.client.version}, or the broker")
    if case is transactions and not broker.is_ours and broker.rules == "2.0":
        pytest.skip(
            "no such case: 5.5.0 with access control checks none, and logs that none is connected"
        )
    if (
        case is lite
        and not broker.is_ours
        and (broker.rules, java.client.version) == ("1.0", "5.5.0")
    ):
        pytest.skip("no such case: 4.9.7 with access control gives lite pulls of 5.5.0 no message")
    case(java, broker, name_of(case, java.client.version))


@pytest.mark.rotating
def test_java_clients_with_a_wrong_secret(broker: Secured, java: Java, tmp_path: Path) -> None:
    properties = properties_of(broker, USER, "wrong-secret")
    text = {"1.0": "Check signature failed for accessKey=", "2.0": "check signature failed"}
    name = name_of(pull, java.client.version)
    with JavaClient(java.client.version, tmp_path, properties=properties) as client:
        for request in ("sync", "pull"):
            error = refusal(client, broker, request, name, name)
            assert text[broker.rules] in error.trace


@pytest.mark.rotating
def test_java_clients_in_a_zone(broker: Secured, java: Java, tmp_path: Path) -> None:
    """Clients of 5.x add the fields of their zone after they have signed: no broker takes that."""
    # In mode true, the name server of 5.5.0 hides brokers of other zones.
    zone = {"rocketmq.zone": "zone-a", "rocketmq.zone.mode": "false"}
    properties = properties_of(broker, USER, USER_SECRET) | zone
    text = {"1.0": "Check signature failed for accessKey=", "2.0": "check signature failed"}
    name = name_of(pull, java.client.version)
    with JavaClient(java.client.version, tmp_path, properties=properties) as client:
        if java.client.version < "5":
            with client.producer(broker.namesrv) as producer:
                (sent,) = producer.send([JavaMessage(name, b"x")])
            assert sent.status == "SEND_OK"
            return
        for request in ("sync", "pull"):
            error = refusal(client, broker, request, name, name)
            assert text[broker.rules] in error.trace


TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
NAMES = [f"by-{kind.name}" for kind in OTHERS]
NAMES += [
    name_of(case, version) for version in VERSIONS for case in CASES if case is not namespaces
]
NAMES += [f"{SPACE}%{name_of(namespaces, version)}" for version in VERSIONS]
FOREIGN = [
    f"{space}{name_of(namespaces, version)}" for version in VERSIONS for space in ("", "other%")
]
"""Topics in no namespace and in another one, without permissions."""
TOPICS = {name: "SUB" if name.endswith("since") else "PUB|SUB" for name in NAMES}
GROUPS = dict.fromkeys(NAMES, "SUB")
"""Permissions of the account; access control 1.0 allows the trace topic by itself."""
