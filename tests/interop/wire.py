"""Plain commands to a broker in another process, ours or Java's; see ``world``."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from reput.format.codes import ResponseCode
from reput.format.message import StoredMessage
from reput.remoting.client import RemotingClient
from world import Subject, messages_in

LOOKS = 500
PAUSE_S = 0.02


class Remote(Subject):
    """A broker at an address, and a connection to it."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self._address = address
        self.client = client

    @property
    def address(self) -> str:
        return self._address

    async def read(
        self, topic: str, count: int, queue_id: int = 0, queue_offset: int = 0, **fields: Any
    ) -> list[StoredMessage]:
        """Wait for ``count`` messages of a queue, which Java dispatches later, and return them."""
        for _ in range(LOOKS):
            reply = await self.pull(topic, queue_id, queue_offset, **fields)
            if reply.code == ResponseCode.SUCCESS:
                messages = messages_in(reply.body)
                if len(messages) >= count:
                    return messages
            await asyncio.sleep(PAUSE_S)
        raise AssertionError(f"{topic}: {reply}")


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Remote]:
    """Connect to a broker."""
    async with RemotingClient() as client:
        yield Remote(address, client)
