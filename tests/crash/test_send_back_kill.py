"""kill -9 of our broker while consumers send messages back: accepted ones are delivered again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.client.message import Message
from reput.client.producer import Producer
from reput.errors import RemotingError
from reput.format import headers, names
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import Header, SendBackHeader
from reput.format.message import StoredMessage
from reput.format.message_id import encode_offset_id
from reput.format.properties import ORIGIN_MESSAGE_ID
from reput.remoting.client import RemotingClient
from reput_cluster import ReputCluster
from world import messages_in, pull_header

pytestmark = [pytest.mark.crash, pytest.mark.slow]

TOPIC, GROUP = "Killed", "readers"
COUNT = 400
TIMEOUT_MS = 5_000
GUARD_S = 30


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReputCluster]:
    with ReputCluster(tmp_path / "cluster", {"messageDelayLevel": "1s 1s 1s"}) as running:
        yield running


class RetryingClient:
    """A client that sends plain commands to the broker."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self._address = address

    async def ask(self, code: int, header: Header) -> Command:
        request = Command(code, ext_fields=headers.encode(header))
        return await self._client.invoke(self._address, request, TIMEOUT_MS)

    async def read(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """Return the messages of a queue."""
        messages: list[StoredMessage] = []
        while True:
            header = pull_header(topic, queue_id, len(messages))
            reply = await self.ask(RequestCode.PULL_MESSAGE, header)
            if reply.code != ResponseCode.SUCCESS:
                return messages
            messages += messages_in(reply.body)

    async def send_back(self, message: StoredMessage) -> bool:
        """Return whether the broker accepted the message; even if not, it may have stored it."""
        header = SendBackHeader(
            offset=message.physical_offset, group=GROUP, delay_level=1, origin_topic=TOPIC,
            unit_mode=False, max_reconsume_times=16,
        )  # fmt: skip
        try:
            reply = await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        except RemotingError:
            return False
        return reply.code == ResponseCode.SUCCESS


async def test_messages_that_were_sent_back_are_delivered_again(cluster: ReputCluster) -> None:
    async with Producer("producers", namesrv=cluster.namesrv) as producer:
        await producer.send_many([Message(TOPIC, b"%d" % number) for number in range(COUNT)])
    taken: set[str] = set()
    async with RemotingClient() as client:
        retrying = RetryingClient(client, cluster.address)
        sent = [stored for queue_id in range(4) for stored in await retrying.read(TOPIC, queue_id)]
        assert len(sent) == COUNT

        async def send_back(message: StoredMessage) -> None:
            if await retrying.send_back(message):
                taken.add(encode_offset_id(message.store_host, message.physical_offset))
                if len(taken) == COUNT // 2:
                    await asyncio.to_thread(cluster.kill_broker)

        waiting = asyncio.Semaphore(16)

        async def in_turn(message: StoredMessage) -> None:
            async with waiting:
                await send_back(message)

        await asyncio.gather(*map(in_turn, sent))
    assert COUNT // 2 <= len(taken) < COUNT

    await asyncio.to_thread(cluster.start)
    async with RemotingClient() as client:
        retrying = RetryingClient(client, cluster.address)
        async with asyncio.timeout(GUARD_S):
            while True:
                again = await retrying.read(names.retry_topic(GROUP))
                if taken <= {stored.properties[ORIGIN_MESSAGE_ID] for stored in again}:
                    break
                await asyncio.sleep(0.1)
        assert all(stored.reconsume_times == 1 for stored in again)
