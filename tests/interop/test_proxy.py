"""``reput proxy`` before our broker, RocketMQ 5.5.0 and 4.9.7: unmodified SDKs, and single calls.

By default before our broker only; with ``REPUT_INTEROP=all`` before all of them. The tests of the
SDKs are those of a broker's own port (``test_sdks``).
"""

import asyncio
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from grpc_client import OK, GrpcClient, message
from interop import java_oracle, secured_cluster, test_sdks
from interop.clusters import until
from interop.java_cluster import JavaCluster
from interop.other_clients import ClientUnavailable
from interop.sdks import Outgoing, PythonSdk, Refused, Sdk
from interop.test_sdks import Front
from ports import free_port
from reput.client import Admin as AsyncAdmin
from reput.client.blocking import Admin
from reput.format.bodies import SubscriptionGroupConfig
from reput_cluster import ReputCluster

pytestmark = pytest.mark.interop

SETTINGS = {
    "autoCreateSubscriptionGroup": True,
    "enablePropertyFilter": True,
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_000,
}
KINDS = ["reput", "5.5.0"]
START_S = 60.0
ROOT = Path(__file__).parents[2]


class ReputProxy:
    """A running proxy."""

    def __init__(self, namesrv: str, folder: Path, *more: str) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self._log = (folder / "proxy.log").open("wb")
        port = self.endpoint.rpartition(":")[2]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reput", "proxy", "-n", namesrv, "--port", port, *more],
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], START_S)[0]
        line = self.process.stdout.readline()
        assert line.startswith(b"rocketmq-proxy startup successfully"), line

    def stop(self) -> int:
        """Stop it as an operator would; return its exit code."""
        self.process.terminate()
        return self.process.wait(START_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()
        self._log.close()


@pytest.fixture(scope="module")
def sdk() -> Sdk:
    try:
        return PythonSdk()
    except ClientUnavailable as reason:
        pytest.skip(f"missing client: {reason}")


@pytest.fixture(scope="module", params=KINDS)
def front(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("proxy")
    with start(request.param, folder) as cluster, ReputProxy(cluster.namesrv, folder) as proxy:
        yield Front(cluster, proxy.endpoint, "proxy")
        assert proxy.stop() == 0


def start(kind: str, folder: Path) -> ReputCluster | JavaCluster:
    if kind == "reput":
        return ReputCluster(folder, {**SETTINGS, "recallMessageEnable": True})
    if not java_oracle.wants_all_versions():
        pytest.skip("make interop-all: no proxy before an official broker")
    more = {"recallMessageEnable": True} if kind >= "5" else {}
    return JavaCluster(kind, folder, {**SETTINGS, **more})


# --- the SDK for Python ---------------------------------------------------------------------------

test_sent_and_received = test_sdks.test_sent_messages_are_received_and_acknowledged
test_member = test_sdks.test_a_push_consumer_is_shown_as_a_member
test_fifo = test_sdks.test_message_groups_stay_in_order_across_consumers
test_delay = test_sdks.test_a_delayed_message_is_delivered_in_time_or_recalled
test_transactions = test_sdks.test_transactions_are_committed_rolled_back_and_checked
test_handles = test_sdks.test_invisible_times_and_handles
test_dead_letters = test_sdks.test_a_message_that_always_fails_is_a_dead_letter
test_filters = test_sdks.test_a_filter_chooses_messages
test_restart_under_load = test_sdks.test_a_restart_under_load_loses_nothing
test_killed_consumer = test_sdks.test_messages_of_a_killed_consumer_go_to_another


# --- old brokers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["4.9.7", "4.5.2"])
def old(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("old")
    with start(request.param, folder) as cluster, ReputProxy(cluster.namesrv, folder) as proxy:
        yield Front(cluster, proxy.endpoint, "old")


def plain_topic(front: Front, name: str) -> str:
    with Admin(front.cluster.namesrv) as admin:
        admin.create_topic(name, queue_count=4)
    return name


def test_an_old_broker_takes_messages_of_each_type(old: Front) -> None:
    topic = plain_topic(old, "all")
    due = {"seconds": time.time_ns() // 1_000_000_000 + 4}
    with GrpcClient(old.endpoint) as client:
        client.produce(topic)
        route = client.call("QueryRoute", topic={"name": topic})
        assert route["message_queues"][0]["accept_message_types"] == [1, 2, 3, 4]
        for sent in (
            message(topic, b"normal", "01"),
            message(topic, b"ordered", "02", message_type=2, message_group="group-1"),
            message(topic, b"later", "03", message_type=3, delivery_timestamp=due),
        ):
            assert client.call("SendMessage", messages=[sent])["status"]["code"] == OK
        too_late = {"seconds": due["seconds"] + 10_000}
        refused = client.call(
            "SendMessage",
            messages=[message(topic, key="04", message_type=3, delivery_timestamp=too_late)],
        )
        assert refused["status"]["code"] == 40_012
        until(lambda: len(old.stored(topic)) == 3, 30)
    queues = {body: queue for queue, body in old.stored(topic)}
    assert set(queues) == {b"normal", b"ordered", b"later"}
    assert queues[b"ordered"] == 1  # Guava's consistent hash of "group-1" over 4 queues


def test_transactions_of_an_old_broker_are_checked(old: Front) -> None:
    topic = plain_topic(old, "half")
    with GrpcClient(old.endpoint) as client:
        client.produce(topic)
        for body, resolution in ((b"commit", 1), (b"rollback", 2)):
            sent = client.call("SendMessage", messages=[message(topic, body, message_type=4)])
            ended = client.call(
                "EndTransaction",
                topic={"name": topic},
                message_id="01",
                transaction_id=sent["entries"][0]["transaction_id"],
                resolution=resolution,
                source=1,
            )
            assert ended["status"]["code"] == OK
        client.call("SendMessage", messages=[message(topic, b"asked", message_type=4)])
        command = client.next_command()["recover_orphaned_transaction_command"]
        assert command["message"]["body"] == b"asked"
        client.call(
            "EndTransaction",
            topic={"name": topic},
            message_id="01",
            transaction_id=command["transaction_id"],
            resolution=1,
            source=2,
        )
        until(lambda: len(old.stored(topic)) == 2, 30)
    assert sorted(body for _, body in old.stored(topic)) == [b"asked", b"commit"]


def test_consumers_of_an_old_broker_are_refused(old: Front) -> None:
    topic = plain_topic(old, "unread")
    with GrpcClient(old.endpoint) as client:
        replies = client.receive(
            group={"name": "any"},
            message_queue={"topic": {"name": topic}, "id": -1, "broker": {"name": "broker-a"}},
        )
    assert replies[0]["status"]["code"] == 50_100
    assert "5.0" in replies[0]["status"]["message"]


# --- access control -------------------------------------------------------------------------------

RIGHT = (secured_cluster.USER, secured_cluster.USER_SECRET)
_ROOT = json.dumps({"accessKey": secured_cluster.ADMIN, "secretKey": secured_cluster.ADMIN_SECRET})
SECURED = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps(
        {"username": secured_cluster.ADMIN, "password": secured_cluster.ADMIN_SECRET}
    ),
    "innerClientAuthenticationCredentials": _ROOT,
}


async def make_users(namesrv: str) -> None:
    """Create two topics and a group, and a user that may use one topic and the group."""
    config = secured_cluster.config_of(namesrv, secured_cluster.ADMIN, secured_cluster.ADMIN_SECRET)
    async with AsyncAdmin(client=config) as admin:
        for topic in (secured_cluster.TOPIC, secured_cluster.OTHER_TOPIC):
            await admin.create_topic(topic, attributes={"message.type": "NORMAL"})
        await admin.create_group(SubscriptionGroupConfig(group_name=secured_cluster.GROUP))
        await secured_cluster.create_user(
            admin, {secured_cluster.TOPIC: "PUB|SUB"}, {secured_cluster.GROUP: "SUB"}
        )


@pytest.fixture(scope="module", params=["broker", "reput", "5.5.0"])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The endpoint of a broker with access control, or of a proxy before one."""
    folder = tmp_path_factory.mktemp("secured")
    if request.param == "broker":
        port = free_port()
        with ReputCluster(folder, {**SECURED, "grpcServerPort": port}) as cluster:
            asyncio.run(make_users(cluster.namesrv))
            yield f"127.0.0.1:{port}"
        return
    if request.param == "reput":
        running: ReputCluster | JavaCluster = ReputCluster(folder, SECURED)
    else:
        if not java_oracle.wants_all_versions():
            pytest.skip("make interop-all: no proxy before an official broker")
        settings = {**secured_cluster.SETTINGS["5.5.0"], **SECURED}
        running = JavaCluster("5.5.0", folder, settings)
    (folder / "proxy.conf").write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        f"innerClientAuthenticationCredentials={_ROOT}\n",
        encoding="utf-8",
    )
    with running as cluster:
        asyncio.run(make_users(cluster.namesrv))
        with ReputProxy(cluster.namesrv, folder, "-c", str(folder / "proxy.conf")) as proxy:
            yield proxy.endpoint


@pytest.mark.sampled(14)
def test_an_sdk_with_the_credentials_of_a_user(sdk: Sdk, secured: str) -> None:
    topic, group = secured_cluster.TOPIC, secured_cluster.GROUP
    with sdk.push(secured, topic, group, user=RIGHT) as consumer:
        (receipt,) = sdk.sent(secured, topic, [Outgoing(b"signed")], user=RIGHT)
        (arrived,) = consumer.take(1)
    assert (arrived.message_id, arrived.body) == (receipt.message_id, b"signed")


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("topic", "user"),
    [
        (secured_cluster.TOPIC, ()),
        (secured_cluster.TOPIC, (secured_cluster.USER, "another secret")),
        (secured_cluster.OTHER_TOPIC, RIGHT),
    ],
    ids=["none", "wrong secret", "missing permission"],
)
def test_an_sdk_without_a_permission(
    sdk: Sdk, secured: str, topic: str, user: tuple[str, ...]
) -> None:
    with pytest.raises(Refused, match="failed to fetch topic") as refused:
        sdk.sent(secured, topic, [Outgoing(b"refused")], user=user)
    # As with RocketMQ's proxy: the SDK has no reason in its exception.
    assert (refused.value.kind, refused.value.code) == ("Exception", None)
