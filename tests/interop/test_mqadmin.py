"""The official mqadmin, unmodified, with our name server and broker, and with the official ones.

Each command is run with both clusters, which have got the same messages. It must print the same,
but for addresses, times, ids of messages and clients, places in the log, and versions. Where it
differs on purpose, the test says how.
"""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

import broker_subject
from interop import java_cluster, java_oracle
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage, JavaSent, PushConsumer
from reput import config
from reput.broker.config import load
from reput.broker.server import Broker
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer

pytestmark = pytest.mark.interop

TOOLS = [
    pytest.param(version, marks=pytest.mark.xdist_group(f"rocketmq-{version}"))
    for version in (("4.9.7", "5.5.0") if java_oracle.wants_all_versions() else ("4.9.7",))
]
WAIT_S = 60

MASKS = (
    (re.compile(r"\n(\tat |\t\.\.\. )[^\n]*"), ""),  # a trace
    (re.compile(r"(For more information, please visit the url|See http)[^\n]*"), ""),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\b[0-9A-F]{32,58}\b"), "MESSAGE"),
    (re.compile(r"\S+@c\d+\b"), "CLIENT"),
    (re.compile(r"\b\d{13}\b"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?"), "TIME"),
    (re.compile(r"(storeSize|commitLogOffset|physicOffset|physicSize|bodyCRC)=\d+"), r"\1=N"),
    (re.compile(r"(CommitLog Offset: +)\d+"), r"\1N"),
    (re.compile(r"V\d_\d+_\d+\w*"), "VERSION"),
    # What 5.x has otherwise: a code of its own, places in ids, more properties, what is in flight.
    (re.compile(r"CODE: 29 "), "CODE: 1 "),
    (re.compile(r"@MESSAGE@\d+"), "@MESSAGE@N"),
    (re.compile(r"(MSG_REGION=DefaultRegion|TRACE_ON=true|WAIT=true)(, )?"), ""),
    (re.compile(r", \}"), "}"),
    (re.compile(r"TPS: [\d.]+"), "TPS: N"),
    (re.compile(r" +"), " "),
    (re.compile(r" $", re.MULTILINE), ""),
)


def masked(text: str) -> str:
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return text


@dataclass
class Side:
    """A name server and a broker."""

    namesrv: str
    broker: str
    sent: list[JavaSent]
    """Of topic ``Messages``."""


@dataclass
class Both:
    """Our cluster and the official one, and the tools."""

    java: JavaClient
    ours: Side
    official: Side
    conf: Path
    """Our broker.conf."""

    @property
    def is_4(self) -> bool:
        """Whether the tools and the official cluster are of 4.x."""
        return self.java.version.startswith("4.")

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.official

    def run(self, side: Side, *arguments: str) -> str:
        words = [one.replace("BROKER", side.broker) for one in arguments]
        return self.java.mqadmin(*words, namesrv=side.namesrv)

    def prints(
        self,
        *arguments: str,
        of: Callable[[Side], list[str]] | None = None,
        is_sorted: bool = False,
        without: str = r"\Z.",
        is_same: bool = True,
    ) -> str:
        """Return what mqadmin prints with us, masked; it is what it prints with Java's.

        Args:
            arguments: ``BROKER`` stands for the broker's address.
            of: More of them, which differ.
            is_sorted: Its lines are in the order of Java's hash sets.
            without: Lines that this expression is found in are left out.
            is_same: Whether to compare at all.
        """
        found = []
        for side in self.sides:
            text = masked(self.run(side, *arguments, *(of(side) if of is not None else [])))
            lines = [line for line in text.splitlines() if not re.search(without, line)]
            found.append("\n".join(sorted(lines) if is_sorted else lines))
        assert found[0] == found[1] or not is_same
        return found[0]

    def await_text(self, text: str, *arguments: str) -> None:
        """Wait until mqadmin prints a text with both: clients act in their own time."""
        deadline = time.monotonic() + WAIT_S
        for side in self.sides:
            while text not in (found := self.run(side, *arguments)):
                assert time.monotonic() < deadline, f"no {text!r} in {WAIT_S} s: {found}"

    def await_committed(self, side: Side, consumer: PushConsumer, group: str) -> None:
        """Wait until a broker has the end of both queues of ``Messages`` as a group's offsets."""
        deadline = time.monotonic() + WAIT_S
        wanted = {f"Messages@broker-a@{queue_id}": 3 for queue_id in range(2)}
        with self.java.admin(side.namesrv) as admin:
            while True:
                consumer.persist()  # it tells one-way, and not what its listener is still busy with
                table = admin.call("examineConsumeStats", group)["offsetTable"]
                found = {queue: one["consumerOffset"] for queue, one in table.items()}
                if wanted.items() <= found.items():
                    return
                assert time.monotonic() < deadline, f"not {wanted} in {WAIT_S} s: {found}"

    def run_masked(self, *arguments: str) -> str:
        """Return what mqadmin prints with us, masked."""
        return masked(self.run(self.ours, *arguments))

    def table(self, side: Side, *arguments: str) -> dict[str, str]:
        """Return what mqadmin prints as name and value."""
        lines = self.run(side, *arguments).splitlines()
        pairs = (re.split(r" *[:=] +", line, maxsplit=1) for line in lines)
        return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


@contextlib.contextmanager
def our_cluster(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Run our name server and broker in a thread; yields their addresses and the broker.conf."""
    folder.mkdir()
    conf = folder / "broker.conf"
    started: Future[tuple[str, str]] = Future()
    is_over = threading.Event()

    async def serve() -> None:
        settings = NamesrvConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=str(folder / "kvConfig.json"),
            config_store_path=str(folder / "namesrv.properties"),
        )
        async with NameServer(settings) as server:
            namesrv = f"127.0.0.1:{server.port}"
            known = {
                "brokerName": "broker-a",
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": java_cluster.free_triple(),
                "namesrvAddr": namesrv,
                "storePathRootDir": folder / "store",
                **java_cluster.SMALL_FILES,
            }
            conf.write_text("".join(f"{key}={one}\n" for key, one in known.items()))
            read = load(conf)
            broker = Broker(read.broker, read.store, config_path=str(conf))
            async with broker:
                while broker_subject.CLUSTER not in await asyncio.to_thread(
                    java_cluster.cluster_text, namesrv
                ):
                    await asyncio.sleep(0.01)
                started.set_result((namesrv, broker.address))
                await asyncio.to_thread(is_over.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # the test shall say why
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield (*started.result(WAIT_S), conf)
    finally:
        is_over.set()
        thread.join()


@pytest.fixture(scope="module", params=TOOLS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("mqadmin")
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(_or_skip(lambda: JavaClient(request.param, folder / "java")))
        cluster = stack.enter_context(
            _or_skip(lambda: JavaCluster(request.param, folder / "official"))
        )
        namesrv, broker, conf = stack.enter_context(our_cluster(folder / "ours"))
        found = Both(
            java, Side(namesrv, broker, []), Side(cluster.namesrv, cluster.address, []), conf
        )
        for side in found.sides:
            found.run(side, "updateTopic", "-b", "BROKER", "-t", "Messages", "-r", "2", "-w", "2")
            with java.producer(side.namesrv) as producer:
                queues = producer.queues("Messages")
                for i in range(6):
                    message = JavaMessage("Messages", b"body%d" % i, tags="Tag", keys=f"key{i}")
                    side.sent += producer.send([message], queue=queues[i % 2])
        yield found


# --- topics ---------------------------------------------------------------------------


def test_topics_are_made_changed_shown_and_deleted(both: Both) -> None:
    text = both.prints("updateTopic", "-b", "BROKER", "-t", "Topic", "-r", "3", "-w", "3")
    assert "create topic to ADDRESS success." in text
    assert "success" in both.prints("updateTopic", "-c", "DefaultCluster", "-t", "Topic2")
    assert "conflict with system topic" in both.prints(
        "updateTopic", "-b", "BROKER", "-t", "TBW102"
    )
    assert "update topic perm from 6 to 4" in both.prints(
        "updateTopicPerm", "-t", "Topic", "-p", "4", "-b", "BROKER"
    )
    assert '"perm":4' in both.prints("topicRoute", "-t", "Topic").replace(": ", ":")
    assert "broker-a 2 0 0" in both.prints("topicStatus", "-t", "Topic")
    # 5.x has more topics of its own.
    foreign = r"\Z." if both.is_4 else "^(?!.*(Topic|Messages))"
    text = both.prints("topicList", is_sorted=True, without=foreign)
    assert "Topic2" in text.splitlines()
    both.prints("topicList", "-c", is_sorted=True, without=foreign)
    for topic in ("Topic", "Topic2"):
        text = both.prints("deleteTopic", "-c", "DefaultCluster", "-t", topic)
        assert f"delete topic [{topic}] from cluster [DefaultCluster] success." in text
    assert "CODE: 17" in both.prints("topicRoute", "-t", "Topic")
    assert "CODE: 17" in both.prints("topicStatus", "-t", "Topic")
    text = both.prints("topicList", is_sorted=True, without=foreign)
    assert "Topic2" not in text.splitlines()


def test_unused_topics_and_queues_are_cleaned(both: Both) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert both.prints(command, "-b", "BROKER").strip() == "success"
        assert both.prints(command, "-c", "DefaultCluster").strip() == "success"
    assert "broker-a 0 0 3 TIME" in both.prints("topicStatus", "-t", "Messages")


# --- messages -------------------------------------------------------------------------


def test_messages_are_found_by_key_id_and_offset(both: Both) -> None:
    assert "MESSAGE 1 1" in both.prints("queryMsgByKey", "-t", "Messages", "-k", "key3")
    assert "no message" in both.prints("queryMsgByKey", "-t", "Messages", "-k", "none")

    topic = [] if both.is_4 else ["-t", "Messages"]
    text = both.prints("queryMsgById", *topic, of=lambda side: ["-i", side.sent[4].offset_msg_id])
    assert "Keys: [key4]" in text
    text = both.prints("queryMsgByOffset", "-t", "Messages", "-b", "broker-a", "-i", "1", "-o", "2")
    assert "Keys: [key5]" in text
    # Java does not find a message whose second began in another index file; ours is always there.
    text = both.run(
        both.ours, "queryMsgByUniqueKey", "-t", "Messages", "-i", both.ours.sent[2].msg_id
    )
    assert re.search(r"Keys: +\[key2\]", text)


def test_messages_are_printed(both: Both) -> None:
    text = both.prints("printMsg", "-t", "Messages", "-d", "true", is_sorted=True)
    assert text.count("MSGID: MESSAGE") == 6
    assert "body5" in text


def test_units_of_queues_are_shown(both: Both) -> None:
    asked = ("queryCq", "-t", "Messages", "-b", "BROKER", "-c", "2")
    assert "max: 3, min: 0" in both.prints(*asked, "-q", "0", "-i", "1")
    assert "none@Messages is not online!" in both.prints(*asked, "-q", "0", "-i", "0", "-g", "none")
    assert "7@Messages is not exist!" in both.prints(*asked, "-q", "7", "-i", "0")
    # Java answers with success and nothing, and its tool falls over that.
    text = both.run(both.ours, *asked, "-q", "0", "-i", "9")
    assert "Index 9 of 0@Messages is not exist!" in text


# --- groups, consumers and their offsets -------------------------------------------------


def test_groups_are_made_shown_and_deleted(both: Both) -> None:
    text = both.prints("updateSubGroup", "-b", "BROKER", "-g", "Settings", "-r", "3", "-q", "2")
    assert "create subscription group to ADDRESS success." in text
    assert "retryMaxTimes = 3" in both.prints("getConsumerConfig", "-g", "Settings")
    text = both.prints("deleteSubGroup", "-b", "BROKER", "-g", "Settings", "-r", "true")
    assert "delete subscription group [Settings] from broker [ADDRESS] success." in text
    assert "Settings" not in both.run(both.ours, "getConsumerConfig", "-g", "Settings")


def test_who_is_connected(both: Both) -> None:
    with contextlib.ExitStack() as stack:
        for side in both.sides:
            stack.enter_context(both.java.push_consumer(side.namesrv, "Online", "Messages")).take(6)
            producer = stack.enter_context(both.java.producer(side.namesrv, "online-producer"))
            producer.send([JavaMessage("Topic3", b"body")])
        both.await_text("CONSUME_PASSIVELY", "consumerConnection", "-g", "Online")
        both.await_text("JAVA", "producerConnection", "-g", "online-producer", "-t", "Messages")
        text = both.prints("consumerConnection", "-g", "Online")
        assert "MessageModel: CLUSTERING" in text
        assert "CLIENT ADDRESS JAVA VERSION" in text
        text = both.prints("producerConnection", "-g", "online-producer", "-t", "Messages")
        assert "CLIENT ADDRESS JAVA VERSION" in text
        text = both.prints("consumerStatus", "-g", "Online")
        assert "Rebalance OK" in text
        text = both.prints(
            "producer", "-b", "BROKER", is_sorted=True, without="CLIENT_INNER_PRODUCER"
        )
        assert "online-producer" in text
    both.await_text("CODE: 206", "consumerConnection", "-g", "Online")
    both.prints("consumerConnection", "-g", "Online")
    assert "not exist" in both.prints(
        "producerConnection", "-g", "online-producer", "-t", "Messages"
    )


def test_how_far_groups_are_and_where_they_go_on(both: Both) -> None:
    with contextlib.ExitStack() as stack:
        consumers = []
        for side in both.sides:
            consumer = stack.enter_context(
                both.java.push_consumer(side.namesrv, "Progress", "Messages")
            )
            consumer.take(6)
            both.await_committed(side, consumer, "Progress")
            consumers.append(consumer)
        text = both.prints("consumerProgress", "-g", "Progress", without="%RETRY%")
        assert re.search("Messages broker-a 1 3 3 0 (0 )?TIME", text)
        assert "Progress 1 VERSION PUSH CLUSTERING" in both.run_masked("consumerProgress")
        # This tool can be used once a process: it goes on with a connection that it has closed.
        text = both.run_masked("brokerConsumeStats", "-b", "BROKER")
        assert "Messages Progress broker-a 1 3 3 0 TIME" in text
        assert "Messages Progress" in both.run_masked("statsAll", "-t", "Messages")
        text = both.prints("resetOffsetByTime", "-g", "Progress", "-t", "Messages", "-s", "0")
        assert "broker-a 1 0" in text
        for side, consumer in zip(both.sides, consumers, strict=True):
            consumer.take(6)  # all of them again, ten seconds after it was told
            both.await_committed(side, consumer, "Progress")
        text = both.prints("skipAccumulatedMessage", "-g", "Progress", "-t", "Messages")
        assert "broker-a 1 3" in text
    # Without members the tool sets the offsets itself; a broker of 5.x does it for the tool.
    reset = ("resetOffsetByTime", "-g", "Progress", "-t", "Messages", "-s")
    both.prints(*reset, "now", is_same=both.is_4)
    text = both.prints(*reset, "0", is_same=both.is_4)
    assert "broker-a 1 3 3 0 0" in text
    progress = ("consumerProgress", "-g")  # 5.x has a column for what was pulled before
    text = both.prints(*progress, "Progress", without="%RETRY%", is_same=both.is_4)
    assert re.search("Messages broker-a 1 3 0 3 (0 )?N/A", text)

    clone = ("cloneGroupOffset", "-s", "Progress", "-d", "Online", "-t", "Messages", "-o", "true")
    assert "clone group offset success" in both.prints(*clone)
    text = both.prints(*progress, "Online", without="%RETRY%", is_same=both.is_4)
    assert re.search("Messages broker-a 1 3 0 3 (0 )?N/A", text)


# --- the broker ------------------------------------------------------------------------


def test_the_cluster_is_shown(both: Both) -> None:
    # Rates, the age of the oldest message, and how full the disk is differ.
    rows = [masked(both.run(side, "clusterList")).splitlines() for side in both.sides]
    assert rows[0][0] == rows[1][0]
    assert rows[0][1].split()[:5] == rows[1][1].split()[:5]
    assert rows[0][1].split()[:5] == ["DefaultCluster", "broker-a", "0", "ADDRESS", "VERSION"]
    counts = re.findall(r"^DefaultCluster +broker-a +(\d+) +(\d+) +(\d+) +(\d+)$",
                        both.run(both.ours, "clusterList", "-m"), re.MULTILINE)  # fmt: skip
    assert [int(put_today) >= 6 for _, _, put_today, _ in counts] == [True]


def test_the_broker_tells_how_it_is(both: Both) -> None:
    ours, official = (both.table(side, "brokerStatus", "-b", "BROKER") for side in both.sides)
    # What thread pools and timers of a put would tell, of which there are none.
    missing = {name for name in official.keys() - ours.keys() if "/" not in name}
    if not both.is_4:
        return  # 5.x has names for what only 5.x has
    assert missing == {
        "EndTransactionThreadPoolQueueCapacity", "dispatchMaxBuffer", "getMessageEntireTimeMax",
        "pullThreadPoolQueueCapacity", "putLatency99", "putLatency999", "putMessageDistributeTime",
        "putMessageEntireTimeMax", "queryThreadPoolQueueCapacity", "sendThreadPoolQueueCapacity",
    }  # fmt: skip
    same = {"brokerVersion", "brokerVersionDesc", "dispatchBehindBytes", "commitLogDiskRatio"}
    assert {name: ours[name] for name in same} == {name: official[name] for name in same}
    assert int(ours["msgPutTotalTodayNow"]) >= 6
    assert ours["putMessageSizeTotal"] == ours["commitLogMaxOffset"]


def test_settings_are_shown_and_changed(both: Both) -> None:
    both.prints("updateBrokerConfig", "-b", "BROKER", "-k", "fileReservedTime", "-v", "24")
    assert both.table(both.ours, "getBrokerConfig", "-b", "BROKER")["fileReservedTime"] == "24"
    assert config.parse_properties(both.conf.read_text())["fileReservedTime"] == "24"
    # Java keeps its number and says nothing.
    text = both.run(
        both.ours, "updateBrokerConfig", "-b", "BROKER", "-k", "fileReservedTime", "-v", "long"
    )
    assert "option 'fileReservedTime' is 'long'; allowed: a whole number" in text
    text = both.run(
        both.ours, "updateBrokerConfig", "-b", "BROKER", "-k", "brokerConfigPath", "-v", "/x"
    )
    assert "CODE: 16" in text


def test_what_is_exported(both: Both, tmp_path: Path) -> None:
    for command in ("exportConfigs", "exportMetadata", "exportMetrics"):
        text = both.prints(command, "-c", "DefaultCluster", "-f", str(tmp_path))
        assert "success" in text
