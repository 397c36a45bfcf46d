"""Fast path of the front: the sends of one read of a connection become one batch of the broker.

    rows of requests -> requests of remoting -> the broker's fast path -> replies

Kernels (``format.kernels.grpc_sends``) make requests and replies; between them is a connection to
the broker like any other, so that its checks, quotas and statistics hold, whichever path it takes.
All that the kernels do not handle is served by ``Front``, with the same results; without this
module the front works, but slower. ``reputFastPath=false`` switches it off.

A client's first send of a topic is served by the front. After that, it is known here.
"""

import functools
from typing import Any

import numpy as np

from reput.broker.server import Broker
from reput.errors import ConnectionLost
from reput.format import command as commands, protobuf
from reput.format.codes import PERM_WRITE
from reput.format.command import Command
from reput.format.grpc_messages import METHODS, SERVICE
from reput.format.kernels import call_words as words
from reput.grpc import conversion, local, sending, statuses, validation
from reput.grpc.clients import Client, Clients
from reput.remoting.connection import find_frame
from reput.remoting.http2.call_reader import (
    ROWS_MAX,
    CallReader,
    Row,
    address_of,
    kernel,
)
from reput.remoting.http2.grpc import Call, GrpcConnection
from reput.remoting.pipe import Pipe
from reput.store.config_tables import TopicConfig

_TOPICS_MAX = 16
"""Topics that are known at a time."""
_OPAQUE_END = 1 << 30
_TYPES = ("NORMAL", "MIXED")
"""Types of topics that take messages without a special property."""


