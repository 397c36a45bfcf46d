"""The half messages of 5.x producers, by the ids of their transactions.

The id of a transaction is that of its message, as with Java's proxy; a broker wants the place of
the half message. The places of open transactions are remembered; that of a transaction of before a
restart is found in the index of the brokers.

Source: rocketmq-proxy 5.5.0 ``TransactionDataManager``, ``AbstractTransactionService``.
"""

import asyncio
from dataclasses import dataclass

from reput.client.core.key_search import KeyQuery, Window
from reput.errors import ReputError, excerpt
from reput.format import names, properties as props
from reput.format.codes import ResponseCode
from reput.format.message import StoredMessage
from reput.grpc import limits, receiving
from reput.grpc.backend import Backend
from reput.grpc.clients import Client
from reput.grpc.statuses import Code, StatusError


@dataclass(frozen=True, slots=True)
class Half:
    """Location of a half message: its broker, and its offsets there."""

    broker_name: str
    queue_offset: int
    physical_offset: int


class Transactions:
    """The open transactions of all clients.

    Args:
        backend: The brokers of topics.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._halves: dict[tuple[str, str], Half] = {}

    def add(self, topic: str, transaction_id: str, half: Half) -> None:
        """Remember a half message, instead of the oldest one if necessary."""
        self._halves.pop((topic, transaction_id), None)
        if len(self._halves) >= limits.GRPC_TRANSACTIONS.maximum:
            del self._halves[next(iter(self._halves))]
        self._halves[topic, transaction_id] = half

    def drop(self, topic: str, transaction_id: str) -> None:
        """Forget a transaction that has ended."""
        self._halves.pop((topic, transaction_id), None)

    async def find(self, client: Client, topic: str, transaction_id: str, now_ms: int) -> Half:
        """Return the half message of a transaction.

        Args:
            client: Who asks.
            topic: Topic of the message.
            transaction_id: Id of the transaction.
            now_ms: The time in ms since the epoch.

        Raises:
            StatusError: There is none.
            ReputError: The brokers of the topic are unknown.
        """
        half = self._halves.get((topic, transaction_id))
        if half is not None:
            return half
        facts = await self._backend.topic(topic)
        searches = (
            _stored(client, broker.broker_name, topic, transaction_id, now_ms)
            for broker in (() if facts is None else facts.brokers)
        )
        for half in await asyncio.gather(*searches):
            if half is not None:
                return half
        raise StatusError(
            Code.INTERNAL_SERVER_ERROR,
            f"cannot found transaction data: {excerpt(transaction_id)!r} is no message id of a "
            f"transaction in {topic}",
        )


async def _stored(
    client: Client, broker_name: str, topic: str, transaction_id: str, now_ms: int
) -> Half | None:
    """Return the newest half message with an id at a broker; None if the broker has none."""
    query = KeyQuery(names.HALF_TOPIC, transaction_id, Window(0, now_ms + 1), is_unique=True)
    try:
        reply = await client.ask(broker_name, query.request())
        if reply.code != ResponseCode.SUCCESS:
            return None
        halves = [
            message
            for message in receiving.messages_of(reply.body)
            if _is_half_of(message, topic, transaction_id)
        ]
    except ReputError:
        return None
    newest = max(halves, key=lambda message: message.physical_offset, default=None)
    if newest is None:
        return None
    return Half(broker_name, newest.queue_offset, newest.physical_offset)


def _is_half_of(message: StoredMessage, topic: str, transaction_id: str) -> bool:
    return (
        message.topic == names.HALF_TOPIC
        and message.properties.get(props.REAL_TOPIC) == topic
        and message.unique_key == transaction_id
    )
