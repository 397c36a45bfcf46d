"""Clients and slaves: which broker gets each request, with the master and without it.

Source of the rules: rocketmq 4.9.7 ``PullAPIWrapper``, ``MQClientInstance``,
``RemoteBrokerOffsetStore``, ``MQAdminImpl``.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from reput.client import Message, Producer, PullConsumer, SendStatus
from reput.client.config import ClientConfig, ProducerConfig
from reput.client.consumer_offsets import BrokerOffsets
from reput.client.core.retry import SendFailed
from reput.client.core.route_cache import NoRoute
from reput.client.instance import ClientInstance, Guest
from reput.client.queue_pulls import LAGGING_SLAVE_MS
from reput.format import command
from reput.format.bodies import MessageQueue
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.command import Command
from scripted_cluster import ScriptedBroker, ScriptedCluster

QUEUE = MessageQueue("T", "broker-a", 0)
GUARD_S = 30


class Pair:
    """A scripted master and its slave."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.master, self.slave = cluster.replicas["broker-a"].values()
        self.client = ClientConfig(namesrv_addr=cluster.namesrv, persist_offsets_ms=10)
        self.pulled = asyncio.Queue[tuple[ScriptedBroker, Command, float]]()
        """Pulls, with the broker and the time of the loop, in s."""
        for broker in (self.master, self.slave):
            broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda request: command.reply(
                request, ext_fields={"offset": "5"}
            )
            broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = command.reply
            self.answer_pulls(broker)

    def answer_pulls(
        self,
        broker: ScriptedBroker,
        code: int = ResponseCode.PULL_NOT_FOUND,
        suggested: int = 0,
        step: int = 1,
    ) -> None:
        """Answer pulls without messages: with a code, a suggestion, and progress."""

        def answer(request: Command) -> Command:
            self.pulled.put_nowait((broker, request, asyncio.get_running_loop().time()))
            asked = int((request.ext_fields or {})["queueOffset"])
            fields = {
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(asked + step),
                "minOffset": "0",
                "maxOffset": "1000000",
            }
            return command.reply(request, code, ext_fields=fields)

        broker.answers[RequestCode.PULL_MESSAGE] = answer

    async def until_pulled(self, broker: ScriptedBroker) -> Command:
        """Return the next pull from a broker."""
        while True:
            asked, request, _ = await self.pulled.get()
            if asked is broker:
                return request

    def lose_master(self) -> None:
        """Remove the master from routes, and close its connections."""
        del self.cluster.replicas["broker-a"][0]
        for channel in list(self.master.channels):
            channel.close()

    def restore_master(self) -> None:
        self.cluster.replicas["broker-a"][0] = self.master


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with ScriptedCluster({"T": {"broker-a": 1}}, slaves=1) as cluster:
        async with asyncio.timeout(GUARD_S):
            yield Pair(cluster)


def flags_of(request: Command) -> int:
    return int((request.ext_fields or {})["sysFlag"])


async def test_pulls_follow_the_suggestion_and_return(pair: Pair) -> None:
    pair.answer_pulls(pair.master, suggested=1)
    async with PullConsumer("G", client=pair.client) as consumer:
        await consumer.assign([QUEUE])
        await pair.until_pulled(pair.master)
        await pair.until_pulled(pair.slave)
        await pair.until_pulled(pair.master)  # the slave has suggested 0


async def test_only_pulls_from_the_master_commit(pair: Pair) -> None:
    pair.answer_pulls(pair.master, suggested=1)
    async with PullConsumer("G", client=pair.client) as consumer:
        await consumer.assign([QUEUE])
        for broker in (pair.master, pair.slave) * 5:
            pull = await pair.until_pulled(broker)
            if broker is pair.slave:
                assert not flags_of(pull) & PullFlag.COMMIT_OFFSET


async def test_without_its_master_a_slave_is_read(pair: Pair) -> None:
    async with PullConsumer("G", client=pair.client) as consumer:
        await consumer.assign([QUEUE])
        await pair.until_pulled(pair.master)
        pair.lose_master()
        pull = await pair.until_pulled(pair.slave)
        assert not flags_of(pull) & PullFlag.COMMIT_OFFSET


async def test_a_slave_that_lacks_the_messages_is_not_asked_without_a_pause(pair: Pair) -> None:
    pair.answer_pulls(pair.slave, ResponseCode.PULL_RETRY_IMMEDIATELY, step=0)
    del pair.cluster.replicas["broker-a"][0]
    async with PullConsumer("G", client=pair.client) as consumer:
        await consumer.assign([QUEUE])
        times = [(await pair.pulled.get())[2] for _ in range(3)]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert min(pauses) >= LAGGING_SLAVE_MS / 1000


