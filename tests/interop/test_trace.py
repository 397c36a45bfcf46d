"""Traces that Java and Python clients write, and their readers; see ``clusters``."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from interop.clusters import CLIENTS, KINDS, Cluster, start_cluster, until
from interop.conftest import StartOracle
from interop.java_cluster import JavaClient
from interop.java_oracle import ClusterOracle, Oracle
from interop.recorded_oracle import oracle_fixture
from reput.client import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    blocking,
)
from reput.client.admin.traces import FoundTrace
from reput.client.core import trace_codec
from reput.client.core.trace_codec import (
    Begun,
    Consumed,
    MessageKind,
    Outcome,
    Recalled,
    Sent,
    Trace,
    TransactionEnded,
)

pytestmark = pytest.mark.interop

WITH_TRACES = {"traceTopicEnable": True}


class TraceOracle(ClusterOracle):
    """Running ``TraceOracle.java``."""

    main_class = "TraceOracle"


@pytest.fixture(scope="module", params=CLIENTS)
def java(request: pytest.FixtureRequest, start_oracle: StartOracle) -> TraceOracle:
    return start_oracle(TraceOracle, request.param)


@pytest.fixture(scope="module")
def tools(java: TraceOracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """Provide ``mqadmin`` of the same version."""
    with JavaClient(java.version, tmp_path_factory.mktemp("tools")) as client:
        yield client


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, java: TraceOracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with start_cluster(request.param, java.version, folder, WITH_TRACES) as running:
        yield running


codec = oracle_fixture(TraceOracle, ["4.9.7", "5.5.0"])


# --- lines ------------------------------------------------------------------------------


def line_of(kind: str, message_id: str, tags: str | None, keys: str | None) -> Trace:
    """Return the line that TraceOracle.lines encodes."""
    time_ms, broker = 1_700_000_000_000, "127.0.0.1:10911"
    match kind:
        case "Pub":
            return Sent(
                time_ms=time_ms, region="R", group="g", topic="T", message_id=message_id, tags=tags,
                keys=keys, broker_address=broker, body_bytes=5, cost_ms=3, kind=MessageKind.DELAY,
                offset_message_id="7F", is_success=False,
            )  # fmt: skip
        case "SubBefore":
            return Begun(
                time_ms=time_ms, region=None, group="g", call_id="C", message_id=message_id,
                retry_count=2, keys=keys,
            )  # fmt: skip
        case "SubAfter":
            return Consumed(
                call_id="C", message_id=message_id, cost_ms=3, is_success=False, keys=keys,
                outcome=Outcome.EXCEPTION, time_ms=time_ms, group="g",
            )  # fmt: skip
        case "EndTransaction":
            return TransactionEnded(
                time_ms=time_ms, region="R", group="g", topic="T", message_id=message_id, tags=tags,
                keys=keys, broker_address=broker, kind=MessageKind.DELAY, transaction_id="X",
                state="ROLLBACK_MESSAGE", is_check=True,
            )  # fmt: skip
        case _:
            assert kind == "Recall"
            return Recalled(
                time_ms=time_ms, region="R", group="g", topic="T", message_id=message_id,
                is_success=False,
            )  # fmt: skip


@pytest.mark.parametrize(("tags", "keys"), [("", ""), ("tag", "k1 k2"), ("tägs", "schlüssel")])
def test_java_encodes_the_same_lines(codec: Oracle, tags: str, keys: str) -> None:
    encoded = codec.ask_one("lines", "ID", tags, keys)
    kinds = [kind for kind in encoded if not kind.endswith(" keys")]
    assert {"Pub", "SubBefore", "SubAfter", "EndTransaction"} <= set(kinds)
    for kind in kinds:
        ours = line_of(kind, "ID", tags or None, keys or None)
        assert trace_codec.encode(ours) == encoded[kind]
        assert trace_codec.decode(encoded[kind]) == [ours]
        if kind != "Recall":  # Java finds it by keys that no recall has
            assert sorted(trace_codec.keys_of(ours)) == sorted(encoded[f"{kind} keys"].split())


def test_java_reads_our_traces(codec: Oracle) -> None:
    ours = [line_of(kind, kind, None, "k1 k2") for kind in ("Pub", "SubBefore", "SubAfter")]
    (message,) = trace_codec.pack(ours)
    read = codec.ask_one("read", message.body.decode())
    assert [(line["type"], line["id"], line["group"], line["keys"]) for line in read] == [
        (kind, kind, "g", "k1 k2") for kind in ("Pub", "SubBefore", "SubAfter")
    ]
    assert [line["time"] for line in read] == [1_700_000_000_000] * 3
    assert read[2]["code"] == Outcome.EXCEPTION


# --- clients ----------------------------------------------------------------------------


def traces_of(cluster: Cluster, message_id: str) -> list[FoundTrace]:
    with blocking.Admin(cluster.namesrv) as admin:
        return admin.message_trace(message_id)


def printed(tools: JavaClient, cluster: Cluster, message_id: str) -> list[list[str]]:
    """Return the words of each line that ``queryMsgTraceById`` prints, without times."""
    text = tools.mqadmin("queryMsgTraceById", "-i", message_id, namesrv=cluster.namesrv)
    lines = [line.split() for line in text.splitlines() if re.match(r"(Pub|Sub) ", line)]
    return [[words[0], words[1], words[2], words[-1]] for words in lines]


@pytest.mark.rotating
def test_traces_of_java_clients_are_found(
    cluster: Cluster, java: TraceOracle, tools: JavaClient
) -> None:
    words = (cluster.namesrv, "java-p", "JavaTraced", "tag", "k1 k2", "body")
    message_id = java.ask_one("produce", *words)
    assert java.ask_one("consume", cluster.namesrv, "java-c", "JavaTraced") is True
    # 5.x writes traces of consumers only where brokers add their region to messages.
    count = 3 if java.version.startswith("4.") else 1

    def complete_traces() -> list[FoundTrace]:
        traces = traces_of(cluster, message_id)
        return traces if len(traces) == count else []

    traces = [found_trace.trace for found_trace in until(complete_traces)]
    sent = traces[0]
    assert isinstance(sent, Sent)
    assert (sent.group, sent.topic) == ("java-p", "JavaTraced")
    assert (sent.tags, sent.keys) == ("tag", "k1 k2")
    assert (sent.region, sent.broker_address) == ("DefaultRegion", cluster.address)
    assert (sent.body_bytes, sent.kind, sent.is_success) == (4, MessageKind.NORMAL, True)
    lines = [["Pub", "java-p", "127.0.0.1", "success"]]
    if count > 1:
        _, begun, done = traces
        assert isinstance(begun, Begun)
        assert isinstance(done, Consumed)
        assert done.call_id == begun.call_id
        assert (done.group, done.is_success) == ("java-c", True)
        lines.append(["Sub", "java-c", "127.0.0.1", "success"])
    assert printed(tools, cluster, message_id) == lines


@pytest.mark.rotating
async def test_traces_of_python_clients_are_found(cluster: Cluster, tools: JavaClient) -> None:
    config = ClientConfig(namesrv_addr=cluster.namesrv, enable_trace=True)
    async with Producer("python-p", client=config) as producer:
        result = await producer.send(Message("PythonTraced", b"body", "tag", ["k1", "k2"]))
    consumed = asyncio.Event()

    async def listen(messages: object, _: object) -> ConsumeResult:
        consumed.set()
        return ConsumeResult.SUCCESS

    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer("python-c", listener=listen, config=first, client=config)
    await consumer.subscribe("PythonTraced")
    async with consumer:
        await consumed.wait()
    async with PullConsumer("python-l", config=first, client=config) as puller:
        await puller.subscribe("PythonTraced")
        assert await puller.poll(timeout_ms=30_000)

    def complete_lines() -> list[list[str]]:
        lines = printed(tools, cluster, result.message_id)
        return sorted(lines) if len(lines) == 3 else []

    assert await asyncio.to_thread(until, complete_lines) == [
        ["Pub", "python-p", "127.0.0.1", "success"],
        ["Sub", "python-c", "127.0.0.1", "success"],
        ["Sub", "python-l", "127.0.0.1", "success"],
    ]
