"""Producers, consumers and administration: asyncio clients of name servers and brokers.

    async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        await producer.send(Message("Orders", b"one"))

``reput.client.blocking`` has the same without ``await``. Names are loaded on first use, so that
``import reput.client`` is cheap.

All errors are subclasses of ``ReputError``. ``RemotingError.retriable`` is True if the same call
may succeed later: ``SendFailed`` for one message, ``NotAllSent`` of ``send_many``, ``NoReply`` to a
request, ``BrokerError`` with a broker's code, ``AccessRefused`` if credentials do not suffice,
``Unreachable``, ``ConnectionLost``, ``RequestTimedOut``, ``Overloaded``. ``NoRoute``: no name
server has the topic, or none answers a first send. ``InvalidOption``: an argument is not allowed.
``StartedElsewhere``: the client was started in another process or event loop.

    core/            pure decisions; times are arguments
    instance.py      the part that the clients of a process share
    producer.py  transaction_producer.py  push_consumer.py  pull_consumer.py  pop_consumer.py
    outages.py       limits of log lines about servers that do not answer
    metrics.py       metrics of a client; connection_events.py: calls of the program
    admin/           topics, groups, offsets, messages, brokers: one module per subject
    blocking.py      all of them without await
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput.client.admin import Admin as Admin, PartlyDone as PartlyDone
    from reput.client.config import (
        ClientConfig as ClientConfig,
        ConsumeFromWhere as ConsumeFromWhere,
        ConsumerConfig as ConsumerConfig,
        MessageModel as MessageModel,
        ProducerConfig as ProducerConfig,
    )
    from reput.client.connection_events import (
        ConnectionChange as ConnectionChange,
        ConnectionEvent as ConnectionEvent,
        PeerKind as PeerKind,
    )
    from reput.client.core.assign import (
        Averagely as Averagely,
        AveragelyByCircle as AveragelyByCircle,
        ByConfig as ByConfig,
        ByMachineRoom as ByMachineRoom,
        ConsistentHash as ConsistentHash,
        MachineRoomNearby as MachineRoomNearby,
    )
    from reput.client.core.retry import SendFailed as SendFailed
    from reput.client.core.route_cache import NoRoute as NoRoute
    from reput.client.instance import (
        NotReady as NotReady,
        NotStarted as NotStarted,
        StartedElsewhere as StartedElsewhere,
    )
    from reput.client.listener import (
        ConsumeContext as ConsumeContext,
        ConsumeResult as ConsumeResult,
    )
    from reput.client.message import (
        Message as Message,
        ReceivedMessage as ReceivedMessage,
        SendResult as SendResult,
        SendStatus as SendStatus,
    )
    from reput.client.metrics import (
        ClientCollector as ClientCollector,
        Metric as Metric,
    )
    from reput.client.pop_consumer import PopConsumer as PopConsumer
    from reput.client.popping import PoppedMessage as PoppedMessage
    from reput.client.producer import (
        NotAllSent as NotAllSent,
        NotTried as NotTried,
        Producer as Producer,
    )
    from reput.client.pull_consumer import (
        NotAssigned as NotAssigned,
        PullConsumer as PullConsumer,
    )
    from reput.client.push_consumer import PushConsumer as PushConsumer
    from reput.client.request_reply import NoReply as NoReply, reply_message as reply_message
    from reput.client.transaction_producer import (
        TransactionProducer as TransactionProducer,
        TransactionResult as TransactionResult,
        TransactionState as TransactionState,
    )
    from reput.errors import (
        AccessRefused as AccessRefused,
        BrokerError as BrokerError,
        ConnectionLost as ConnectionLost,
        InvalidOption as InvalidOption,
        Overloaded as Overloaded,
        RemotingError as RemotingError,
        ReputError as ReputError,
        RequestTimedOut as RequestTimedOut,
        Unreachable as Unreachable,
    )
    from reput.format.bodies import MessageQueue as MessageQueue
    from reput.secret import Secret as Secret

_HOMES = {
    "reput.client.admin": ("Admin", "PartlyDone"),
    "reput.client.config": (
        "ClientConfig",
        "ConsumeFromWhere",
        "ConsumerConfig",
        "MessageModel",
        "ProducerConfig",
    ),
    "reput.client.connection_events": ("ConnectionChange", "ConnectionEvent", "PeerKind"),
    "reput.client.core.assign": (
        "Averagely",
        "AveragelyByCircle",
        "ByConfig",
        "ByMachineRoom",
        "ConsistentHash",
        "MachineRoomNearby",
    ),
    "reput.client.core.retry": ("SendFailed",),
    "reput.client.core.route_cache": ("NoRoute",),
    "reput.client.instance": ("NotReady", "NotStarted", "StartedElsewhere"),
    "reput.client.listener": ("ConsumeContext", "ConsumeResult"),
    "reput.client.message": ("Message", "ReceivedMessage", "SendResult", "SendStatus"),
    "reput.client.metrics": ("ClientCollector", "Metric"),
    "reput.client.pop_consumer": ("PopConsumer",),
    "reput.client.popping": ("PoppedMessage",),
    "reput.client.producer": ("NotAllSent", "NotTried", "Producer"),
    "reput.client.pull_consumer": ("NotAssigned", "PullConsumer"),
    "reput.client.push_consumer": ("PushConsumer",),
    "reput.client.request_reply": ("NoReply", "reply_message"),
    "reput.client.transaction_producer": (
        "TransactionProducer",
        "TransactionResult",
        "TransactionState",
    ),
    "reput.errors": (
        "AccessRefused",
        "BrokerError",
        "ConnectionLost",
        "InvalidOption",
        "Overloaded",
        "RemotingError",
        "ReputError",
        "RequestTimedOut",
        "Unreachable",
    ),
    "reput.format.bodies": ("MessageQueue",),
    "reput.secret": ("Secret",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
