"""Pages of the console and their JSON beside official brokers: the same numbers, no failures."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="reput.console imports it")

from console_forms import confirmation
from console_process import ConsoleProcess
from interop import java_oracle, secured_cluster as secured
from interop.clusters import until
from interop.java_cluster import JavaCluster
from reput.client import ConsumeContext, ConsumeResult, Message, MessageQueue, blocking
from reput.client.config import ClientConfig, ConsumeFromWhere, ConsumerConfig
from reput.client.message import ReceivedMessage

pytestmark = [pytest.mark.interop, pytest.mark.rotating, pytest.mark.slow]

TOPIC, GROUP = "ConsolePages", "console-pages"
QUEUES, MESSAGE_COUNT, CONSUMED = 2, 40, 5
SECURED = ("4.9.7", "5.5.0") if java_oracle.wants_all_versions() else ()


def fill(client: ClientConfig) -> None:
    """Create a topic and a group, send messages, and commit an offset of each queue."""
    with blocking.Admin(client=client) as admin:
        admin.create_topic(TOPIC, queue_count=QUEUES)
        admin.create_group(GROUP)
        with blocking.Producer("console-sender", client=client) as producer:
            for number in range(MESSAGE_COUNT):
                keys = f"key-{number}"
                producer.send(Message(TOPIC, b"<b>%d</b>" % number, keys=keys, tags="Tag"))
        for queue_id in range(QUEUES):
            admin.update_consumer_offset(GROUP, MessageQueue(TOPIC, "broker-a", queue_id), CONSUMED)


def assert_same_numbers(console: ConsoleProcess) -> None:
    """Check that the lists have what was sent and committed, once the console has asked for it."""

    def row_of(page: str) -> dict[str, Any]:
        rows = console.json(page)["rows"]
        return dict(rows[0]) if rows else {}

    until(lambda: row_of(f"topics?q={TOPIC}").get("messages") == MESSAGE_COUNT)
    lag = MESSAGE_COUNT - QUEUES * CONSUMED
    until(lambda: row_of(f"groups?q={GROUP}").get("lag") == lag)
    topic = row_of(f"topics?q={TOPIC}")
    assert (topic["queues"], topic["groups"], topic["lag"]) == (QUEUES, 1, lag)
    broker = row_of("brokers")
    assert (broker["name"], broker["state"]) == ("broker-a", "ok")
    queues = console.json(f"groups/{GROUP}")["queues"]
    assert [queue["consumer_offset"] for queue in queues] == [CONSUMED] * QUEUES
    assert sum(queue["max_offset"] for queue in queues) == MESSAGE_COUNT
    newest = console.json(f"messages?topic={TOPIC}")["answer"]
    assert newest["complete"], newest
    assert len(newest["rows"]) == MESSAGE_COUNT


def assert_pages(console: ConsoleProcess, version: str) -> None:
    """Check that every page is there as HTML, and shows what the broker has."""
    (message,) = until(lambda: console.json(f"messages?topic={TOPIC}&key=key-7")["answer"]["rows"])
    id_ = message["offset_id"]
    texts = {
        "": "broker-a",
        "topics": TOPIC,
        f"topics/{TOPIC}": GROUP,
        "groups": GROUP,
        f"groups/{GROUP}": TOPIC,
        "brokers": version.replace(".", "_"),
        "brokers/broker-a": "brokerName",
        f"messages?topic={TOPIC}&key=key-7": "key-7",
        f"messages/{id_}?topic={TOPIC}": "&lt;b&gt;7&lt;/b&gt;",
        "dlq": "Dead letters",
    }
    for page, text in texts.items():
        status, html = console.get(page)
        assert status == 200, (page, html)
        assert text in html, page


@pytest.fixture
def console(official: JavaCluster, tmp_path: Path) -> Iterator[ConsoleProcess]:
    fill(ClientConfig(namesrv_addr=official.namesrv))
    with ConsoleProcess(official.namesrv, tmp_path / "console") as running:
        yield running


def test_pages_of_an_official_broker(official: JavaCluster, console: ConsoleProcess) -> None:
    assert_same_numbers(console)
    assert_pages(console, official.version)


LETTERS = sorted(b"letter %d" % number for number in range(6))


class Listener:
    """Listener that fails or takes all messages, and keeps them."""

    def __init__(self, result: ConsumeResult) -> None:
        self._result = result
        self._lock = threading.Lock()
        self.messages: list[ReceivedMessage] = []

    def __call__(self, messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        with self._lock:
            self.messages += messages
        return self._result

    def bodies(self) -> list[bytes]:
        """Return the bodies in order."""
        with self._lock:
            return sorted(message.body for message in self.messages)


@contextlib.contextmanager
def consuming(namesrv: str, result: ConsumeResult) -> Iterator[Listener]:
    """Consume as ``resent-group``, without retries, from the first message."""
    first = ConsumeFromWhere.FIRST_OFFSET
    config = ConsumerConfig(consume_from_where=first, max_reconsume_times=0)
    listener = Listener(result)
    with blocking.PushConsumer(
        "resent-group", namesrv=namesrv, listener=listener, config=config
    ) as consumer:
        consumer.subscribe("ResentLetters")
        yield listener


def test_all_dead_letters_go_back_to_their_group(official: JavaCluster, tmp_path: Path) -> None:
    with blocking.Admin(official.namesrv) as admin:
        admin.create_topic("ResentLetters", queue_count=2)
        admin.create_group("resent-group")
        if official.version.startswith("4.5"):  # creates it without the permission to read it
            admin.create_topic("%DLQ%resent-group", queue_count=1)
    with blocking.Producer("letter-writers", namesrv=official.namesrv) as producer:
        for body in LETTERS:
            producer.send(Message("ResentLetters", body, keys="k"))
    page = "dlq/resent-group"
    with ConsoleProcess(official.namesrv, tmp_path / "console", "--allow", "operate") as console:

        def letters() -> list[str]:
            status, text = console.get(f"{page}?format=json")
            rows = json.loads(text)["letters"] if status == 200 else []
            return [letter["row"]["body"] for letter in rows]

        with consuming(official.namesrv, ConsumeResult.LATER):
            until(lambda: len(letters()) == len(LETTERS))
        status, preview = console.post(f"{page}/resend-all", {"key": "k"})
        assert status == 200, preview
        assert f"Resend {len(LETTERS)} dead letters of resent-group" in preview
        status, started = console.post(f"{page}/resend-all", confirmation(preview))
        assert (status, "has started" in started) == (200, True), started

        def job() -> dict[str, Any]:
            return dict(console.json(page)["jobs"][0])

        until(lambda: job()["state"] == "done")
        assert (job()["sent"], job()["failed"]) == (len(LETTERS), 0)
        with consuming(official.namesrv, ConsumeResult.SUCCESS) as listener:
            until(lambda: listener.bodies() == LETTERS)
        assert all("REPUT_RESENT" in message.properties for message in listener.messages)


@pytest.mark.skipif(not SECURED, reason="make interop-all: other tests sign and use TLS")
@pytest.mark.parametrize("version", SECURED)
def test_pages_of_a_broker_with_access_control_over_tls(version: str, tmp_path: Path) -> None:
    folder, key_file = tmp_path / "cluster", tmp_path / "secret"
    key_file.write_text(secured.ADMIN_SECRET)
    key_file.chmod(0o600)
    files = secured.FILES[version]
    credentials = ("--access-key", secured.ADMIN, "--secret-key-file", str(key_file))
    with JavaCluster(version, folder, secured.SETTINGS[version], files=files, tls=True) as running:
        namesrv = running.namesrv
        fill(secured.config_of(namesrv, secured.ADMIN, secured.ADMIN_SECRET, use_tls=True))
        with ConsoleProcess(namesrv, tmp_path / "console", "--tls", *credentials) as console:
            assert_same_numbers(console)
            assert_pages(console, version)
        with ConsoleProcess(namesrv, tmp_path / "unsigned", "--tls") as console:
            # A broker that refuses is said to refuse: its topics are not an empty list.
            (broker,) = until(lambda: console.json("brokers")["rows"])
            until(lambda: console.json("brokers")["rows"][0]["state"] != "new")
            (broker,) = console.json("brokers")["rows"]
            assert broker["state"] == "refuses", broker
            assert "unknown" in broker["version"], json.dumps(broker)
