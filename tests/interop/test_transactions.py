"""Transactions of Java and Python producers.

The official broker (see ``clusters``) may deliver a message more than once if the message is
committed during a check.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from interop.clusters import CLIENTS, GUARD_S, KINDS, Cluster, start_cluster, until
from interop.conftest import StartOracle
from interop.java_cluster import JavaCluster, Settings
from interop.java_oracle import ClusterOracle
from reput.client import (
    Message,
    ReceivedMessage,
    SendResult,
    TransactionState,
    blocking,
)
from reput.client.config import ClientConfig
from reput.errors import RemotingError, ReputError
from reput.format import names
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

GROUP = "transactions"
SETTINGS: Settings = {
    "transactionTimeOut": 500,
    "transactionCheckInterval": 700,
    "transactionCheckMax": 3,
    # 5.x writes op messages in batches, by default after 3 s; until then it checks again.
    "transactionOpBatchInterval": 20,
    "transactionOpMsgMaxSize": 4096,
}
STATES = {
    "commit": TransactionState.COMMIT,
    "rollback": TransactionState.ROLLBACK,
    "unknown": TransactionState.UNKNOWN,
}


class TransactionOracle(ClusterOracle):
    """Running ``TransactionOracle.java``."""

    main_class = "TransactionOracle"
    more_classes = ("Signing",)


@pytest.fixture(scope="module", params=CLIENTS)
def java(request: pytest.FixtureRequest, start_oracle: StartOracle) -> TransactionOracle:
    return start_oracle(TransactionOracle, request.param)


PATIENT: Settings = {**SETTINGS, "transactionCheckMax": 1000}
"""Settings with many checks: those without a connected producer count, too."""


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest,
    java: TransactionOracle,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with start_cluster(request.param, java.version, folder, SETTINGS) as running:
        with blocking.Admin(running.namesrv) as admin:
            for topic in ("ByJava", "ByPython"):
                admin.create_topic(topic, queue_count=2)
        yield running


# --- two producers ----------------------------------------------------------------------


class Sender(Protocol):
    """Producer whose local transactions and checks return the states in the message."""

    def send(self, topic: str, body: str, local: str, checks: str, immunity: str = "") -> Any:
        """Send a message in a transaction."""

    def asked(self) -> list[dict[str, Any]]:
        """Return the checks received so far."""

    def close(self) -> None:
        """Shut the producer down."""


class JavaSender:
    """``TransactionMQProducer`` of Java."""

    def __init__(self, java: TransactionOracle, namesrv: str) -> None:
        self.java = java
        self.number = java.ask_one("start", namesrv, GROUP)

    def send(self, topic: str, body: str, local: str, checks: str, immunity: str = "") -> Any:
        return self.java.ask_one("send", self.number, topic, body, local, checks, immunity)

    def asked(self) -> list[dict[str, Any]]:
        checks: list[dict[str, Any]] = self.java.ask_one("asked", self.number)
        return checks

    def close(self) -> None:
        self.java.ask_one("close", self.number)


class PythonSender:
    """Our ``TransactionProducer``."""

    def __init__(self, namesrv: str, topics: tuple[str, ...] = ()) -> None:
        self._asked: list[dict[str, Any]] = []
        config = ClientConfig(namesrv_addr=namesrv, poll_name_server_ms=200, heartbeat_ms=500)
        self.producer = blocking.TransactionProducer(
            GROUP, check=self._check, topics=topics, client=config
        )
        self.producer.start()

    def _check(self, message: ReceivedMessage) -> TransactionState:
        times = int(message.properties["TRANSACTION_CHECK_TIMES"])
        self._asked.append(
            {
                "body": message.body.decode(),
                "topic": message.topic,
                "queueId": message.queue_id,
                "transactionId": message.message_id,
                "times": str(times),
                "bornTimestamp": message.born_timestamp_ms,
            }
        )
        states = message.properties["checks"].split(",")
        return STATES[states[min(times, len(states)) - 1]]

    def send(self, topic: str, body: str, local: str, checks: str, immunity: str = "") -> Any:
        properties = {"local": local, "checks": checks}
        if immunity:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = immunity
        message = Message(topic, body.encode(), "tag", f"key-{body}", properties)
        try:
            result = self.producer.send_in_transaction(message, self._execute)
        except KeyError:  # `throw`: the local transaction failed
            return None
        assert result.is_settled == (local in ("commit", "rollback"))
        return {
            "status": result.half.status.name,
            "msgId": result.half.message_id,
            "queueId": result.half.queue.queue_id,
        }

    @staticmethod
    def _execute(message: Message, half: SendResult) -> TransactionState:
        return STATES[message.properties["local"]]

    def asked(self) -> list[dict[str, Any]]:
        return list(self._asked)

    def close(self) -> None:
        self.producer.close()


SENDERS: dict[str, Callable[[TransactionOracle, Cluster], Sender]] = {
    "ByJava": lambda java, cluster: JavaSender(java, cluster.namesrv),
    "ByPython": lambda _, cluster: PythonSender(cluster.namesrv),
}


# --- reading ----------------------------------------------------------------------------


def read_all(namesrv: str, topic: str) -> list[ReceivedMessage]:
    """Return all messages of a topic."""
    messages: list[ReceivedMessage] = []
    try:
        with blocking.PullConsumer("readers", namesrv=namesrv) as consumer:
            queues = consumer.queues(topic)
            consumer.assign(queues)
            ends = {queue: consumer.end_offset(queue) for queue in queues}
            for queue in queues:
                consumer.seek_to_begin(queue)
            deadline = time.monotonic() + GUARD_S
            while len(messages) < sum(ends.values()):
                assert time.monotonic() < deadline
                messages += consumer.poll(200)
    except RemotingError:  # the topic does not exist yet
        return []
    return messages


def bodies(namesrv: str, topic: str) -> Counter[str]:
    return Counter(message.body.decode() for message in read_all(namesrv, topic))


FIRST = "first"


def register(sender: Sender, cluster: Cluster, topic: str) -> None:
    """Send a first message, and wait until the broker has a producer of the group to check with."""
    sender.send(topic, FIRST, "commit", "throw")
    with blocking.Admin(cluster.namesrv) as admin:

        def is_known() -> bool:
            try:
                return bool(admin.producer_connection(GROUP, topic))
            except ReputError:  # the group has no producer on the broker
                return False

        until(is_known)


# --- outcomes ---------------------------------------------------------------------------

SCRIPT = {
    "commit": ("commit", "throw"),
    "rollback": ("rollback", "throw"),
    "commit when asked": ("unknown", "commit"),
    "rollback when asked": ("unknown", "rollback"),
    "commit when asked twice": ("unknown", "unknown,commit"),
    "never known": ("unknown", "unknown"),
    "local transaction fails": ("throw", "commit"),
    "check fails": ("unknown", "throw,commit"),
}
DELIVERED = {
    "commit", "commit when asked", "commit when asked twice", "local transaction fails",
    "check fails",
}  # fmt: skip


@pytest.mark.sampled(14)
@pytest.mark.parametrize("topic", SENDERS)
def test_every_transaction_ends_as_its_producer_decides(
    java: TransactionOracle, cluster: Cluster, topic: str
) -> None:
    sender = SENDERS[topic](java, cluster)
    register(sender, cluster, topic)
    results = {body: sender.send(topic, body, *states) for body, states in SCRIPT.items()}
    delivered = until(lambda: (got := bodies(cluster.namesrv, topic)).keys() >= DELIVERED and got)
    # Checks before a producer is connected count, too, and a cold Java broker takes its time.
    given_up = until(
        lambda: [
            message
            for message in read_all(cluster.namesrv, names.CHECK_MAX_TIME_TOPIC)
            if message.properties["REAL_TOPIC"] == topic and message.body != FIRST.encode()
        ]
    )
    asked = sender.asked()
    sender.close()

    assert delivered == Counter({FIRST, *DELIVERED})
    assert [message.body for message in given_up] == [b"never known"]
    assert given_up[0].properties["TRANSACTION_CHECK_TIMES"] == "3"
    times: dict[str, list[str]] = {}
    for check in asked:
        times.setdefault(check["body"], []).append(check["times"])
        assert check["topic"] == topic
    assert times == {
        "commit when asked": ["1"],
        "rollback when asked": ["1"],
        "commit when asked twice": ["1", "2"],
        "never known": ["1", "2", "3"],
        "local transaction fails": ["1"],
        "check fails": ["1", "2"],
    }
    for message in read_all(cluster.namesrv, topic):
        result = results.get(message.body.decode())
        if result is not None:
            assert (message.message_id, message.queue_id) == (result["msgId"], result["queueId"])
        assert (message.tags, message.keys) == ("tag", f"key-{message.body.decode()}".split())
        assert message.stored.sys_flag & 0xC == 8
        assert message.stored.prepared_transaction_offset < message.physical_offset
        assert message.properties["TRAN_MSG"] == "true"
        assert message.properties["PGROUP"] == GROUP


@pytest.mark.parametrize("kind", SENDERS)
def test_checks_of_a_message_may_be_delayed(
    java: TransactionOracle, cluster: Cluster, kind: str
) -> None:
    sender = SENDERS[kind](java, cluster)
    topic = f"Patient{kind}"
    register(sender, cluster, topic)
    begun = time.monotonic()
    sender.send(topic, "patient", "unknown", "commit", "2")
    sender.send(topic, "quick", "unknown", "commit")
    until(lambda: "quick" in bodies(cluster.namesrv, topic))
    if isinstance(cluster, JavaCluster):
        # Java counts skipped rounds as checks: the message is discarded without a check.
        until(lambda: "patient" in bodies(cluster.namesrv, names.CHECK_MAX_TIME_TOPIC))
        sender.close()
        return
    until(lambda: "patient" in bodies(cluster.namesrv, topic))
    assert time.monotonic() - begun > 2
    asked = [check["body"] for check in sender.asked()]
    sender.close()
    assert asked == ["quick", "patient"]


# --- restarts, and folders that move between the brokers ----------------------------------


@pytest.mark.parametrize("is_kill", [False, True])
def test_a_restarted_broker_continues_its_checks(
    java: TransactionOracle, tmp_path: Path, is_kill: bool
) -> None:
    with ReputCluster(tmp_path / "own", PATIENT) as cluster:
        with blocking.Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queue_count=1)
        sender = JavaSender(java, cluster.namesrv)
        sender.send("T", "before", "commit", "commit")
        for number in range(10):
            sender.send("T", f"{number}", "unknown", "commit" if number % 2 else "rollback")
        # Java does not wait for the reply: if the kill loses the decision, there is another check.
        sender.send("T", "dropped", "rollback", "rollback")
        cluster.kill_broker() if is_kill else cluster.stop_broker()
        cluster.start()
        wanted = {"before", "1", "3", "5", "7", "9"}
        until(lambda: bodies(cluster.namesrv, "T").keys() >= wanted)
        until(lambda: {check["body"] for check in sender.asked()} >= set("0123456789"))
        sender.close()
        assert bodies(cluster.namesrv, "T").keys() == wanted


@pytest.mark.parametrize("way", ["to Java", "from Java"])
def test_the_other_broker_continues_a_folder(
    java: TransactionOracle, tmp_path: Path, way: str
) -> None:
    """Each broker has the messages, decisions and republished half messages of the other one."""
    kinds = ("reput", "official") if way == "to Java" else ("official", "reput")
    folder = tmp_path / "both"
    with start_cluster(kinds[0], java.version, folder, PATIENT) as first:
        with blocking.Admin(first.namesrv) as admin:
            admin.create_topic("T", queue_count=1)
        sender = JavaSender(java, first.namesrv)
        sender.send("T", "committed", "commit", "throw")
        sender.send("T", "rolled back", "rollback", "throw")
        sender.send("T", "asked", "unknown", "unknown")
        until(sender.asked)
        for number in range(3):
            sender.send("T", f"open {number}", "unknown", "commit")
        sender.close()
        first.stop()
    with start_cluster(kinds[1], java.version, folder, PATIENT) as second:
        heir = JavaSender(java, second.namesrv)
        heir.send("T", "new", "commit", "throw")
        wanted = {"committed", "open 0", "open 1", "open 2", "new"}
        until(lambda: bodies(second.namesrv, "T").keys() >= wanted)
        until(lambda: "asked" in {check["body"] for check in heir.asked()})
        assert bodies(second.namesrv, "T") == Counter(wanted)
        assert not {"committed", "rolled back", "new"} & {check["body"] for check in heir.asked()}
        heir.close()
