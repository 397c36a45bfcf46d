"""A small order service: takes orders, and reminds customers who have not paid."""

from collections.abc import Mapping
from typing import Any

from reput.client import ClientConfig, Message, Producer, PushConsumer, ReceivedMessage, blocking

ORDERS = "Orders"
REMINDERS = "Reminders"
REMINDER_LEVEL = 16
"""Delay level of a reminder: 30 minutes, with the broker's default levels."""


async def place_order(producer: Producer, order_id: str, order: Mapping[str, Any]) -> str:
    """Send an order and its reminder; return the message id of the order."""
    result = await producer.send(
        Message(ORDERS, json=dict(order), tags="placed", keys=order_id), sharding_key=order_id
    )
    await producer.send(Message(REMINDERS, json={"order_id": order_id}, delay_level=REMINDER_LEVEL))
    return result.message_id


def cancel_order(producer: blocking.Producer, order_id: str) -> None:
    """Send the cancellation of an order, from code without an event loop."""
    producer.send(
        Message(ORDERS, json={"order_id": order_id}, tags="cancelled", keys=order_id),
        sharding_key=order_id,
    )


class Totals:
    """Totals of orders by customer, from the messages of the topic."""

    def __init__(self) -> None:
        self.by_customer: dict[str, int] = {}

    async def listen(self, messages: list[ReceivedMessage], _: object) -> None:
        """Add the orders of messages."""
        for message in messages:
            order = message.json()
            customer = order["customer"]
            self.by_customer[customer] = self.by_customer.get(customer, 0) + order["cents"]

    def consumer(self, client: ClientConfig) -> PushConsumer:
        """Return a consumer that adds orders; use it with ``async with``."""
        return PushConsumer("totals", client=client, listener=self.listen)
