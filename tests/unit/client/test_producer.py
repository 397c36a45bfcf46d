import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from random import Random

import pytest

from reput.client.config import ClientConfig, ProducerConfig
from reput.client.core.retry import SendFailed
from reput.client.core.route_cache import NoRoute
from reput.client.instance import NotStarted
from reput.client.message import Message, SendResult, SendStatus
from reput.client.producer import NotAllSent, NotTried, Producer
from reput.client.transaction_producer import TransactionProducer, TransactionState
from reput.errors import BrokerError, InvalidHeader, InvalidOption, RequestTimedOut, Unreachable
from reput.format import batch, command, headers, properties as props
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.recall_handle import RecallHandle, encode
from reput.format.signing import Credentials, Signer, content
from reput.secret import Secret
from scripted_cluster import ScriptedCluster

SEND = RequestCode.SEND_MESSAGE_V2


def sent(cluster: ScriptedCluster, code: RequestCode = SEND) -> list[Command]:
    return [request for broker in cluster.brokers for request in broker.asked(code)]


def header(request: Command) -> headers.SendMessageHeader:
    return headers.decode_v2(request.ext_fields)


def properties(request: Command) -> dict[str, str]:
    return props.decode((header(request).properties or "").encode())


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    topics = {
        "T": {"broker-a": 4},
        "Two": {"broker-a": 2, "broker-b": 2},
        "TBW102": {"broker-a": 8},
    }
    async with ScriptedCluster(topics, brokers=2) as running:
        yield running


@pytest.fixture
async def producer(cluster: ScriptedCluster) -> AsyncIterator[Producer]:
    async with Producer("P", namesrv=cluster.namesrv) as started:
        yield started


# --- one message ------------------------------------------------------------------------


async def test_a_send_request_and_its_result(cluster: ScriptedCluster, producer: Producer) -> None:
    message = Message("T", b"hello", "tag", ["k1", "k2"], {"a": "b"}, 3, 9, wait=False)
    result = await producer.send(message)
    (request,) = sent(cluster)
    fields = header(request)

    assert request.body == b"hello"
    assert (fields.producer_group, fields.topic, fields.flag) == ("P", "T", 9)
    assert (fields.default_topic, fields.default_topic_queue_nums) == ("TBW102", 4)
    assert (fields.sys_flag, fields.reconsume_times, fields.batch) == (0, 0, False)
    assert fields.born_timestamp > 1_600_000_000_000
    assert properties(request) == {
        "UNIQ_KEY": result.message_id,
        "TAGS": "tag",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "WAIT": "false",
        "a": "b",
    }
    assert result == SendResult(
        SendStatus.SEND_OK,
        result.message_id,
        "0" * 32,
        MessageQueue("T", "broker-a", fields.queue_id),
        0,
    )


async def test_queues_are_chosen_round_robin(cluster: ScriptedCluster, producer: Producer) -> None:
    results = [await producer.send(Message("Two", b"x")) for _ in range(4)]

    assert {result.queue for result in results} == set(await producer.queues("Two"))
    assert len({result.message_id for result in results}) == 4


