"""A broker in the test process, as tests use it."""

import asyncio
import threading
from pathlib import Path

import pytest

from interop.clusters import until
from reput.client import Admin, Message, Producer, PullConsumer, blocking
from reput.errors import InvalidOption, ReputError, RequestRefused
from reput.store.reader import StoreReader
from reput.testing import LocalBroker


def test_a_sent_message_is_returned() -> None:
    with LocalBroker() as mq:
        with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
            sent = [producer.send(Message("Orders", b"%d" % i)) for i in range(10)]
        messages = mq.messages("Orders")
        assert [message.body for message in messages] == [b"%d" % i for i in range(10)]
        assert [message.message_id for message in messages] == [
            result.message_id for result in sent
        ]
        assert mq.messages("Nothing") == []


async def test_a_local_broker_in_async_code() -> None:
    async with LocalBroker(topics={"Orders": 2}) as mq:
        async with Producer("P", namesrv=mq.namesrv_addr) as producer:
            for i in range(4):
                await producer.send(Message("Orders", b"%d" % i))
        async with PullConsumer("G", namesrv=mq.namesrv_addr) as consumer:
            queues = await consumer.queues("Orders")
            assert len(queues) == 2


def test_a_stopped_broker_leaves_no_folder_and_no_thread() -> None:
    before = threading.enumerate()
    mq = LocalBroker()
    with mq:
        folder = mq.store_folder
        assert folder.is_dir()
    assert not folder.exists()
    assert set(threading.enumerate()) <= set(before)
    with pytest.raises(RuntimeError, match="not started"):
        mq.messages("T")


def test_a_local_broker_can_be_restarted() -> None:
    mq = LocalBroker(topics=["T"])
    for _ in range(2):
        with mq:
            assert mq.messages("T") == []


def test_a_local_broker_follows_changes_of_its_role() -> None:
    """A client on the broker's machine may change it: tests of failovers do."""
    with LocalBroker(topics={"T": 1}) as mq, blocking.Admin(namesrv=mq.namesrv_addr) as admin:

        def change(role: str, broker_id: int) -> None:
            (broker,) = mq._brokers
            parts = broker.parts
            changes = {"brokerRole": role, "brokerId": str(broker_id)}
            admin.update_broker_config(mq.broker_addr, changes)
            until(lambda: broker.is_open and broker.parts is not parts)

        with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
            producer.send(Message("T", b"before"))
        change("SLAVE", 1)
        assert [message.body for message in mq.messages("T", at_least=1)] == [b"before"]
        waiting = threading.Thread(target=lambda: mq.messages("T", at_least=2, timeout_ms=60_000))
        waiting.start()
        change("ASYNC_MASTER", 0)
        mq.create_topic("Other")
        with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
            producer.send(Message("T", b"after"))
        assert [message.body for message in mq.messages("T", at_least=2)] == [b"before", b"after"]
        waiting.join(60)
        assert not waiting.is_alive()
        mq.clear()
        assert mq.messages("T") == []


def test_a_given_folder_is_kept(tmp_path: Path) -> None:
    for round_number in range(2):
        with LocalBroker(folder=tmp_path, topics={"T": 1}) as mq:
            with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
                producer.send(Message("T", b"%d" % round_number))
            assert [message.body for message in mq.messages("T")] == [b"0", b"1"][
                : round_number + 1
            ]
    assert len(list(StoreReader.open(str(tmp_path)).messages())) == 2


def test_several_local_brokers_are_independent() -> None:
    with LocalBroker() as first, LocalBroker() as second:
        assert first.namesrv_addr != second.namesrv_addr
        with blocking.Producer("P", namesrv=second.namesrv_addr) as producer:
            producer.send(Message("T", b"x"))
        assert first.messages("T") == []
        assert len(second.messages("T")) == 1


def test_a_topic_has_the_requested_queues() -> None:
    with LocalBroker(settings={"autoCreateTopicEnable": "false"}) as mq:
        mq.create_topic("T", queues=1)
        with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
            results = [producer.send(Message("T", b"x")) for _ in range(3)]
        assert [(result.queue.queue_id, result.queue_offset) for result in results] == [
            (0, 0),
            (0, 1),
            (0, 2),
        ]
        with pytest.raises(InvalidOption, match="1 or more"):
            mq.create_topic("T", queues=0)
        with pytest.raises(RequestRefused):
            mq.create_topic("no spaces")


def test_messages_waits_for_a_count() -> None:
    with LocalBroker() as mq:

        async def send_later() -> None:
            async with Producer("P", namesrv=mq.namesrv_addr) as producer:
                for _ in range(3):
                    await producer.send(Message("T", b"x"))

        sender = threading.Thread(target=lambda: asyncio.run(send_later()))
        sender.start()
        assert len(mq.messages("T", at_least=3, timeout_ms=30_000)) == 3
        sender.join()
        with pytest.raises(TimeoutError, match="T has 3 messages after 1 ms, not 4"):
            mq.messages("T", at_least=4, timeout_ms=1)


def test_clear_restores_the_initial_state() -> None:
    with LocalBroker(topics={"Given": 2}) as mq:
        for _ in range(2):
            with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
                assert producer.send(Message("Given", b"x")).queue_offset == 0
                assert producer.send(Message("Made", b"x")).queue_offset == 0
            assert len(mq.messages("Made")) == 1
            mq.clear()
            assert mq.messages("Given") == mq.messages("Made") == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"flushDiskTyp": "SYNC_FLUSH"}, "did you mean 'flushDiskType'"),
        ({"flushDiskType": "SOMETIMES"}, "ASYNC_FLUSH, SYNC_FLUSH"),
        ({"sendMessageThreadPoolNums": 4}, "one thread serves all connections"),
        ({"aclEnable": "true"}, "with rocketmqHome"),
        ({"namesrvAddr": "10.0.0.1:9876"}, "a LocalBroker sets it"),
    ],
)
def test_an_invalid_setting_is_an_error(settings: dict[str, object], text: str) -> None:
    before = threading.enumerate()
    mq = LocalBroker(settings=settings)
    with pytest.raises(InvalidOption, match=text):
        mq.start()
    assert set(threading.enumerate()) <= set(before)


def test_sync_flush() -> None:
    with (
        LocalBroker(settings={"flushDiskType": "SYNC_FLUSH"}) as mq,
        blocking.Producer("P", namesrv=mq.namesrv_addr) as producer,
    ):
        producer.send(Message("T", b"x"))
        assert len(mq.messages("T", at_least=1)) == 1


async def test_access_control() -> None:
    async with (
        LocalBroker(settings={"authenticationEnabled": "true"}) as broker,
        Admin(broker.namesrv_addr) as admin,
    ):
        with pytest.raises(ReputError, match="credentials"):
            await admin.create_topic("T")
