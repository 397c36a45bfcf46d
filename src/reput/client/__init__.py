"""Who sends, consumes and administers: clients of name servers and brokers, over asyncio.

    async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        await producer.send(Message("Orders", b"one"))

The same without ``await``: ``reput.client.blocking``. Names are loaded when they are first used,
so ``import reput.client`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput.client.admin import Admin as Admin
    from reput.client.config import (
        ClientConfig as ClientConfig,
        ConsumerConfig as ConsumerConfig,
        ProducerConfig as ProducerConfig,
    )
    from reput.client.message import (
        Message as Message,
        ReceivedMessage as ReceivedMessage,
        SendResult as SendResult,
        SendStatus as SendStatus,
    )
    from reput.client.producer import Producer as Producer
    from reput.client.pull_consumer import PullConsumer as PullConsumer
    from reput.client.push_consumer import PushConsumer as PushConsumer
    from reput.format.bodies import MessageQueue as MessageQueue

_HOME = {
    "Admin": "reput.client.admin",
    "ClientConfig": "reput.client.config",
    "ConsumerConfig": "reput.client.config",
    "Message": "reput.client.message",
    "MessageQueue": "reput.format.bodies",
    "Producer": "reput.client.producer",
    "ProducerConfig": "reput.client.config",
    "PullConsumer": "reput.client.pull_consumer",
    "PushConsumer": "reput.client.push_consumer",
    "ReceivedMessage": "reput.client.message",
    "SendResult": "reput.client.message",
    "SendStatus": "reput.client.message",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