async def test_long_bodies_are_compressed_if_that_makes_them_smaller(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    noise = Random(1).randbytes(50_000)
    for body in (b"x" * 4095, b"x" * 4096, noise, b"x" * 1_000_000):
        await producer.send(Message("T", body))
    requests = sent(cluster)

    assert [header(request).sys_flag for request in requests] == [0, 0x301, 0, 0x301]
    assert zlib.decompress(requests[1].body) == b"x" * 4096
    assert requests[2].body == noise
    assert zlib.decompress(requests[3].body) == b"x" * 1_000_000


async def test_a_message_may_be_sent_to_a_given_queue(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    queue = MessageQueue("Two", "broker-b", 1)
    result = await producer.send(Message("Two", b"x"), queue=queue)
    assert result.queue == queue

    selected = await producer.send(
        Message("Two", b"x", keys="7"),
        queue=lambda queues, message: queues[int(str(message.keys)) % 4],
    )
    assert selected.queue == (await producer.queues("Two"))[3]


async def test_a_queue_of_another_topic_is_refused(producer: Producer) -> None:
    with pytest.raises(InvalidOption, match="a queue of topic 'T'"):
        await producer.send(Message("T", b"x"), queue=MessageQueue("Two", "broker-a", 0))
    with pytest.raises(InvalidOption, match="from the selector"):
        await producer.send(Message("T", b"x"), queue=lambda queues, _: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(SendFailed, match="no master"):
        await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-z", 0))


# "TagA".hashCode() is 2598919, that of "polygenelubricants" -2^31 (java.lang.String).
@pytest.mark.parametrize(("key", "index"), [("TagA", 2598919 % 4), ("polygenelubricants", 0)])
async def test_a_sharding_key_selects_the_queue_of_java(
    cluster: ScriptedCluster, producer: Producer, key: str, index: int
) -> None:
    queue = (await producer.queues("Two"))[index]
    message = Message("Two", b"x", properties={"a": "b"})
    assert (await producer.send(message, sharding_key=key)).queue == queue
    (result,) = await producer.send_many([message], sharding_key=key)
    assert result.queue == queue
    await producer.send_oneway(message, sharding_key=key)
    broker = next(broker for broker in cluster.brokers if broker.name == queue.broker_name)
    requests = await broker.until_asked(SEND, 3)
    assert {header(request).queue_id for request in requests} == {queue.queue_id}
    assert all(properties(request)["__SHARDINGKEY"] == key for request in requests)
    assert message.properties == {"a": "b"}

    assert (await producer.send_batch([message] * 2, sharding_key=key)).queue == queue
    (request,) = sent(cluster, RequestCode.SEND_BATCH_MESSAGE)
    inner = [props.decode(message.property_bytes) for message in batch.decode(request.body)]
    assert [properties["__SHARDINGKEY"] for properties in inner] == [key, key]


async def test_a_sharding_key_excludes_a_queue_and_is_not_empty(producer: Producer) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with pytest.raises(InvalidOption, match="queue= is given"):
        await producer.send(Message("T", b"x"), queue=queue, sharding_key="k")
    for wrong in ("", 5):
        with pytest.raises(InvalidOption, match="sharding_key"):
            await producer.send(Message("T", b"x"), sharding_key=wrong)  # type: ignore[arg-type]


async def test_a_new_topic_uses_the_default_route(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    queues = {(await producer.send(Message("New", b"x"))).queue for _ in range(8)}
    assert queues == {MessageQueue("New", "broker-a", i) for i in range(4)}

    cluster.topics["New"] = {"broker-a": 1}
    assert await producer.send(Message("New", b"x"))


# --- the route of a first send ----------------------------------------------------------

Call = Callable[[Producer], Awaitable[object]]
FIRST_CALLS: dict[str, Call] = {
    "send": lambda producer: producer.send(Message("Late", b"x"), timeout_ms=5_000),
    "batch": lambda producer: producer.send_batch([Message("Late", b"x")], timeout_ms=5_000),
    "oneway": lambda producer: producer.send_oneway(Message("Late", b"x")),
    "queues": lambda producer: producer.queues("Late"),
}
ONCE = ProducerConfig(retry_backoff_ms=0)


@pytest.mark.parametrize("call", FIRST_CALLS.values(), ids=FIRST_CALLS)
async def test_a_first_call_waits_for_a_topic_to_be_registered(
    cluster: ScriptedCluster, producer: Producer, call: Call
) -> None:
    del cluster.topics["TBW102"]
    running = asyncio.ensure_future(call(producer))
    await cluster.name_server.until_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, 4)
    cluster.topics["Late"] = {"broker-a": 1}
    await running


@pytest.mark.parametrize("call", FIRST_CALLS.values(), ids=FIRST_CALLS)
async def test_a_first_call_waits_for_the_name_server(
    cluster: ScriptedCluster, producer: Producer, call: Call
) -> None:
    cluster.topics["Late"] = {"broker-a": 1}
    answer = cluster.name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC]

    def hang_up(_: Command) -> None:
        for channel in list(cluster.name_server.channels):
            channel.close()

    cluster.name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = hang_up
    running = asyncio.ensure_future(call(producer))
    await cluster.name_server.until_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
    cluster.name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = answer
    await running


@pytest.mark.parametrize("call", ["send", "oneway", "queues", "request", "half", "recall"])
async def test_without_a_name_server_the_error_names_those_that_were_asked(call: str) -> None:
    async with ScriptedCluster({}) as cluster:
        address = cluster.namesrv
    producer = TransactionProducer(
        "P", check=lambda _: TransactionState.UNKNOWN, namesrv=address, config=ONCE
    )
    calls: dict[str, Call] = {
        "send": lambda _: producer.send(Message("T", b"x")),
        "oneway": lambda _: producer.send_oneway(Message("T", b"x")),
        "queues": lambda _: producer.queues("T"),
        "request": lambda _: producer.request(Message("T", b"x")),
        "half": lambda _: producer.send_half(Message("T", b"x")),
        "recall": lambda _: producer.recall("T", encode(RecallHandle("T", "b", "1", "k"))),
    }
    text = f"no route to topic 'T': no name server answers \\({address}\\): cannot connect to"
    async with producer:
        with pytest.raises(NoRoute, match=text) as raised:
            await calls[call](producer)
    assert raised.value.retriable


async def test_a_name_server_that_stays_silent_is_named_too(cluster: ScriptedCluster) -> None:
    cluster.name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
    brief = ProducerConfig(send_timeout_ms=150)
    async with Producer("P", namesrv=cluster.namesrv, config=brief) as producer:
        with pytest.raises(NoRoute, match=rf"\({cluster.namesrv}\): no reply in 150 ms"):
            await producer.send(Message("T", b"x"))


async def test_a_name_server_that_refuses_is_asked_once(cluster: ScriptedCluster) -> None:
    cluster.name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: command.reply(
        request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no"
    )
    async with Producer("P", namesrv=cluster.namesrv) as producer:
        with pytest.raises(BrokerError, match="may be a broker"):
            await producer.send(Message("T", b"x"))
    assert len(cluster.name_server.requests) == 1


@pytest.mark.parametrize("config", [ONCE, ProducerConfig(retry_times_when_send_failed=0)])
async def test_without_retries_a_missing_route_is_an_error_at_once(
    cluster: ScriptedCluster, config: ProducerConfig
) -> None:
    del cluster.topics["TBW102"]
    async with Producer("P", namesrv=cluster.namesrv, config=config) as producer:
        with pytest.raises(NoRoute, match=rf"'New': no name server knows it \({cluster.namesrv}\)"):
            await producer.send(Message("New", b"x"))
    assert len(cluster.name_server.requests) == 2  # the topic, and the one that new ones are like


async def test_a_topic_without_writable_queues_is_an_error(cluster: ScriptedCluster) -> None:
    cluster.topics["Full"] = {"broker-a": 0}
    async with Producer("P", namesrv=cluster.namesrv, config=ONCE) as producer:
        for _ in range(2):
            with pytest.raises(NoRoute, match="none of its queues"):
                await producer.send(Message("Full", b"x"))
            with pytest.raises(NoRoute, match="none of its queues"):
                await producer.send_oneway(Message("Full", b"x"))


# --- refused messages -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("a b", b"x"), "topic"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "topic"),
        (Message("T", b""), "body"),
        (Message("T", "text"), "bytes"),  # type: ignore[arg-type]
        (Message("T", b"x" * 4_194_305), "max_message_bytes"),
        (Message("T", b"x", flag=1 << 31), "flag"),
        (Message("T", b"x", tags="\x01"), "x01"),
        (Message("T", b"x", tags="a || b"), "one tag"),
    ],
)
async def test_invalid_messages_are_refused_before_sending(
    cluster: ScriptedCluster, producer: Producer, message: Message, text: str
) -> None:
    with pytest.raises(InvalidOption, match=text):
        await producer.send(message)
    assert not sent(cluster)


