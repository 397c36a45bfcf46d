"""A master as RocketMQ's are, whose answers a test can change: a store, a port for requests, and a
port for slaves.

The port for slaves follows ``HAConnection`` of 4.9.7: a first report of 0 begins at the last file,
any other at its physical offset; a report before the log's begin or after its end gets heartbeats
only; frames have at most 32 KiB, and never cross a file.
"""

import asyncio
import contextlib
import random
import struct
from pathlib import Path
from typing import Any

from reput.format import bodies, command, headers
from reput.format.bodies import KvTable
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import ViewMessageHeader
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage, PutStatus
from scripted_cluster import ScriptedServer
from world import CLUSTER, NAME

FILE_SIZE = 64 * 1024
FRAME_BYTES_MAX = 32 * 1024
HEARTBEAT_S = 0.1
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "max_message_size": FILE_SIZE // 4,
}


class ScriptedMaster(ScriptedServer):
    """A master on a folder.

    Args:
        root: The folder.
        settings: Settings of the store.
    """

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__()
        config = StoreConfig(store_path_root_dir=str(root), **{**SIZES, **settings})
        self.store = MessageStore.open(config=config)
        self.settings = {
            "brokerClusterName": CLUSTER,
            "brokerName": NAME,
            "brokerRole": "ASYNC_MASTER",
            "mappedFileSizeCommitLog": str(config.mapped_file_size_commit_log),
        }
        self.answers = {
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
        }
        self.reports: list[list[int]] = []
        """What each connection of a slave has reported."""
        self.sent_bytes = 0
        """Bytes of the log that were sent."""
        self._grown = asyncio.Condition()
        self._reported = asyncio.Condition()
        self._slaves: set[asyncio.StreamWriter] = set()
        self._random = random.Random(1)

    async def __aenter__(self) -> "ScriptedMaster":
        await self.start()
        await self.open_ha()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self.close_ha()
        self.store.close()

    async def open_ha(self, port: int = 0) -> None:
        """Listen for slaves."""
        self._ha = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.ha_port = self._ha.sockets[0].getsockname()[1]

    async def close_ha(self) -> None:
        """Close the port for slaves, and all their connections."""
        self._ha.close()
        self.drop_slaves()
        await self._ha.wait_closed()

    def drop_slaves(self) -> None:
        """Close the connections of slaves."""
        for writer in self._slaves:
            writer.close()

    @property
    def ha_address(self) -> str:
        return f"127.0.0.1:{self.ha_port}"

    async def put(self, count: int, size_max: int = 3000, topic: str = "T") -> None:
        """Put messages of random sizes and bytes."""
        for _ in range(count):
            body = self._random.randbytes(self._random.randrange(1, size_max))
            message = IncomingMessage(topic, body, self._random.randrange(3))
            assert self.store.put(message).status is PutStatus.PUT_OK
        async with self._grown:
            self._grown.notify_all()

    def expire_first_file(self) -> None:
        self.store.log.delete_first(0, 0)

    @property
    def end(self) -> int:
        return self.store.max_physical_offset

    async def until_reported(self, physical_offset: int) -> None:
        """Wait until the newest connection has reported a physical offset."""
        async with self._reported:
            await self._reported.wait_for(
                lambda: bool(self.reports) and physical_offset in self.reports[-1]
            )

    # The port for requests --------------------------------------------------------------------

    def _config(self, request: Command) -> Command:
        text = "".join(f"{key}={value}\n" for key, value in self.settings.items())
        return command.reply(request, body=text.encode())

    def _runtime_info(self, request: Command) -> Command:
        table = {
            # Java has no files before the first message.
            "commitLogMinOffset": str(self.store.min_physical_offset if self.end else -1),
            "commitLogMaxOffset": str(self.store.max_physical_offset),
        }
        return command.reply(request, body=bodies.encode(KvTable(table=table)))

    def _view(self, request: Command) -> Command:
        header = headers.decode(ViewMessageHeader, request.ext_fields)
        data = self.store.record_at(header.offset)
        if data is None:
            text = f"can not find message by the offset, {header.offset}"
            return command.reply(request, ResponseCode.SYSTEM_ERROR, text)
        return command.reply(request, body=data)

    # The port for slaves ----------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._slaves.add(writer)
        reports: list[int] = []
        sending = None
        try:
            while True:
                data = await reader.readexactly(8)
                reports.append(struct.unpack(">q", data)[0])
                if sending is None:
                    self.reports.append(reports)
                    sending = asyncio.create_task(self._send(writer, reports[0]))
                async with self._reported:
                    self._reported.notify_all()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            if sending is not None:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await sending
            self._slaves.discard(writer)
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, position: int) -> None:
        if position == 0:
            position = max(self.end - 1, 0) // FILE_SIZE * FILE_SIZE
        while True:
            size = min(FRAME_BYTES_MAX, self.end - position, FILE_SIZE - position % FILE_SIZE)
            data = self.store.log.read(position, size) if size > 0 else b""
            writer.write(struct.pack(">qi", position, len(data or b"")) + (data or b""))
            await writer.drain()
            if data:
                self.sent_bytes += len(data)
                position += len(data)
                continue
            async with self._grown:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._grown.wait(), HEARTBEAT_S)
