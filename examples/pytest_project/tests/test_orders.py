"""Tests of the order service, each against a real broker without topics.

The fixture ``rocketmq`` comes with reput: one broker for all tests of the run, emptied after each.
"""

import pytest

import orders
from reput.client import ClientConfig, Message, NoRoute, Producer, blocking
from reput.testing import LocalBroker

MINUTE_MS = 60_000


def test_a_cancellation_is_sent(rocketmq: LocalBroker) -> None:
    """Check a blocking function with the messages that have arrived at the broker."""
    with blocking.Producer("shop", namesrv=rocketmq.namesrv_addr) as producer:
        orders.cancel_order(producer, "order-1")

    (message,) = rocketmq.messages(orders.ORDERS)
    assert (message.tags, message.keys) == ("cancelled", ["order-1"])


async def test_orders_are_added_up(rocketmq: LocalBroker) -> None:
    """Check asyncio code: a producer and a consumer on the event loop of the test."""
    rocketmq.create_topic(orders.ORDERS)
    client = ClientConfig(namesrv_addr=rocketmq.namesrv_addr, persist_offsets_ms=50)
    totals = orders.Totals()
    async with Producer("shop", client=client) as producer, totals.consumer(client) as consumer:
        await consumer.subscribe(orders.ORDERS, "placed")
        await consumer.ready()
        await orders.place_order(producer, "order-1", {"customer": "ann", "cents": 450})
        await orders.place_order(producer, "order-2", {"customer": "ann", "cents": 50})
        await orders.place_order(producer, "order-3", {"customer": "bob", "cents": 20})
        await rocketmq.wait_until_consumed_async("totals")
    assert totals.by_customer == {"ann": 500, "bob": 20}


async def test_a_reminder_comes_after_half_an_hour(rocketmq: LocalBroker) -> None:
    """Check a delay without waiting for it: the broker's clock is advanced."""
    async with Producer("shop", namesrv=rocketmq.namesrv_addr) as producer:
        await orders.place_order(producer, "order-1", {"customer": "ann", "cents": 450})
    await rocketmq.advance_async(29 * MINUTE_MS)
    assert rocketmq.messages(orders.REMINDERS) == []
    await rocketmq.advance_async(1 * MINUTE_MS)
    (reminder,) = rocketmq.messages(orders.REMINDERS)
    assert reminder.json() == {"order_id": "order-1"}


@pytest.mark.rocketmq(autoCreateTopicEnable="false")
def test_a_missing_topic_is_an_error(rocketmq: LocalBroker) -> None:
    """Check a broker with other settings: the mark starts one for this test."""
    with (
        blocking.Producer("shop", namesrv=rocketmq.namesrv_addr) as producer,
        pytest.raises(NoRoute, match=orders.ORDERS),
    ):
        producer.send(Message(orders.ORDERS, b"x"))
