"""Our clients with credentials and official brokers with access control: 1.0 and 2.0."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from interop import java_oracle, secured_cluster as secured
from interop.clusters import until
from interop.java_cluster import JavaCluster
from interop.secured_cluster import (
    ADMIN,
    ADMIN_SECRET,
    GROUP,
    OTHER_TOPIC,
    TOPIC,
    USER,
    USER_SECRET,
)
from reput.client import (
    AccessRefused,
    Admin,
    ClientConfig,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Secret,
    SendFailed,
    TransactionProducer,
    TransactionState,
    blocking,
)
from reput.client.admin import AccessUser, PartlyDone
from reput.format.access import PolicyType, UserStatus, UserType
from reput.format.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from reput.spark.live.calls import ReadFailed, disconnect
from reput.spark.sending import options as write_options
from reput.spark.sending.requests import TaskIdentity
from reput.spark.sending.send import SendingFailed, send
from spark import live_traffic
from wire_command import Command as Commands

pytestmark = [pytest.mark.interop, pytest.mark.rotating, pytest.mark.xdist_group("test_secured")]

FROM_FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
GUARD_S = 60


@pytest.fixture(scope="module", params=java_oracle.DEFAULT_VERSIONS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaCluster]:
    """Start a shared broker with the accounts of ``secured_cluster``, and two topics."""
    version = request.param
    folder = tmp_path_factory.mktemp("secured")
    settings = {**secured.SETTINGS[version], "enablePropertyFilter": True}
    with JavaCluster(version, folder, settings, files=secured.FILES[version]) as running:
        asyncio.run(prepare(running))
        yield running
        disconnect()


async def prepare(cluster: JavaCluster) -> None:
    async with Admin(client=admin_of(cluster)) as admin:
        for topic in (TOPIC, OTHER_TOPIC):
            await admin.create_topic(topic, queue_count=2)
        if cluster.version == "4.9.7":  # its accounts are in a file
            return
        await secured.create_user(admin, {TOPIC: "PUB|SUB"}, {GROUP: "SUB"})


def admin_of(cluster: JavaCluster) -> ClientConfig:
    return secured.config_of(cluster.namesrv, ADMIN, ADMIN_SECRET)


def user_of(cluster: JavaCluster) -> ClientConfig:
    return secured.config_of(cluster.namesrv, USER, USER_SECRET)


@pytest.fixture
async def topic(cluster: JavaCluster) -> AsyncIterator[str]:
    """Create a topic, and afterwards check that the broker refused no request, not even one-way."""
    before = refusals(cluster)
    name = f"Secured-{Random().randrange(1 << 32):08x}"
    async with Admin(client=admin_of(cluster)) as admin:
        await admin.create_topic(name, queue_count=2)
    yield name
    assert refusals(cluster) == before


def refusals(cluster: JavaCluster) -> int:
    """Return the number of refused requests that the broker has logged."""
    log = cluster.folder / "warnings.log"
    words = ("AclException", "AuthenticationException", "AuthorizationException")
    text = log.read_text(errors="replace") if log.exists() else ""
    return sum(text.count(word) for word in words)


class Listener:
    """Listener that asks for one message again."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.again = b""

    async def __call__(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult:
        context.suspend_ms = 100
        self.bodies += [message.body for message in messages]
        if self.again in self.bodies[-1:]:
            self.again = b""
            return ConsumeResult.LATER
        return ConsumeResult.SUCCESS

    async def wait_for(self, *bodies: bytes) -> None:
        async with asyncio.timeout(GUARD_S):
            while not {*bodies} <= {*self.bodies}:
                await asyncio.sleep(0.05)


# --- allowed requests ------------------------------------------------------------


async def test_all_kinds_of_sends_are_consumed(cluster: JavaCluster, topic: str) -> None:
    listener = Listener()
    tracing = secured.config_of(cluster.namesrv, ADMIN, ADMIN_SECRET, enable_trace=True)
    consumer = PushConsumer(f"{topic}-push", listener=listener, client=tracing, config=FROM_FIRST)
    async with consumer, Producer("ours", client=tracing) as producer:
        await consumer.subscribe(topic)
        await producer.send(Message(topic, "é\x01".encode(), tags="a", properties={"k": 'ü"\\'}))
        await producer.send_batch([Message(topic, b"batch 1"), Message(topic, b"batch 2")])
        await producer.send_many([Message(topic, b"many %d" % i) for i in range(40)])
        await producer.send_oneway(Message(topic, b"oneway"))
        await producer.send(Message(topic, b"ordered"), queue=MessageQueue(topic, "broker-a", 1))
        await producer.send(Message(topic, b"delayed", delay_level=1))
        many = [b"many %d" % i for i in range(40)]
        await listener.wait_for("é\x01".encode(), b"batch 1", b"batch 2", *many)
        await listener.wait_for(b"oneway", b"ordered", b"delayed")


async def test_transactions(cluster: JavaCluster, topic: str) -> None:
    client, listener = admin_of(cluster), Listener()
    async with (
        PushConsumer(
            f"{topic}-push", listener=listener, client=client, config=FROM_FIRST
        ) as consumer,
        TransactionProducer(
            f"{topic}-tx", check=lambda _: TransactionState.COMMIT, client=client
        ) as producer,
    ):
        await consumer.subscribe(topic)
        for body, state in ((b"rolled back", "ROLLBACK"), (b"committed", "COMMIT")):
            await producer.send_in_transaction(
                Message(topic, body),
                lambda *_, state=state: TransactionState[state],  # type: ignore[misc]
            )
        await listener.wait_for(b"committed")
    assert b"rolled back" not in listener.bodies


async def test_a_message_is_retried_in_order_and_without(cluster: JavaCluster, topic: str) -> None:
    client, listener, orderly = admin_of(cluster), Listener(), Listener()
    listener.again = orderly.again = b"1"
    async with (
        PushConsumer(
            f"{topic}-a", listener=listener, client=client, config=FROM_FIRST
        ) as concurrent,
        PushConsumer(
            f"{topic}-b", listener=orderly, client=client, config=FROM_FIRST, orderly=True
        ) as in_order,
        Producer("ours", client=client) as producer,
    ):
        await concurrent.subscribe(topic)
        await in_order.subscribe(topic)
        for body in (b"1", b"2"):
            await producer.send(Message(topic, body), queue=MessageQueue(topic, "broker-a", 0))
        await orderly.wait_for(b"1", b"2")
        await listener.wait_for(b"2")
        async with asyncio.timeout(GUARD_S):  # sent back with a delay of 10 s
            while listener.bodies.count(b"1") < 2:
                await asyncio.sleep(0.1)
    assert orderly.bodies == [b"1", b"1", b"2"]


async def test_requests_are_replied_to(cluster: JavaCluster, topic: str) -> None:
    client = admin_of(cluster)
    async with Producer("ours", client=client) as producer:

        async def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
            for message in messages:
                await producer.reply(message, b"to " + message.body)
            return ConsumeResult.SUCCESS

        consumer = PushConsumer(f"{topic}-push", listener=answer, client=client, config=FROM_FIRST)
        async with consumer:
            await consumer.subscribe(topic)
            reply = await producer.request(Message(topic, b"q"), timeout_ms=GUARD_S * 1000)
    assert reply.body == b"to q"


async def test_pulls_and_offsets(cluster: JavaCluster, topic: str) -> None:
    client = admin_of(cluster)
    async with Producer("ours", client=client) as producer:
        await producer.send_many([Message(topic, b"%d" % i) for i in range(20)])
    async with PullConsumer(f"{topic}-pull", client=client, config=FROM_FIRST) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        bodies: list[bytes] = []
        async with asyncio.timeout(GUARD_S):
            while len(bodies) < 20:
                bodies += [message.body for message in await consumer.poll()]
        await consumer.commit({queue: consumer.position(queue) for queue in queues})
        assert sum([await consumer.committed(queue) or 0 for queue in queues]) == 20
        await consumer.seek_to_time(queues[0], 0)


async def test_pops(cluster: JavaCluster, topic: str) -> None:
    if cluster.version == "4.9.7":
        pytest.skip("no such case: 4.9 has no pop")
    client = admin_of(cluster)
    async with Admin(client=client) as admin:
        await admin.create_group(topic, broker="broker-a")
        await admin.set_request_mode(topic, topic, "POP", broker="broker-a")
    async with (
        Producer("ours", client=client) as producer,
        PopConsumer(topic, client=client, config=FROM_FIRST) as consumer,
    ):
        await consumer.subscribe(topic)
        await producer.send_many([Message(topic, b"%d" % i) for i in range(6)])
        bodies: set[bytes] = set()
        async with asyncio.timeout(GUARD_S):
            while len(bodies) < 6:
                messages = await consumer.pop()
                bodies |= {message.body for message in messages}
                if messages:
                    await consumer.extend(messages[0])
                    await consumer.ack(*messages)


async def test_administration(cluster: JavaCluster, topic: str) -> None:
    async with (
        Producer("ours", client=admin_of(cluster)) as producer,
        Admin(client=admin_of(cluster)) as admin,
    ):
        sent = await producer.send(Message(topic, b"x", keys="key-1"))
        assert sent.offset_message_id is not None
        assert await admin.topic_status(topic)
        async with asyncio.timeout(GUARD_S):  # the index is written a moment later
            while (
                by_unique_key := await admin.message_by_unique_key(topic, sent.message_id)
            ) is None:
                await asyncio.sleep(0.05)
        (by_key,) = await admin.messages_by_key(topic, "key-1")
        by_offset = await admin.message_by_offset_id(sent.offset_message_id)
        assert by_offset is not None
        assert by_unique_key.body == by_key.body == by_offset.body == b"x"
        await admin.create_group(f"{topic}-group")
        queue = sent.queue
        await admin.update_consumer_offset(f"{topic}-group", queue, 1)
        assert await admin.consumer_offset(f"{topic}-group", queue) == 1
        await admin.consume_stats(f"{topic}-group")
        await admin.reset_offsets(f"{topic}-group", topic, 0)
        await admin.update_broker_config("broker-a", {"maxTransferCountOnMessageInMemory": "31"})
        assert (await admin.broker_config("broker-a"))["maxTransferCountOnMessageInMemory"] == "31"
        assert await admin.producer_connection("ours", topic) is not None
        await admin.delete_group(f"{topic}-group")
        await admin.delete_topic(topic)


async def test_users_and_rules(cluster: JavaCluster) -> None:
    if cluster.version == "4.9.7":
        pytest.skip("no such case: 4.9 has access control 1.0")
    async with Admin(client=admin_of(cluster)) as admin:
        await admin.create_user("ann", Secret("w1"))
        await admin.update_user("ann", password=Secret("w2"), status=UserStatus.DISABLE)
        ann = AccessUser("ann", UserType.NORMAL, UserStatus.DISABLE, Secret("w2"))
        assert await admin.user("ann") == ann
        assert await admin.users("ann") == {"ann": ann}
        assert await admin.users("none") == {}
        assert await admin.user("none") is None
        assert await admin.acl("User:ann") is None
        entry = PolicyEntryInfo(resource="Topic:a", actions=["Pub"], decision="Allow")
        rules = AclInfo(
            subject="User:ann", policies=[PolicyInfo(policy_type="Custom", entries=[entry])]
        )
        await admin.create_acl(rules)
        entry.decision = "Deny"
        await admin.update_acl(rules)
        known = await admin.acl("User:ann")
        assert known is not None
        assert known.policies is not None
        (policy,) = known.policies
        (got,) = policy.entries or ()
        assert (got.resource, got.actions, got.decision) == ("Topic:a", ["Pub"], "Deny")
        assert await admin.acls("ann") == {"User:ann": known}
        await admin.delete_acl("User:ann", "Topic:a", policy=PolicyType.CUSTOM)
        await admin.delete_user("ann")
        assert await admin.user("ann") is None


def test_user_commands(
    cluster: JavaCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    key_file: str,
) -> None:
    if cluster.version == "4.9.7":
        pytest.skip("no such case: 4.9 has access control 1.0")
    command = Commands(cluster.namesrv, capsys)
    given = ("--access-key", ADMIN, "--secret-key-file", key_file, "--timeout", "60")
    monkeypatch.setenv("REPUT_USER_PASSWORD", "word-of-bob")
    command("access", "user", "create", "bob", *given)
    rule = ("bob", "--resource", "Topic:T*")
    command("access", "acl", "create", *rule, "--action", "Pub", *given)
    command("access", "acl", "update", *rule, "--deny", "--source", "10.0.0.0/8", *given)
    (row,) = command.json("access", "acl", "get", "bob", *given)["rules"]
    assert (row["resource"], row["actions"], row["decision"], row["sources"]) == (
        "Topic:T*", ["Pub"], "Deny", ["10.0.0.0/8"]
    )  # fmt: skip
    assert command.json("access", "acl", "list", "--filter", "bo", *given)["rules"] == [row]
    way = ("bob", "--from", cluster.address, "--to", cluster.address, "--yes", *given)
    assert not command.json("access", "user", "copy", *way)["users"][0]["is_new"]
    command("access", "acl", "copy", *way)
    command("access", "acl", "delete", *rule, "--yes", *given)
    assert command.json("access", "acl", "get", "bob", *given) == {"rules": []}
    command("access", "user", "delete", "bob", "--yes", *given)
    assert "bob" not in command("access", "user", "list", *given)


def test_blocking_clients_with_a_token(cluster: JavaCluster) -> None:
    client = ClientConfig(
        namesrv_addr=cluster.namesrv,
        access_key=USER,
        secret_key=Secret(USER_SECRET),
        security_token=Secret("tökén"),
    )
    with (
        blocking.Producer("ours", client=client) as producer,
        blocking.PullConsumer(GROUP, client=client, config=FROM_FIRST) as consumer,
    ):
        producer.send(Message(TOPIC, b"blocking"))
        consumer.assign(producer.queues(TOPIC))
        for message in consumer:
            if message.body == b"blocking":
                break


# --- the command line -----------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{ADMIN_SECRET}\n", encoding="utf-8")
    return str(path)


def test_commands(
    cluster: JavaCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    key_file: str,
    tmp_path: Path,
) -> None:
    command = Commands(cluster.namesrv, capsys)
    # The first requests to a broker that has just started take seconds on a busy machine.
    given = ("--access-key", ADMIN, "--secret-key-file", key_file, "--timeout", "60")
    command("topic", "create", "ByCommand", "--queues", "2", *given)
    command("topic", "send", "ByCommand", "two coffees", *given)
    (tmp_path / "conf").mkdir()
    tools = f"accessKey: {ADMIN}\nsecretKey: {ADMIN_SECRET}\n"
    (tmp_path / "conf/tools.yml").write_text(tools, encoding="utf-8")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert command.json("topic", "show", "ByCommand")["topic"] == "ByCommand"
    assert command.json("bench", "produce", "ByCommand", "--count", "500", "--batch", "5")
    consumed = command.json("bench", "consume", "ByCommand", "--count", "501")
    assert consumed["message_count"] >= 501
    monkeypatch.setenv("REPUT_ACCESS_KEY", ADMIN)
    monkeypatch.setenv("REPUT_SECRET_KEY", "of another account")
    command("topic", "send", "ByCommand", "two coffees", code=2)
    refused = command.notes.splitlines()[-1]  # after that of the heartbeat
    assert "the secret key is not that of the access key" in refused
    assert "--secret-key-file" in refused
    assert "another account" not in refused + command.notes


# --- Spark ----------------------------------------------------------------------


def spark_options(access_key: str, secret_key: str) -> dict[str, Any]:
    return {"accessKey": access_key, "secretKey": secret_key, "fetchOffset.numRetries": 0}


def test_spark_sends_and_reads(cluster: JavaCluster) -> None:
    address = cluster.namesrv
    with blocking.Admin(client=admin_of(cluster)) as admin:
        admin.create_topic("BySpark", queue_count=2)
        options = spark_options(ADMIN, ADMIN_SECRET)
        given = {name: str(value) for name, value in options.items() if "Offset" not in name}
        target = {"nameServer": address, "topic": "BySpark", **given}
        rows = pa.RecordBatch.from_pydict({"body": pa.array([b"%d" % i for i in range(50)])})
        counts = send([rows], write_options.parse(target), TaskIdentity("w", 0))
        assert counts.message_count == 50
        queues = [MessageQueue("BySpark", "broker-a", number) for number in range(2)]
        until(lambda: sum(map(admin.max_offset, queues)) == 50)
        read = live_traffic.read(address, topic="BySpark", **options)
        assert {row["body"] for row in read} == {b"%d" % i for i in range(50)}
        wrong = spark_options(ADMIN, "wrong-secret")
        with pytest.raises(ReadFailed, match="secret key is not that of the access key"):
            live_traffic.read(address, topic="BySpark", **wrong)
        target |= {"accessKey": "a-stranger", "skipPresent": "none"}
        with pytest.raises(SendingFailed, match=r"not know access key a-stranger.*sent once"):
            send([rows], write_options.parse(target), TaskIdentity("w", 1))


# --- refusals -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access_key", "secret_key", "problem"),
    [
        (ADMIN, "wrong-secret", "the secret key is not that of the access key"),
        (ADMIN, ADMIN_SECRET + " ", "the secret key is not that of the access key"),
        ("a-stranger", ADMIN_SECRET, "it does not know access key a-stranger"),
        ("", "", "it asks for credentials, and this client has none"),
    ],
)
async def test_wrong_credentials(
    cluster: JavaCluster, access_key: str, secret_key: str, problem: str
) -> None:
    client = secured.config_of(cluster.namesrv, access_key, secret_key)
    before = refusals(cluster)
    async with Producer("ours", client=client) as producer, Admin(client=client) as admin:
        with pytest.raises(SendFailed, match=problem) as failed:
            await producer.send(Message(TOPIC, b"x"))
        assert len(failed.value.broker_names) == 1
        assert isinstance(failed.value.reason, AccessRefused)
        with pytest.raises(AccessRefused, match=problem):
            await admin.message_by_unique_key(TOPIC, "0" * 32)
        with pytest.raises(AccessRefused, match=problem):
            await admin.consumer_offset(GROUP, MessageQueue(TOPIC, "broker-a", 0))
    assert cluster.version == "5.5.0" or refusals(cluster) > before