async def test_a_slave_stores_offsets_until_the_master_is_back(pair: Pair) -> None:
    """The master gets them as well: it may have been restarted with older ones."""
    member = Guest()
    instance = await ClientInstance.join(pair.client, member)
    offsets = BrokerOffsets(instance, "G")
    try:
        await offsets.save()
        offsets.table.set(QUEUE, 7)
        await offsets.save()
        assert len(pair.master.asked(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1
        pair.lose_master()
        offsets.table.set(QUEUE, 8)
        await offsets.save()  # fails, or goes to the slave, if the loss was noticed
        await offsets.save()
        update = pair.slave.asked(RequestCode.UPDATE_CONSUMER_OFFSET)[-1]
        assert (update.ext_fields or {})["commitOffset"] == "8"
        assert await offsets.read(QUEUE) == 5
        assert len(pair.slave.asked(RequestCode.QUERY_CONSUMER_OFFSET)) == 1
        pair.restore_master()
        await instance.route("T", refresh=True)
        await offsets.save()
        await offsets.save()
        updates = pair.master.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert [(update.ext_fields or {})["commitOffset"] for update in updates[1:]] == ["8"]
    finally:
        await instance.leave(member)


async def test_the_bounds_of_queues_are_asked_of_masters_only(pair: Pair) -> None:
    del pair.cluster.replicas["broker-a"][0]
    async with PullConsumer("G", client=pair.client) as consumer:
        await consumer.assign([QUEUE])
        for question in (consumer.begin_offset, consumer.end_offset):
            with pytest.raises(NoRoute, match="broker 'broker-a' has no master at the moment"):
                await question(QUEUE)


async def test_producers_send_heartbeats_to_masters_only(pair: Pair) -> None:
    async with Producer("P", client=pair.client) as producer:
        await producer.send(Message("T", b"body"))
        await pair.master.until_asked(RequestCode.HEART_BEAT)
        assert not pair.slave.asked(RequestCode.HEART_BEAT)


async def test_consumers_send_heartbeats_to_slaves_too(pair: Pair) -> None:
    async with PullConsumer("G", client=pair.client) as consumer:
        await consumer.subscribe("T")
        for broker in (pair.master, pair.slave):
            await broker.until_asked(RequestCode.HEART_BEAT)


async def test_a_send_without_a_master_fails_with_the_reason(pair: Pair) -> None:
    del pair.cluster.replicas["broker-a"][0]
    async with Producer("P", client=pair.client) as producer:
        with pytest.raises(NoRoute) as error:
            await producer.send(Message("T", b"body"))
    assert str(error.value) == (
        "no route to topic 'T': none of its queues can be written to; "
        "broker 'broker-a' has no master at the moment"
    )


async def test_a_send_to_a_slave_tries_another_broker() -> None:
    """A slave may have been promoted or demoted: the route is older than that."""
    topics = {"T": {"broker-a": 1, "broker-b": 1}}
    async with ScriptedCluster(topics, brokers=2) as cluster:
        demoted, other = cluster.brokers
        demoted.refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "brokerRole is SLAVE")
        async with Producer("P", namesrv=cluster.namesrv) as producer:
            for _ in range(4):
                result = await producer.send(Message("T", b"body"))
                assert result.queue.broker_name == "broker-b"
    assert demoted.asked(RequestCode.SEND_MESSAGE_V2)
    assert other.sent_count == 4


async def test_a_send_that_only_slaves_get_fails_with_their_reason() -> None:
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        cluster.broker.refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "brokerRole is SLAVE")
        async with Producer("P", namesrv=cluster.namesrv) as producer:
            with pytest.raises(SendFailed, match="brokerRole is SLAVE") as error:
                await producer.send(Message("T", b"body"))
    assert error.value.response_code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("status", [SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE])
async def test_a_message_that_no_slave_has_is_a_result(status: SendStatus) -> None:
    """It is stored: another broker is tried only if that is switched on."""
    async with ScriptedCluster({"T": {"broker-a": 1, "broker-b": 1}}, brokers=2) as cluster:
        for broker in cluster.brokers:
            broker.store_as(ResponseCode[status.name])
        async with Producer("P", namesrv=cluster.namesrv) as producer:
            assert (await producer.send(Message("T", b"body"))).status is status
        assert sum(broker.sent_count for broker in cluster.brokers) == 1
        config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
        async with Producer("Q", namesrv=cluster.namesrv, config=config) as producer:
            assert (await producer.send(Message("T", b"body"))).status is status
        assert sum(broker.sent_count for broker in cluster.brokers) == 4
