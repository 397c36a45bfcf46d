"""Our admin client against the official broker, compared with the output of the official tools."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import pytest

from interop.java_cluster import JavaClient, JavaCluster, Queue
from reput.client.admin import Admin
from reput.client.core.route_cache import NoRoute
from reput.client.message import Message, SendResult
from reput.client.producer import Producer
from reput.errors import BrokerError, InvalidOption
from reput.format.bodies import MessageQueue, SubscriptionGroupConfig

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

BROKER = "broker-a"


@pytest.fixture
async def admin(official: JavaCluster) -> AsyncIterator[Admin]:
    async with Admin(official.namesrv) as started:
        yield started


@pytest.fixture
async def producer(official: JavaCluster) -> AsyncIterator[Producer]:
    async with Producer("ours", namesrv=official.namesrv) as started:
        yield started


@pytest.fixture
def topic() -> str:
    """Provide a topic and group name that is unique to the test."""
    return f"Admin-{Random().randrange(1 << 48):012x}"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that a broker does after it has answered."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(NoRoute):
                if await condition():
                    return
            await asyncio.sleep(0.01)


async def call(java: JavaClient, namesrv: str, method: str, *arguments: Any) -> Any:
    """Call a method of Java's admin client."""

    def run() -> Any:
        with java.admin(namesrv) as tool:
            return tool.call(method, *arguments)

    return await asyncio.to_thread(run)


async def send(admin: Admin, producer: Producer, topic: str, count: int) -> list[SendResult]:
    """Send to a topic of one queue, and wait until all messages can be read."""
    await admin.create_topic(topic, queue_count=1)
    await until(lambda: has_route(admin, topic))
    results = [
        await producer.send(Message(topic, b"%d" % i, f"tag{i}", [f"k{i % 2}", "all"]))
        for i in range(count)
    ]
    await until(lambda: ends_at(admin, results[-1].queue, count))
    return results


async def has_route(admin: Admin, topic: str, least_queues: int = 1) -> bool:
    return len((await admin.topic_route(topic)).publish_queues) >= least_queues


async def ends_at(admin: Admin, queue: MessageQueue, queue_offset: int) -> bool:
    return await admin.max_offset(queue) == queue_offset


# --- clusters, name servers -------------------------------------------------------------


async def test_clusters_and_broker_status_are_read(official: JavaCluster, admin: Admin) -> None:
    clusters = await admin.clusters()
    assert clusters.cluster_addr_table == {"DefaultCluster": [BROKER]}
    assert clusters.broker_addr_table[BROKER].broker_addrs == {0: official.address}

    async def has_sampled() -> bool:  # Before its first sample, a 4.x broker fails.
        with contextlib.suppress(BrokerError):
            return bool(await admin.broker_status(BROKER))
        return False

    await until(has_sampled)
    status = await admin.broker_status(BROKER)
    assert status["brokerVersionDesc"] == "V" + official.version.replace(".", "_")
    assert await admin.broker_status(official.address)
    with pytest.raises(InvalidOption, match=BROKER):
        await admin.broker_status("broker-z")


async def test_settings_of_a_running_broker_are_changed(admin: Admin) -> None:
    before = await admin.broker_config(BROKER)
    assert before["brokerName"] == BROKER
    for value in ("65", before["defaultQueryMaxNum"]):
        await admin.update_broker_config(BROKER, {"defaultQueryMaxNum": value})
        assert (await admin.broker_config(BROKER))["defaultQueryMaxNum"] == value


async def test_keys_and_values_are_stored_and_deleted(
    official: JavaCluster, java_client: JavaClient, admin: Admin, topic: str
) -> None:
    assert await admin.kv(topic, "k") is None
    assert await admin.kv_of_namespace(topic) == {}
    await admin.put_kv(topic, "k", "a = b; c")
    assert await admin.kv(topic, "k") == "a = b; c"
    assert await call(java_client, official.namesrv, "getKVConfig", topic, "k") == "a = b; c"
    assert await admin.kv_of_namespace(topic) == {"k": "a = b; c"}
    await admin.delete_kv(topic, "k")
    assert await admin.kv(topic, "k") is None


async def test_write_permission_is_removed_and_restored(start_official: Any) -> None:
    cluster = start_official()
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic("T")
        await until(lambda: has_route(admin, "T"))
        assert await admin.wipe_write_perm(BROKER) > 0
        assert not await has_route(admin, "T")
        if cluster.version != "4.5.2":
            assert await admin.add_write_perm(BROKER) > 0
            assert await has_route(admin, "T")


# --- topics and groups -------------------------------------------------------------------


