"""Fast path of the front: the sends and acks of one read become one batch of the broker.

    rows of requests -> requests of remoting -> the broker's fast path -> replies

Kernels (``grpc.kernels.grpc_calls``) make requests and replies; between them is a connection to
the broker like any other, so that its checks, quotas and statistics hold, whichever path it takes.
All that the kernels do not handle is served by ``Front``, with the same results; without this
module the front works, but slower. ``reputFastPath=false`` switches it off.

A client's first send to a topic is served by the front, as is the first ack of a topic and group.
After that, their names are known here.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reput.broker.server import Broker
from reput.errors import ConnectionLost
from reput.format import command as commands
from reput.format.codes import PERM_WRITE
from reput.format.command import Command
from reput.format.kernels.rows import rows_of, start_of
from reput.grpc import conversion, local, sending, statuses, validation
from reput.grpc.clients import Client, Clients
from reput.grpc.http2.call_reader import ROWS_MAX, CallReader, address_of, kernel
from reput.grpc.http2.grpc import Call, GrpcConnection
from reput.grpc.kernels import call_words as words
from reput.grpc.kernels.call_words import CallRow, PairWords, Slice, TopicWords
from reput.grpc.statuses import StatusError
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS, SERVICE
from reput.remoting.connection import find_frame
from reput.remoting.pipe import Pipe
from reput.store.tables.config_tables import TopicConfig

_TOPICS_MAX = 64
"""Topics that are known at a time; and pairs of topic and group."""
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


@dataclass(slots=True)
class PendingCall:
    """A request whose reply is not simply a success, or comes later."""

    call: Call
    known: "FastClient"
    is_ack: bool
    message_id: str
    group: str = ""
    handle: str = ""


class FastCalls:
    """Serves the sends and acknowledgements that the kernels have decoded, a row for each call.

    Args:
        broker: The broker, which has started.
        clients: The clients of the front.
    """

    paths = tuple(f"/{SERVICE}/{name}".encode() for name in ("SendMessage", "AckMessage"))
    """Paths of the methods; the kernels number them in this order."""

    def __init__(self, broker: Broker, clients: Clients) -> None:
        self._broker = broker
        self._clients = clients
        self._clock = broker.clock
        self._make_requests = kernel("grpc_requests", 2)
        self._make_replies = kernel("grpc_replies", 2)
        name = broker.settings.broker.broker_name.encode()
        self._broker_name = np.frombuffer(name + bytes(16), np.uint8)
        self._broker_name_size = len(name)
        self._topics: dict[str, tuple[TopicConfig, Any]] = {}
        self._permission = 0
        self._topic_rows = rows_of(TopicWords, _TOPICS_MAX)
        self._topic_count = 0
        self._pairs: dict[tuple[str, str], Any] = {}
        self._pair_rows = rows_of(PairWords, _TOPICS_MAX)
        self._opaque = 0
        self._turn = 0
        self._late: dict[int, PendingCall] = {}
        """Requests whose replies the broker holds back, by their opaques."""

    # Known names ------------------------------------------------------------------------------

    def learn(self, call: Call, client: Client, request: dict[str, Any]) -> None:
        """Serve further requests like one that has just succeeded without the front."""
        if "messages" in request:
            self._learn_send(call, client, request["messages"][0]["topic"]["name"])
        else:
            self._learn_ack(call, client, request["topic"]["name"], request["group"]["name"])

    def _learn_send(self, call: Call, client: Client, topic_name: str) -> None:
        if not self._learn_client(call, client) or topic_name in self._topics:
            return
        topic = self._broker.parts.topics.get(topic_name)
        if topic is None or local.message_type(topic) not in _TYPES or not topic_name.isascii():
            return
        if len(self._topics) == _TOPICS_MAX:
            del self._topics[next(iter(self._topics))]
        name = np.frombuffer(topic_name.encode() + bytes(16), np.uint8)
        self._topics[topic_name] = topic, name
        self._set_topics()

    def _learn_ack(self, call: Call, client: Client, topic_name: str, group: str) -> None:
        pair = topic_name, group
        if not self._learn_client(call, client) or pair in self._pairs:
            return
        if not topic_name.isascii() or not group.isascii():
            return
        if len(self._pairs) == _TOPICS_MAX:
            del self._pairs[next(iter(self._pairs))]
        self._pairs[pair] = np.frombuffer((topic_name + group).encode() + bytes(16), np.uint8)
        for row, ((topic, name), text) in zip(self._pair_rows, self._pairs.items(), strict=False):
            row.topic.start, row.topic.size = address_of(text), len(topic)
            row.group.start, row.group.size = address_of(text) + len(topic), len(name)

    def _learn_client(self, call: Call, client: Client) -> bool:
        """Take the next calls of a connection for those of a client; return False for an odd id."""
        connection = call.connection
        known = connection.fast
        if known is None or known.client is not client:
            self.lost(connection)
            is_plain = client.client_id.isascii() and client.client_id.isprintable()
            connection.fast = known = FastClient(client) if is_plain else None
        return known is not None

    def _set_topics(self) -> None:
        count = 0
        permission = self._permission = self._broker.settings.broker.broker_permission
        for name, (topic, text) in self._topics.items():
            if topic.perm & permission & PERM_WRITE and topic.write_queue_count > 0:
                row = self._topic_rows[count]
                row.name.start, row.name.size = address_of(text), len(name)
                row.queue_count = topic.write_queue_count
                count += 1
        self._topic_count = count

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
        block.client.start = 0
        if known is None or self._broker.parts.access is not None or connection.is_ending:
            return
        if not self._clients.has(known.client):
            self.lost(connection)
            return
        block.client.start = address_of(known.client_id)
        block.client.size = known.id_size

    def lost(self, connection: GrpcConnection) -> None:
        """Forget the client of a connection."""
        known, connection.fast = connection.fast, None
        if known is not None and known.pipe is not None:
            known.pipe.close()

    def serve(self, connection: GrpcConnection, reader: CallReader, count: int) -> list[CallRow]:
        """Serve rows; return the rows that are not served."""
        known: FastClient | None = connection.fast
        blocks = connection.reply_blocks()
        if known is None or blocks is None:
            return reader.rows(count)
        pipe = known.pipe
        if pipe is None or pipe.is_closing():
            pipe = known.pipe = self._broker.open_pipe(
                known.client.address, self._take_late, functools.partial(self._lose_late, known)
            )
        self._check_topics()
        if not pipe.is_ready:
            return reader.rows(count)
        block, argument = reader.block, reader.argument
        block.topics = start_of(self._topic_rows)
        block.topic_count = self._topic_count
        block.turn = self._turn
        block.now_ms = self._clock.now_ms()
        block.born_host.start = address_of(known.host)
        block.born_host.size = known.host_size
        block.language = known.language
        block.opaque = opaque = self._opaque
        block.body_size_max = validation.BODY_BYTES_MAX
        block.pairs = start_of(self._pair_rows)
        block.pair_count = len(self._pairs)
        block.broker_name.start = address_of(self._broker_name)
        block.broker_name.size = self._broker_name_size
        made = self._make_requests(argument, count)
        client = known.client
        if not made or (len(client.renewals) and self._has_renewed(client, reader, count)):
            rows = reader.rows(count)
            for row in rows:
                row.state = words.STATE_NEW
            return rows
        self._turn = block.turn
        self._opaque = (opaque + ROWS_MAX) % _OPAQUE_END
        client.seen_ms = self._clock.monotonic_ms()
        replies = pipe.exchange(reader.frames())
        headers, trailers = map(_memory, blocks)
        data = np.frombuffer(replies or b"\0", np.uint8)
        block.replies.start, block.replies.size = address_of(data), len(replies)
        block.headers_block.start, block.headers_block.size = address_of(headers), len(blocks[0])
        block.trailers_block.start = address_of(trailers)
        block.trailers_block.size = len(blocks[1])
        block.window = connection.window
        block.initial_window = connection.initial_window
        done = self._make_replies(argument, count)
        if done:
            connection.window = block.window
            connection.write(reader.out())
            connection.call_count += done
        if len(client.renewals):
            self._drop_renewals(client, reader, count)
        if done == count:
            return []
        rows = reader.rows(count)
        if done < made:
            by_opaque = {reply.opaque - opaque: reply for reply in _commands(replies)}
            for number, row in enumerate(rows):
                if row.state == words.STATE_ASKED:
                    reply = by_opaque.get(number)
                    self._answer_other(connection, reader, row, known, opaque + number, reply)
        return [row for row in rows if row.state == words.STATE_NEW]

    # Messages that are renewed ------------------------------------------------------------------

    def _acks(self, reader: CallReader, count: int, state: int) -> Iterator[tuple[str, str]]:
        """Return group and handle of the acks in a state."""
        for row in reader.rows(count):
            if row.state == state and row.path == words.ACK_PATH:
                yield (
                    _text(reader, row.group),
                    _text(reader, row.handle),
                )

    def _has_renewed(self, client: Client, reader: CallReader, count: int) -> bool:
        """Return whether one of the acks names a handle that the front has renewed."""
        return any(
            client.renewals.current(group, handle) != handle
            for group, handle in self._acks(reader, count, words.STATE_ASKED)
        )

    def _drop_renewals(self, client: Client, reader: CallReader, count: int) -> None:
        """Renew the messages no more that were acknowledged."""
        for group, handle in self._acks(reader, count, words.STATE_DONE):
            client.renewals.drop(group, handle)

    # Other replies ------------------------------------------------------------------------------

    def _answer_other(
        self,
        connection: GrpcConnection,
        reader: CallReader,
        row: CallRow,
        known: FastClient,
        opaque: int,
        reply: Command | None,
    ) -> None:
        """Answer a request that did not simply succeed, or whose reply comes later (None)."""
        is_ack = row.path == words.ACK_PATH
        message_id = _text(reader, row.message_id)
        group = handle = ""
        if is_ack:
            group = _text(reader, row.group)
            handle = _text(reader, row.handle)
        call = connection.begin_waiting(reader, row)
        if call is None:
            return
        asked = PendingCall(call, known, is_ack, message_id, group, handle)
        if reply is not None:
            self._answer(asked, reply)
        else:
            self._late[opaque] = asked

    # Replies that come later --------------------------------------------------------------------

    def _take_late(self, data: bytes) -> None:
        for reply in _commands(data):
            asked = self._late.pop(reply.opaque, None)
            if asked is not None:
                self._answer(asked, reply)

    def _answer(self, asked: PendingCall, reply: Command) -> None:
        """Answer a request as the front does."""
        if asked.is_ack:
            try:
                statuses.check(reply, of_receipt=True)
                asked.known.client.renewals.drop(asked.group, asked.handle)
                status: dict[str, Any] = statuses.OK
            except StatusError as error:
                status = statuses.of_error(error)
            self._reply(asked, self._ack_entry(asked, status))
        else:
            self._reply(asked, sending.entry(reply, asked.message_id))

    def _ack_entry(self, asked: PendingCall, status: dict[str, Any]) -> dict[str, Any]:
        return {
            "message_id": asked.message_id,
            "receipt_handle": asked.handle,
            "status": status,
        }

    def _reply(self, asked: PendingCall, entry: dict[str, Any]) -> None:
        method = METHODS["AckMessage" if asked.is_ack else "SendMessage"]
        answer = {"status": statuses.of_entries([entry]), "entries": [entry]}
        asked.call.reply(protobuf.encode(method.reply, answer))

    def _lose_late(self, known: FastClient) -> None:
        """Answer the requests of a client whose connection to the broker is closed."""
        late = [opaque for opaque, asked in self._late.items() if asked.known is known]
        status = statuses.of_error(ConnectionLost("the broker"))
        for opaque in late:
            asked = self._late.pop(opaque)
            if asked.is_ack:
                self._reply(asked, self._ack_entry(asked, status))
            else:
                method = METHODS["SendMessage"]
                asked.call.reply(protobuf.encode(method.reply, {"status": status}))


def _text(reader: CallReader, place: Slice) -> str:
    """Return a text of a row."""
    begin = place.start
    return reader.buffer[begin : begin + place.size].decode()


@functools.lru_cache(8)
def _memory(data: bytes) -> Any:
    """Return bytes in memory that has an address."""
    return np.frombuffer(data + bytes(words.SLACK), np.uint8)


def _commands(data: bytes) -> list[Command]:
    """Return the commands in the bytes of whole frames."""
    decoded = []
    position = 0
    while (frame := find_frame(data, position, len(data))) is not None:
        decoded.append(commands.decode(data[frame[0] : frame[1]]))
        position = frame[1]
    return decoded