async def test_a_delay_level_that_few_brokers_have_is_reported_once(
    producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    for level in (18, 99, 100):
        await producer.send(Message("T", b"x", delay_level=level))
    (text,) = caplog.messages
    assert text.startswith("delay level 99: RocketMQ has 18 levels")


async def test_a_copy_keeps_the_tags_of_its_original(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    await producer.send(Message("T", b"x", tags="a || b", properties={"UNIQ_KEY": "id"}))
    (request,) = sent(cluster)
    assert properties(request) == {"UNIQ_KEY": "id", "TAGS": "a || b"}


async def test_reconsume_times_of_a_retried_message_go_into_the_header(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    cluster.topics["%RETRY%C"] = {"broker-a": 1}
    more = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "RETRY_TOPIC": "T"}
    await producer.send(Message("%RETRY%C", b"x", properties=more))
    (request,) = sent(cluster)

    assert (header(request).reconsume_times, header(request).max_reconsume_times) == (3, 16)
    assert properties(request).keys() == {"UNIQ_KEY", "RETRY_TOPIC"}


async def test_a_message_of_a_retry_topic_has_the_header_that_4_5_needs(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    cluster.topics["%RETRY%C"] = {"broker-a": 1}
    await producer.send(Message("%RETRY%C", b"x"))
    (request,) = sent(cluster)

    assert (header(request).reconsume_times, header(request).max_reconsume_times) == (0, 16)


async def test_a_namespace_prefixes_topics_and_group(cluster: ScriptedCluster) -> None:
    cluster.topics["tenant%T"] = {"broker-a": 1}
    client = ClientConfig(namesrv_addr=cluster.namesrv, namespace="tenant")
    async with Producer("P", client=client) as producer:
        result = await producer.send(Message("T", b"x"))
        (queue,) = await producer.queues("T")
        assert result.queue == queue == MessageQueue("T", "broker-a", 0)
        assert (await producer.send(Message("T", b"x"), queue=queue)).queue == queue
    sent_header = header(sent(cluster)[0])
    assert (sent_header.producer_group, sent_header.topic) == ("tenant%P", "tenant%T")
    assert properties(sent(cluster)[0])["INSTANCE_ID"] == "tenant"


async def test_the_second_kind_of_namespace_is_in_fields_of_all_requests(
    cluster: ScriptedCluster,
) -> None:
    key = Secret("secret-1")
    client = ClientConfig(
        namesrv_addr=cluster.namesrv, namespace_v2="tenant", access_key="me", secret_key=key
    )
    async with Producer("P", client=client) as producer:
        result = await producer.send(Message("T", b"x"))
        assert result.status is SendStatus.SEND_OK
        await producer.send_oneway(Message("T", b"y"))
        await cluster.brokers[0].until_asked(SEND, 2)
    servers = (cluster.name_server, *cluster.brokers)
    asked = [request for server in servers for request in server.requests]
    codes = {request.code for request in asked}
    assert {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT, SEND} <= codes
    signer = Signer(Credentials("me", key))
    for request in asked:
        fields = request.ext_fields or {}
        assert (fields["ns"], fields["nsd"]) == ("tenant", "true")
        unsigned = {name: fields[name] for name in fields if name != "Signature"}
        assert fields["Signature"] == signer.signature(content(unsigned, request.body))


def test_the_address_of_an_instance_has_its_namespace() -> None:
    client = ClientConfig(namesrv_addr="http://MQ_INST_123_abc.example.com:8080")
    assert (client.namesrv_addr, client.namespace) == (
        "MQ_INST_123_abc.example.com:8080",
        "MQ_INST_123_abc",
    )
    given = ClientConfig(namesrv_addr="http://MQ_INST_123_abc.example.com:8080", namespace="own")
    assert given.namespace == "own"


async def test_a_oneway_message_has_no_reply(cluster: ScriptedCluster, producer: Producer) -> None:
    await producer.send_oneway(Message("T", b"x"))
    (request,) = await cluster.broker.until_asked(SEND)

    assert request.is_oneway


async def test_calls_before_start_and_after_close_are_refused(cluster: ScriptedCluster) -> None:
    producer = Producer("P", namesrv=cluster.namesrv)
    with pytest.raises(NotStarted):
        await producer.send(Message("T", b"x"))
    await producer.start()
    await producer.start()
    await producer.send(Message("T", b"x"))
    await producer.close()
    await producer.close()
    with pytest.raises(NotStarted):
        await producer.send_oneway(Message("T", b"x"))


# --- attempts ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205, 1500])
async def test_a_refusal_is_retried_on_another_broker(
    cluster: ScriptedCluster, producer: Producer, code: int
) -> None:
    cluster.brokers[0].refuse(ResponseCode(code))
    for _ in range(4):
        assert (await producer.send(Message("Two", b"x"))).queue.broker_name == "broker-b"
    keys = [properties(request)["UNIQ_KEY"] for request in sent(cluster)]
    assert len(set(keys)) == 4  # a retry keeps the unique key


@pytest.mark.parametrize("code", [3, 13, 215])
async def test_a_refusal_of_every_broker_is_not_retried(
    cluster: ScriptedCluster, producer: Producer, code: int
) -> None:
    for broker in cluster.brokers:
        broker.refuse(ResponseCode(code), "because")
    with pytest.raises(SendFailed, match=r"in 1 attempt .*because") as raised:
        await producer.send(Message("Two", b"x"))

    assert raised.value.response_code == code
    assert isinstance(raised.value.__cause__, BrokerError)


async def test_attempts_are_limited(cluster: ScriptedCluster, producer: Producer) -> None:
    cluster.broker.refuse(ResponseCode.SERVICE_NOT_AVAILABLE)
    with pytest.raises(SendFailed, match="in 3 attempts") as raised:
        await producer.send(Message("T", b"x"))

    assert raised.value.broker_names == ("broker-a",) * 3
    assert raised.value.retriable
    assert len({header(request).queue_id for request in sent(cluster)}) == 3


async def test_a_fixed_queue_gets_one_attempt(cluster: ScriptedCluster, producer: Producer) -> None:
    cluster.broker.refuse(ResponseCode.SYSTEM_ERROR)
    with pytest.raises(SendFailed, match="in 1 attempt"):
        await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 0))


@pytest.mark.parametrize("queue", [None, MessageQueue("T", "broker-a", 0)])
async def test_a_busy_broker_is_retried_until_it_accepts(
    cluster: ScriptedCluster, producer: Producer, queue: MessageQueue | None
) -> None:
    broker = cluster.broker
    broker.refuse(ResponseCode.SYSTEM_BUSY)
    sending = asyncio.create_task(producer.send(Message("T", b"x"), queue=queue, timeout_ms=30_000))
    await broker.until_asked(SEND, 4)  # more than the number of attempts
    broker.store_as(ResponseCode.SUCCESS)

    assert (await sending).status is SendStatus.SEND_OK
    assert broker.sent_count == 1
    assert len({properties(request)["UNIQ_KEY"] for request in sent(cluster)}) == 1


async def test_a_broker_that_stays_busy_is_an_error(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    for broker in cluster.brokers:
        broker.refuse(ResponseCode.SYSTEM_BUSY, "flow control")
    with pytest.raises(SendFailed, match="flow control") as raised:
        await producer.send(Message("Two", b"x"), timeout_ms=100)

    assert raised.value.retriable
    assert set(raised.value.broker_names[:2]) == {"broker-a", "broker-b"}
    # Pauses of 10, 20 and 40 ms; the next one, of 80, would end too late.
    assert 2 <= len(raised.value.broker_names) <= 4


async def test_without_retries_a_busy_broker_gets_one_request(cluster: ScriptedCluster) -> None:
    cluster.broker.refuse(ResponseCode.SYSTEM_BUSY)
    config = ProducerConfig(retry_times_when_send_failed=0)
    async with Producer("P", namesrv=cluster.namesrv, config=config) as producer:
        with pytest.raises(SendFailed, match="in 1 attempt"):
            await producer.send(Message("T", b"x"))


async def test_an_unreachable_broker_is_replaced_by_another(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    await cluster.brokers[0].stop()
    for _ in range(4):
        assert (await producer.send(Message("Two", b"x"))).queue.broker_name == "broker-b"


async def test_a_send_with_all_brokers_unreachable_fails(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    for broker in cluster.brokers:
        await broker.stop()
    with pytest.raises(SendFailed, match=r"\((broker-a, broker-b|broker-b, broker-a)\)") as raised:
        await producer.send(Message("Two", b"x"), timeout_ms=150)
    assert isinstance(raised.value.reason, Unreachable)


@pytest.mark.parametrize("queue", [None, MessageQueue("T", "broker-a", 0)])
async def test_a_broker_that_restarts_is_awaited(
    cluster: ScriptedCluster, queue: MessageQueue | None
) -> None:
    old, new = cluster.brokers
    await old.stop()
    config = ProducerConfig(retry_backoff_ms=1)
    async with Producer("P", namesrv=cluster.namesrv, config=config) as producer:
        sending = asyncio.create_task(
            producer.send(Message("T", b"x"), queue=queue, timeout_ms=30_000)
        )
        # More failures than attempts; after each of them the route is fetched again.
        await cluster.name_server.until_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, 5)
        cluster.replicas["broker-a"] = {0: new}

        assert (await sending).queue.broker_name == "broker-a"
    assert new.sent_count == 1


async def test_no_attempt_starts_after_the_timeout(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    for broker in cluster.brokers:
        broker.fall_silent()
    with pytest.raises(SendFailed, match="in 1 attempt") as raised:
        await producer.send(Message("Two", b"x"), timeout_ms=50)
    assert isinstance(raised.value.reason, RequestTimedOut)


async def test_the_new_address_of_a_broker_is_used(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    await producer.send(Message("T", b"x"))
    await cluster.broker.stop()
    cluster.topics["T"] = {"broker-b": 4}

    assert (await producer.send(Message("T", b"x"))).queue.broker_name == "broker-b"


@pytest.mark.parametrize(
    "status",
    [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE],
)
async def test_a_message_stored_with_a_warning_is_retried_if_configured(
    cluster: ScriptedCluster, status: SendStatus
) -> None:
    cluster.brokers[0].store_as(ResponseCode[status.name])
    fixed = MessageQueue("Two", "broker-a", 0)
    async with Producer("P", namesrv=cluster.namesrv) as producer:
        assert (await producer.send(Message("Two", b"x"), queue=fixed)).status is status
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    async with Producer("P", namesrv=cluster.namesrv, config=config) as producer:
        for _ in range(4):
            result = await producer.send(Message("Two", b"x"))
            assert (result.status, result.queue.broker_name) == (SendStatus.SEND_OK, "broker-b")
        cluster.brokers[1].refuse(ResponseCode.SYSTEM_BUSY)
        statuses = {(await producer.send(Message("T", b"x"))).status for _ in range(4)}
        assert statuses == {status}


async def test_slow_and_failed_brokers_are_avoided_if_configured(cluster: ScriptedCluster) -> None:
    config = ProducerConfig(send_latency_fault_enable=True)
    cluster.brokers[0].refuse(ResponseCode.SYSTEM_ERROR)
    async with Producer("P", namesrv=cluster.namesrv, config=config) as producer:
        for _ in range(20):
            await producer.send(Message("Two", b"x"))
    assert len(cluster.brokers[0].asked(SEND)) <= 1


async def test_a_reply_without_a_queue_offset_is_an_error(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    cluster.broker.answers[SEND] = lambda request: command.reply(request, ext_fields={})
    with pytest.raises(InvalidHeader, match="queueId"):
        await producer.send(Message("T", b"x"))


# --- batches ------------------------------------------------------------------------------


async def test_a_batch_is_one_request(cluster: ScriptedCluster, producer: Producer) -> None:
    messages = [Message("T", b"%d" % i, f"tag{i}", flag=i) for i in range(3)]
    result = await producer.send_batch(messages)
    (request,) = sent(cluster, RequestCode.SEND_BATCH_MESSAGE)
    inner = batch.decode(request.body)

    assert header(request).batch
    assert [(message.flag, message.body) for message in inner] == [(0, b"0"), (1, b"1"), (2, b"2")]
    decoded = [props.decode(message.property_bytes) for message in inner]
    assert [properties["TAGS"] for properties in decoded] == ["tag0", "tag1", "tag2"]
    assert [properties["UNIQ_KEY"] for properties in decoded] == result.message_ids
    assert len(set(result.message_ids)) == 3
    assert properties(request) == {}


async def test_wait_false_is_kept_by_a_batch(cluster: ScriptedCluster, producer: Producer) -> None:
    await producer.send_batch([Message("T", b"x", wait=False)])

    assert properties(sent(cluster, RequestCode.SEND_BATCH_MESSAGE)[0]) == {"WAIT": "false"}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "at least one"),
        ([Message("T", b"x"), Message("Two", b"x")], "one for the batch"),
        ([Message("T", b"x"), Message("T", b"x", wait=False)], "one for the batch"),
        ([Message("T", b"x", delay_level=1)], "0 in a batch"),
        ([Message("T", b"x", delay_ms=1)], "0 in a batch"),
        ([Message("%RETRY%C", b"x")], "no retry topic"),
        ([Message("T", b"x"), Message("T", b"")], "body"),
        ([Message("T", b"x" * 2_500_000)] * 2, "as a batch"),
    ],
)
async def test_messages_that_cannot_be_a_batch_are_refused(
    cluster: ScriptedCluster, producer: Producer, messages: list[Message], text: str
) -> None:
    with pytest.raises(InvalidOption, match=text):
        await producer.send_batch(messages)
    assert not sent(cluster, RequestCode.SEND_BATCH_MESSAGE)


# --- many messages -----------------------------------------------------------------------


async def test_results_are_in_the_order_of_the_messages(cluster: ScriptedCluster) -> None:
    held: list[Command] = []

    def hold(request: Command) -> None:
        # Answer in threes, the last request first.
        held.append(request)
        if len(held) == 3:
            while held:
                cluster.broker.channels[0].send(cluster.broker.stored(held.pop()))

    cluster.broker.answers[SEND] = hold
    config = ProducerConfig(window_count=3)
    async with Producer("P", namesrv=cluster.namesrv, config=config) as producer:
        results = await producer.send_many(Message("T", b"%d" % i) for i in range(9))
    keys = {properties(request)["UNIQ_KEY"]: request.body for request in sent(cluster)}

    assert [keys[result.message_id] for result in results] == [b"%d" % i for i in range(9)]
    assert [result.queue_offset for result in results] == [2, 1, 0, 5, 4, 3, 8, 7, 6]


async def test_send_many_takes_no_more_messages_than_its_window(cluster: ScriptedCluster) -> None:
    taken: list[Message] = []

    def messages() -> Iterator[Message]:
        for _ in range(100):
            taken.append(Message("T", b"x"))
            yield taken[-1]

    cluster.broker.fall_silent()
    config = ProducerConfig(window_count=5)
    async with Producer("P", namesrv=cluster.namesrv, config=config) as producer:
        task = asyncio.create_task(producer.send_many(messages()))
        await cluster.broker.until_asked(SEND, 5)
        assert len(taken) == 5
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(sent(cluster)) == 5


async def test_a_failure_ends_send_many_and_reports_sent_messages(cluster: ScriptedCluster) -> None:
    config = ProducerConfig(window_count=2)
    messages = [
        Message("T", b"x"),
        Message("T", b"x"),
        Message("T", b""),
        *[Message("T", b"x")] * 9,
    ]
    async with Producer("P", namesrv=cluster.namesrv, config=config) as producer:
        with pytest.raises(NotAllSent, match="1 failed") as raised:
            await producer.send_many(messages)
    results = raised.value.results

    assert [type(result) for result in results[:3]] == [SendResult, SendResult, InvalidOption]
    assert len(results) == len(sent(cluster)) + 1 < len(messages)


async def test_send_many_keeps_messages_of_a_sharding_key_in_order(
    cluster: ScriptedCluster,
) -> None:
    held: list[Command] = []
    both_are_held = asyncio.Event()

    def hold(request: Command) -> None:
        held.append(request)
        if len(held) == 2:
            both_are_held.set()

    cluster.broker.answers[SEND] = hold
    messages = [Message("T", b"%s%d" % (key, i)) for i in range(3) for key in (b"a", b"b")]
    async with Producer("P", namesrv=cluster.namesrv) as producer:
        sending = asyncio.create_task(
            producer.send_many(messages, sharding_key=lambda message: message.body[:1].decode())
        )
        for step in range(3):
            # One message of each key is in flight, not more.
            await both_are_held.wait()
            both_are_held.clear()
            assert {request.body for request in held} == {b"a%d" % step, b"b%d" % step}
            for request in [held.pop(), held.pop()]:
                cluster.broker.channels[0].send(cluster.broker.stored(request))
        results = await sending
    assert len({result.queue for result in results[0::2]}) == 1
    assert len({result.queue for result in results[1::2]}) == 1


async def test_send_many_sends_nothing_after_a_failure_of_the_same_key(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    cluster.broker.refuse(ResponseCode.MESSAGE_ILLEGAL)
    with pytest.raises(NotAllSent, match="0 messages sent, 1 failed") as raised:
        await producer.send_many([Message("T", b"x")] * 9, sharding_key="k")
    assert [type(result) for result in raised.value.results] == [SendFailed, *[NotTried] * 8]
    assert len(sent(cluster)) == 1


async def test_send_many_without_messages(producer: Producer) -> None:
    assert await producer.send_many([]) == []
