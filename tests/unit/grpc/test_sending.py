"""Sends of several messages, whose replies come one by one."""

import asyncio
import gc
from typing import Any, cast

import pytest

from grpc_client import message
from reput.errors import ConnectionLost
from reput.format.command import Command
from reput.grpc.backend import BrokerQueues, TopicFacts
from reput.grpc.clients import Client
from reput.grpc.sending import Sender
from reput.grpc.transactions import Transactions


class OneBroker:
    """A backend with one broker."""

    async def topic(self, name: str) -> TopicFacts:
        return TopicFacts(name, "NORMAL", (BrokerQueues("b", 4, 4, 6),))


class LostConnection:
    """A client whose connection to the broker is lost before its third send."""

    address = ("10.0.0.7", 1)

    def __init__(self) -> None:
        self.replies: list[asyncio.Future[Command]] = []

    async def channel(self, broker_name: str) -> None:
        """Connect."""

    async def send(
        self, broker_name: str, request: Command, timeout_ms: int
    ) -> "asyncio.Future[Command]":
        if len(self.replies) == 2:
            for reply in self.replies:
                reply.set_exception(ConnectionLost("b"))
            raise ConnectionLost("b")
        self.replies.append(asyncio.get_running_loop().create_future())
        return self.replies[-1]


async def test_a_connection_that_is_lost_between_sends_is_one_error() -> None:
    """The replies to the sends before it are not awaited: asyncio logged each as never read."""
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    client = LostConnection()
    backend = cast(Any, OneBroker())
    sender = Sender(backend, Transactions(backend))
    messages = [message("T", b"x") for _ in range(3)]
    with pytest.raises(ConnectionLost):
        await sender.send(cast(Client, client), messages, 0, 1_000, lambda: asyncio.sleep(0))
    assert len(client.replies) == 2
    client.replies.clear()
    gc.collect()
    assert problems == []