async def test_a_topic_is_created_changed_and_deleted(
    official: JavaCluster, java_client: JavaClient, admin: Admin, topic: str
) -> None:
    for counts in ((3, 3), (5, 4)):
        made = await admin.create_topic(topic, queue_count=counts[0], write_queue_count=counts[1])
        assert made == [official.address]
        config = (await admin.topic_configs(BROKER))[topic]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (*counts, 6)
    await until(lambda: has_route(admin, topic, 4))
    route = await call(java_client, official.namesrv, "examineTopicRouteInfo", topic)
    assert route["queueDatas"][0]["readQueueNums"] == 5
    assert topic in await admin.topics()
    assert topic in await admin.topics(cluster="DefaultCluster")

    await admin.delete_topic(topic)
    assert topic not in await admin.topics()
    assert topic not in await admin.topic_configs(BROKER)
    with pytest.raises(NoRoute):
        await admin.topic_route(topic)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": "a b"}, "topic"),
        ({"queue_count": 0}, "queue_count"),
        ({"perm": 8}, "perm"),
        ({"cluster": "Other"}, "DefaultCluster"),
        ({"cluster": "DefaultCluster", "broker": BROKER}, "as well"),
    ],
)
async def test_invalid_topics_are_refused(
    admin: Admin, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidOption, match=text):
        await admin.create_topic(**{"topic": "T", **arguments})


async def test_a_group_is_created_changed_and_deleted(
    official: JavaCluster, java_client: JavaClient, admin: Admin, topic: str
) -> None:
    await admin.create_group(topic)
    made = (await admin.groups())[topic]
    assert made == (await admin.groups(broker=BROKER))[topic]
    assert made == SubscriptionGroupConfig(
        group_name=topic,
        # A broker of 5.x returns its defaults for a group without settings.
        attributes=made.attributes,
        group_retry_policy=made.group_retry_policy,
    )
    await admin.create_group(SubscriptionGroupConfig(group_name=topic, retry_max_times=3))
    assert (await admin.groups())[topic].retry_max_times == 3
    if java_client.version != "4.5.2":  # null in Java's method
        arguments = ("examineSubscriptionGroupConfig", official.address, topic)
        config = await call(java_client, official.namesrv, *arguments)
        assert config["retryMaxTimes"] == 3
    assert await admin.consumer_connection(topic) is None
    await admin.delete_group(topic)
    assert topic not in await admin.groups()


# --- offsets -------------------------------------------------------------------------------


async def test_bounds_and_offsets_by_time_of_queues(
    official: JavaCluster,
    java_client: JavaClient,
    admin: Admin,
    producer: Producer,
    topic: str,
) -> None:
    results = await send(admin, producer, topic, 5)
    queue = results[0].queue
    stored = [await admin.message_by_offset_id(result.offset_message_id) for result in results]
    times = [message.store_timestamp_ms for message in stored if message is not None]
    status = (await admin.topic_status(topic))[queue]

    assert (await admin.min_offset(queue), await admin.max_offset(queue)) == (0, 5)
    assert (status.min_offset, status.max_offset) == (0, 5)
    assert status.last_update_timestamp == times[-1]
    assert await admin.earliest_store_time(queue) == times[0]

    def java_searches() -> list[int]:
        with java_client.pull_consumer(official.namesrv, topic) as consumer:
            place = Queue(topic, queue.broker_name, queue.queue_id)
            return [consumer.search_offset(place, time_ms) for time_ms in (0, *times)]

    expected = await asyncio.to_thread(java_searches)
    assert [await admin.search_offset(queue, time) for time in (0, *times)] == expected


async def test_units_of_a_queue_are_read(
    official: JavaCluster, admin: Admin, producer: Producer, topic: str
) -> None:
    if official.version == "4.5.2":
        pytest.skip("no such case: 4.5.2 encodes its answer before it adds the units")
    results = await send(admin, producer, topic, 5)
    units = await admin.consume_queue(results[0].queue, 1, 3)

    assert (units.min_queue_index, units.max_queue_index) == (0, 5)
    # The physical offset of each is the end of its offset id.
    assert [unit.physic_offset for unit in units.queue_data] == [
        int(result.offset_message_id[16:], 16) for result in results[1:4]
    ]