async def test_a_user_without_permissions(cluster: JavaCluster) -> None:
    client = user_of(cluster)
    async with Producer("ours", client=client) as producer, Admin(client=client) as admin:
        await producer.send(Message(TOPIC, b"allowed"))
        with pytest.raises(SendFailed, match=f"no permission for .*{OTHER_TOPIC}"):
            await producer.send(Message(OTHER_TOPIC, b"x"))
        with pytest.raises(PartlyDone, match=r"no permission for Topic:New|17 is for admins"):
            await admin.create_topic("New")
        for group, topic, name in ((GROUP, OTHER_TOPIC, OTHER_TOPIC), ("other", TOPIC, "other")):
            with pytest.raises(AccessRefused, match=f"no permission for .*{name}"):
                await admin.update_consumer_offset(group, MessageQueue(topic, "broker-a", 0), 0)


async def test_a_refused_consumer_says_so_and_goes_on(
    cluster: JavaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    consumer = PushConsumer("other", listener=listener, client=user_of(cluster), config=FROM_FIRST)
    async with consumer:
        with contextlib.suppress(AccessRefused):  # of a heartbeat
            await consumer.subscribe(TOPIC)
        async with asyncio.timeout(GUARD_S):
            while "no permission for" not in caplog.text:
                await asyncio.sleep(0.05)
    assert listener.bodies == []
    assert USER_SECRET not in caplog.text