class FastClient:
    """The client of a connection of gRPC.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.client_id = np.frombuffer(client.client_id.encode() + bytes(16), np.uint8)
        self.id_size = len(client.client_id)
        host = conversion.address_text(*client.address).encode()
        self.host = np.frombuffer(host + bytes(16), np.uint8)
        self.host_size = len(host)
        self.language = int(client.language)
        self.pipe: Pipe | None = None


class FastCalls:
    """Serves rows of requests.

    Args:
        broker: The broker, which has started.
        clients: The clients of the front.
    """

    paths = tuple(f"/{SERVICE}/{name}".encode() for name in ("SendMessage",))
    """Paths whose rows it serves; their numbers are those of the kernels."""

    def __init__(self, broker: Broker, clients: Clients) -> None:
        self._broker = broker
        self._clients = clients
        self._clock = broker.clock
        self._make_sends = kernel("grpc_sends", 2)
        self._make_replies = kernel("grpc_send_replies", 2)
        self._topics: dict[str, tuple[TopicConfig, Any]] = {}
        self._permission = 0
        self._topic_words = np.zeros(words.TOPIC_WORDS * _TOPICS_MAX, np.int64)
        self._opaque = 0
        self._turn = 0
        self._late: dict[int, tuple[Call, str]] = {}
        """Calls whose replies the broker holds back, by their opaques; and message ids."""

    # What is known ------------------------------------------------------------------------------

    def learn(self, call: Call, client: Client, topic_name: str) -> None:
        """Take the next sends of a client to a topic: the front has just stored one."""
        connection = call.connection
        known = connection.fast
        if known is None or known.client is not client:
            is_plain = client.client_id.isascii() and client.client_id.isprintable()
            connection.fast = known = FastClient(client) if is_plain else None
        if known is None or topic_name in self._topics:
            return
        topic = self._broker.parts.topics.get(topic_name)
        if topic is None or not topic_name.isascii() or len(self._topics) == _TOPICS_MAX:
            self._topics.clear()
            self._set_topics()
        elif local.message_type(topic) in _TYPES:
            name = np.frombuffer(topic_name.encode() + bytes(16), np.uint8)
            self._topics[topic_name] = topic, name
            self._set_topics()

    def _set_topics(self) -> None:
        table: list[int] = []
        permission = self._permission = self._broker.settings.broker.broker_permission
        for name, (topic, text) in self._topics.items():
            if topic.perm & permission & PERM_WRITE and topic.write_queue_count > 0:
                table += (address_of(text), len(name), topic.write_queue_count)
        self._topic_words[: len(table)] = table
        self._topic_count = len(table) // words.TOPIC_WORDS

    def _check_topics(self) -> None:
        """Forget topics that have changed."""
        find = self._broker.parts.topics.get
        changed = [name for name, (topic, _) in self._topics.items() if find(name) is not topic]
        if changed or self._permission != self._broker.settings.broker.broker_permission:
            self._topics.clear()
            self._set_topics()

    # Rows ---------------------------------------------------------------------------------------

    def prepare(self, connection: GrpcConnection, reader: CallReader) -> None:
        """Set the words that decide which rows are served."""
        known: FastClient | None = connection.fast
        block = reader.block
        block[words.CLIENT] = 0
        if known is None or self._broker.parts.access is not None or connection.is_ending:
            return
        if not self._clients.has(known.client):
            connection.fast = None
            return
        block[words.CLIENT] = address_of(known.client_id)
        block[words.CLIENT_SIZE] = known.id_size

    def serve(self, connection: GrpcConnection, reader: CallReader, count: int) -> list[Row]:
        """Serve rows; return those that are not served."""
        known: FastClient | None = connection.fast
        blocks = connection.reply_blocks()
        if known is None or blocks is None or not self._topics:
            return reader.rows(count)
        pipe = known.pipe
        if pipe is None or pipe.is_closing():
            pipe = known.pipe = self._open(known.client)
        self._check_topics()
        if not pipe.is_ready or not self._topics:
            return reader.rows(count)
        block, argument = reader.block, reader.argument
        block[words.TOPICS] = address_of(self._topic_words)
        block[words.TOPIC_COUNT] = self._topic_count
        block[words.TURN] = self._turn
        block[words.NOW_MS] = self._clock.now_ms()
        block[words.BORN_HOST] = address_of(known.host)
        block[words.BORN_HOST_SIZE] = known.host_size
        block[words.LANGUAGE] = known.language
        block[words.OPAQUE] = opaque = self._opaque
        block[words.BODY_BYTES_MAX] = validation.BODY_BYTES_MAX
        made = self._make_sends(argument, count)
        if not made:
            return reader.rows(count)
        self._turn = block[words.TURN]
        self._opaque = (opaque + ROWS_MAX) % _OPAQUE_END
        known.client.seen_ms = self._clock.monotonic_ms()
        replies = pipe.exchange(reader.frames())
        # Other connections may have used the block meanwhile, but for the rows.
        headers, trailers = map(_memory, blocks)
        data = np.frombuffer(replies or b"\0", np.uint8)
        block[words.REPLIES], block[words.REPLIES_SIZE] = address_of(data), len(replies)
        block[words.HEADERS_BLOCK], block[words.HEADERS_SIZE] = address_of(headers), len(blocks[0])
        block[words.TRAILERS_BLOCK] = address_of(trailers)
        block[words.TRAILERS_SIZE] = len(blocks[1])
        block[words.WINDOW] = connection.window
        block[words.INITIAL_WINDOW] = connection.initial_window
        done = self._make_replies(argument, count)
        if done:
            connection.window = block[words.WINDOW]
            connection.write(reader.out())
            connection.call_count += done
        if done == count:
            return []
        rows = reader.rows(count)
        if done < made:
            self._answer_others(connection, reader, rows, opaque, replies)
        return [row for row in rows if row[words.ROW_STATE] == words.STATE_NEW]

    def _answer_others(
        self,
        connection: GrpcConnection,
        reader: CallReader,
        rows: list[Row],
        opaque: int,
        replies: bytes,
    ) -> None:
        """Answer the sends that are not simply stored, or whose replies come later."""
        by_opaque = {reply.opaque: reply for reply in _commands(replies)}
        for number, row in enumerate(rows):
            if row[words.ROW_STATE] != words.STATE_ASKED:
                continue
            begin = row[words.ROW_ID]
            message_id = reader.buffer[begin : begin + row[words.ROW_ID_SIZE]].decode()
            call = connection.begin_waiting(reader, row)
            if call is None:
                continue
            reply = by_opaque.get(opaque + number)
            if reply is None:
                self._late[opaque + number] = call, message_id
            else:
                self._answer(call, message_id, reply)

    # Replies that come later --------------------------------------------------------------------

    def _open(self, client: Client) -> Pipe:
        return self._broker.open_pipe(client.address, self._take_late, self._lose_late)

    def _take_late(self, data: bytes) -> None:
        for reply in _commands(data):
            waiting = self._late.pop(reply.opaque, None)
            if waiting is not None:
                self._answer(*waiting, reply)

    def _answer(self, call: Call, message_id: str, reply: Command) -> None:
        entries = [sending.entry(reply, message_id, self._broker.settings.broker.broker_name)]
        answer = {"status": statuses.of_entries(entries), "entries": entries}
        call.reply(protobuf.encode(METHODS["SendMessage"].reply, answer))

    def _lose_late(self) -> None:
        """Answer the calls whose connection is closed, of whatever client: the broker stops."""
        late, self._late = self._late, {}
        reply = {"status": statuses.of_error(ConnectionLost("the broker"))}
        for call, _ in late.values():
            call.reply(protobuf.encode(METHODS["SendMessage"].reply, reply))


@functools.lru_cache(8)
def _memory(data: bytes) -> Any:
    """Return bytes in memory that has an address."""
    return np.frombuffer(data + bytes(words.SLACK), np.uint8)


def _commands(data: bytes) -> list[Command]:
    """Return the commands in the bytes of whole frames."""
    found = []
    position = 0
    while (frame := find_frame(data, position, len(data))) is not None:
        found.append(commands.decode(data[frame[0] : frame[1]]))
        position = frame[1]
    return found