async def test_consumer_offsets_are_read_cloned_and_reset(
    official: JavaCluster, java_client: JavaClient, admin: Admin, producer: Producer, topic: str
) -> None:
    queue = (await send(admin, producer, topic, 5))[0].queue
    place = Queue(topic, queue.broker_name, queue.queue_id)
    await admin.create_group(topic)
    await admin.update_consumer_offset(topic, queue, 3)
    with pytest.raises(InvalidOption):
        await admin.update_consumer_offset(topic, queue, -1)

    def java_moves() -> int:
        with java_client.pull_consumer(official.namesrv, topic) as consumer:
            committed = consumer.committed(place)
            consumer.commit(place, 4)
            return committed

    assert await asyncio.to_thread(java_moves) == 3
    await until(lambda: is_at(admin, topic, queue, 4))
    stats = await admin.consume_stats(topic, topic)
    assert [(row.queue, row.consumer_offset, row.lag) for row in stats.queues] == [(queue, 4, 1)]
    assert stats.lag == 1
    assert topic in await admin.groups_of_topic(topic)

    await admin.clone_offsets(topic, f"{topic}-clone", topic)
    assert await admin.consumer_offset(f"{topic}-clone", queue) == 4

    async def is_reset() -> bool:
        assert await admin.reset_offsets(topic, topic, 0, is_forced=True) == {queue: 0}
        return await is_at(admin, topic, queue, 0)

    await until(is_reset)  # Java's client sent 4 on commit, and sends it again when it shuts down
    if official.version.startswith("4."):  # 5.x ignores ``force`` and resets in any case.
        assert await admin.reset_offsets(topic, topic, -1, is_forced=False) == {queue: 0}
    assert await admin.reset_offsets(topic, topic, -1) == {queue: 5}


async def is_at(admin: Admin, group: str, queue: MessageQueue, consumer_offset: int) -> bool:
    return await admin.consumer_offset(group, queue) == consumer_offset


async def test_a_running_group_is_shown_and_reset(
    official: JavaCluster, java_client: JavaClient, admin: Admin, producer: Producer, topic: str
) -> None:
    queue = (await send(admin, producer, topic, 5))[0].queue
    consumer = await asyncio.to_thread(
        java_client.push_consumer, official.namesrv, topic, topic, "tag0 || tag1"
    )
    try:
        first = await asyncio.to_thread(consumer.take, 2)
        members = await admin.consumer_connection(topic)
        assert members is not None
        (member,) = members.connection_set
        assert member.language == "JAVA"
        assert members.subscription_table[topic].sub_string == "tag0 || tag1"
        running = await admin.consumer_running_info(topic, member.client_id)
        assert queue in running.mq_table
        message = await admin.message_by_offset_id(first[0].offset_msg_id)
        assert message is not None
        done = await admin.consume_directly(topic, member.client_id, message)
        assert done.consume_result == "CR_SUCCESS"
        await asyncio.to_thread(consumer.take, 1)

        async def has_committed() -> bool:
            await asyncio.to_thread(consumer.persist)
            return await is_at(admin, topic, queue, 5)

        await until(has_committed)  # Until then the broker has no offset to reset.
        assert await admin.reset_offsets(topic, topic, 0) == {queue: 0}
        again = await asyncio.to_thread(consumer.take, 2)
        assert {message.msg_id for message in again} == {message.msg_id for message in first}
    finally:
        await asyncio.to_thread(consumer.close)


# --- messages ---------------------------------------------------------------------------------


async def test_messages_are_found_by_id(admin: Admin, producer: Producer, topic: str) -> None:
    results = await send(admin, producer, topic, 3)
    for i, result in enumerate(results):
        by_place = await admin.message_by_offset_id(result.offset_message_id)
        by_key = await admin.message_by_unique_key(topic, result.message_id)
        assert by_place is not None
        assert by_key is not None
        assert by_place.stored == by_key.stored
        assert by_place.body == b"%d" % i
        assert by_place.queue == result.queue
    first = results[0].offset_message_id
    assert await admin.message_by_offset_id(first[:16] + f"{int(first[16:], 16) + 1:016X}") is None
    assert await admin.message_by_unique_key(topic, "0" * 32) is None
    with pytest.raises(InvalidOption, match="offset id"):
        await admin.message_by_offset_id("7F")


async def test_messages_are_found_by_key(
    official: JavaCluster, java_client: JavaClient, admin: Admin, producer: Producer, topic: str
) -> None:
    results = await send(admin, producer, topic, 5)
    messages = await admin.messages_by_key(topic, "k1")

    assert [message.message_id for message in messages] == [
        results[1].message_id,
        results[3].message_id,
    ]
    assert await admin.messages_by_key(topic, "k2") == []
    assert len(await admin.messages_by_key(topic, "all", count_max=2)) == 2
    store_time_ms = messages[0].store_timestamp_ms
    within = await admin.messages_by_key(topic, "k1", begin_ms=store_time_ms, end_ms=store_time_ms)
    assert results[1].message_id in [message.message_id for message in within]
    assert all(message.store_timestamp_ms == store_time_ms for message in within)

    def java_queries() -> list[str]:
        with java_client.pull_consumer(official.namesrv, topic) as consumer:
            return [message.msg_id for message in consumer.query(topic, "k1")]

    expected = await asyncio.to_thread(java_queries)
    assert {message.message_id for message in messages} == set(expected)


async def test_an_error_contains_address_and_reason(official: JavaCluster, admin: Admin) -> None:
    with pytest.raises(BrokerError, match=official.address) as raised:
        await admin.consumer_running_info("no-group", "no-client")
    assert raised.value.response_code == 1
