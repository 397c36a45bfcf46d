"""A web service with a producer and a consumer that live as long as the application.

    pip install fastapi uvicorn
    NAMESRV_ADDR=127.0.0.1:9876 uvicorn --app-dir examples fastapi_service:app

``POST /orders`` sends an order; ``GET /orders/{id}`` shows it once the consumer has received it;
``GET /ready`` is 200 while both clients can work, and 503 otherwise, with the reason.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from reput.client import ConsumeContext, Message, Producer, PushConsumer, ReceivedMessage
from reput.errors import ReputError

TOPIC = "Orders"


class Order(BaseModel):
    """An order of a customer."""

    order_id: str
    customer: str
    cents: int


class Clients:
    """The clients of the application, and the orders that its consumer has received."""

    def __init__(self, namesrv: str) -> None:
        self.producer = Producer("order-service", namesrv=namesrv)
        self.consumer = PushConsumer("order-view", namesrv=namesrv, listener=self.listen)
        self.received: dict[str, Order] = {}

    async def listen(self, messages: list[ReceivedMessage], _: ConsumeContext) -> None:
        """Keep the orders of messages."""
        for message in messages:
            order = Order.model_validate_json(message.body)
            self.received[order.order_id] = order


def create_app(namesrv: str) -> FastAPI:
    """Return the application for the brokers of a name server."""
    clients: Clients

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Start the clients on the event loop of the server, and close them at its end."""
        nonlocal clients
        clients = Clients(namesrv)
        async with clients.producer, clients.consumer:
            await clients.consumer.subscribe(TOPIC)
            yield

    app = FastAPI(title="Orders", lifespan=lifespan)

    @app.post("/orders", status_code=202)
    async def place_order(order: Order) -> dict[str, str]:
        """Send an order."""
        message = Message(TOPIC, order.model_dump_json().encode(), keys=order.order_id)
        try:
            result = await clients.producer.send(message, sharding_key=order.order_id)
        except ReputError as error:
            raise HTTPException(503, f"not sent: {error}") from error
        return {"message_id": result.message_id}

    @app.get("/orders/{order_id}")
    async def show_order(order_id: str) -> Order:
        """Return an order that has been received."""
        if order_id not in clients.received:
            raise HTTPException(404, f"order {order_id} was not received")
        return clients.received[order_id]

    @app.get("/ready")
    async def ready() -> dict[str, int]:
        """Check that the producer has a broker, and the consumer its queues."""
        try:
            await clients.producer.ready(TOPIC, timeout_ms=1_000)
            queues = await clients.producer.queues(TOPIC)
            await clients.consumer.ready(timeout_ms=1_000)
        except ReputError as error:
            raise HTTPException(503, str(error)) from error
        consumed = [queue for queue in clients.consumer.queues() if queue.topic == TOPIC]
        return {"queues": len(queues), "consumed_queues": len(consumed)}

    return app


app = create_app(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
