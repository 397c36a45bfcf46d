"""The load generator of ``reput bench`` and of ``benchmarks``.

It must be cheaper than the broker that it measures: a message costs it 0.7 us of CPU with 64
requests in flight. So it uses sockets without an event loop, patches frames of sends in bulk
(``load_frames``), and reads only length, code and opaque of a reply.
"""

import functools
import select
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from reput.cli import load_frames as frames
from reput.errors import (
    ConnectionLost,
    NotAFrame,
    RemotingError,
    RequestTimedOut,
    broker_error,
)
from reput.format import command, headers, message as records
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.signing import Signer
from reput.remoting import polled_socket
from reput.remoting.frame_template import FrameTemplate

READ_BYTES = 1 << 18
RING_ROWS = 8192
_RING_BYTES_MAX = 64 << 20
_IN_FLIGHT_MAX = RING_ROWS // 2
_LATE_COUNT = 50
_CONNECT_MS = 30_000
_POLL_S = 0.1
_LENGTH = struct.Struct(">i")
_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)

OnFailure = Callable[[RemotingError, int], None]
"""Called with an error and the number of messages that it kept from being stored."""


# --- connections --------------------------------------------------------------------------------


class Connection:
    """A connection to a broker that does not block.

    Args:
        address: Address of the broker, ``host:port``.
        read_bytes: Size of the read buffer, at least that of the largest frame.
        tls: Certificates of a connection with TLS; None for a plain one.

    Raises:
        Unreachable: The broker cannot be reached.
    """

    def __init__(
        self, address: str, read_bytes: int = READ_BYTES, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self._socket = polled_socket.connect(address, _CONNECT_MS, tls)
        self._in = bytearray(read_bytes)
        self.buffer = memoryview(self._in)
        """Bytes that were read."""
        self._kept = self._used = self._end = 0
        self.has_more = False
        """True if bytes may have arrived that polling does not report."""
        self.unwritten = b""
        """Bytes that the socket did not take yet; ``flush`` writes them."""

    def fileno(self) -> int:
        """Return the descriptor of the socket, for ``select``."""
        return self._socket.fileno()

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes, after ``unwritten``. Raises ``ConnectionLost``."""
        if self.unwritten:
            self.unwritten += data
            return
        try:
            written = self._socket.send(data)
        except BlockingIOError:
            written = 0
        except OSError as error:
            raise ConnectionLost(self.address, str(error)) from error
        if written < len(data):
            self.unwritten = bytes(data[written:])

    def flush(self) -> None:
        """Write ``unwritten``. Raises ``ConnectionLost``."""
        if self.unwritten:
            data, self.unwritten = self.unwritten, b""
            self.write(data)

    def _receive(self) -> int:
        """Read into the buffer; return the number of bytes. Raises ``ConnectionLost``."""
        room = self.buffer[self._kept :]
        self.has_more = False
        try:
            size = self._socket.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionLost(self.address, str(error)) from error
        if size == 0:
            raise ConnectionLost(self.address)
        self.has_more = size == len(room)
        return size

    def _keep(self, position: int, end: int) -> None:
        """Keep the bytes of an unfinished frame. Raises ``NotAFrame`` if it exceeds the buffer."""
        kept = end - position
        if kept == len(self._in):
            raise NotAFrame(f"{self.address} sends a frame of more than {kept} bytes")
        if position:
            self._in[:kept] = self._in[position:end]
        self._kept = kept

    def read_frames(self) -> list[tuple[int, int]]:
        """Read; return start and end of each whole frame in ``buffer``, without its length.

        They are valid until the next call.

        Raises:
            RemotingError: The connection is lost, or a frame exceeds the buffer.
        """
        self._keep(self._used, self._end)
        end = self._end = self._kept + self._receive()
        position, spans = 0, []
        while position + 4 <= end:
            after = position + 4 + _LENGTH.unpack_from(self._in, position)[0]
            if not position < after <= end:
                break
            spans.append((position + 4, after))
            position = after
        self._used = position
        return spans

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class SendConnection(Connection):
    """A connection with sends in flight.

    Args:
        address: Address of the broker, ``host:port``.
        ring: Frames of the sends.
        on_failure: Called with the error of each refused request.
        is_json: Whether their headers are JSON, else binary.
        slot_count: Number of requests that may be in flight, a power of two up to 65,536.
        is_oneway: Whether no replies are awaited.
        is_stamped: Whether requests carry the time when they are sent.
        tls: Certificates of a connection with TLS; None for a plain one.
    """

    def __init__(
        self,
        address: str,
        ring: frames.FrameRing,
        on_failure: Callable[[RemotingError], None],
        *,
        is_json: bool = True,
        slot_count: int = RING_ROWS,
        is_oneway: bool = False,
        is_stamped: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(address, tls=tls)
        self._ring = ring
        self._rows_max = ring.row_count - ring.patch_rows
        self._on_failure = on_failure
        self._is_json = is_json
        self._is_oneway = is_oneway
        self._is_stamped = is_stamped
        self._slot_count = slot_count
        self._sent_ns = [0] * slot_count
        self.number = 0
        """Number of requests that were sent."""
        self.in_flight = 0
        self.latencies_ns: list[int] = []

    def send(self, count: int, now_ns: int) -> None:
        """Send the next requests; bytes that do not fit wait for ``flush``."""
        if count > self._rows_max:
            self.send(count - self._rows_max, now_ns)
            count = self._rows_max
        number = self.number
        slot = number % self._slot_count
        end = slot + count
        if end <= self._slot_count:
            self._sent_ns[slot:end] = [now_ns] * count
        else:
            self._sent_ns[slot:] = [now_ns] * (self._slot_count - slot)
            self._sent_ns[: end - self._slot_count] = [now_ns] * (end - self._slot_count)
        if self._is_stamped:
            self._ring.stamp(number, count, time.time_ns() // 1_000_000)
        for rows in self._ring.rows(number, count):
            self.write(rows)
        self.number = number + count
        if not self._is_oneway:
            self.in_flight += count

    def mark_due(self, number: int, due_ns: int) -> None:
        """Measure the latency of a request from the time when it was due."""
        self._sent_ns[number % self._slot_count] = due_ns

    def receive(self, *, is_exact: bool = False) -> int:
        """Read replies; return the number of requests whose messages are stored.

        Args:
            is_exact: Record the latency of each reply; else of the first of each read.
        """
        size = self._receive()
        if size == 0:
            return 0
        now_ns = time.perf_counter_ns()
        end = self._kept + size
        data, is_json, unpack = self._in, self._is_json, _LENGTH.unpack_from
        stored_count = position = 0
        while position + 4 <= end:
            after = position + 4 + unpack(data, position)[0]
            if not position < after <= end:
                break
            if is_json:
                # "code" is the first member in all known brokers.
                is_success = data[position + 8 : position + 18] == b'{"code":0,'
            else:
                is_success = not (data[position + 8] or data[position + 9])
            if is_success:
                if is_exact or stored_count == 0:
                    self._record_latency(position, after, now_ns)
                stored_count += 1
            else:
                stored_count += self._handle_other(bytes(data[position + 4 : after]), now_ns)
            position = after
        if position == end:
            self._kept = 0
        else:
            self._keep(position, end)
        self.in_flight -= stored_count
        if self.has_more:
            stored_count += self.receive(is_exact=is_exact)
        return stored_count

    def _record_latency(self, position: int, after: int, now_ns: int) -> None:
        if self._is_json:
            start = self._in.index(frames.OPAQUE_NAME, position, after) + len(frames.OPAQUE_NAME)
            opaque = int(self._in[start : start + frames.OPAQUE_DIGITS])
        else:
            (opaque,) = _LENGTH.unpack_from(self._in, position + 13)
        slot = (opaque - frames.OPAQUE_FIRST) % self._slot_count
        self.latencies_ns.append(now_ns - self._sent_ns[slot])

    def _handle_other(self, frame: bytes, now_ns: int) -> bool:
        """Handle a frame that is no plain success; return whether a message is stored."""
        reply = command.decode(frame)
        if not reply.is_reply:
            return False
        if reply.code in _STORED:
            slot = (reply.opaque - frames.OPAQUE_FIRST) % self._slot_count
            self.latencies_ns.append(now_ns - self._sent_ns[slot])
            return True
        self.in_flight -= 1
        self._on_failure(broker_error(reply.code, reply.remark, self.address))
        return False


# --- sending ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SendPlan:
    """Messages to send, and their rate."""

    topic: str
    body: bytes
    group: str = "bench-producer"
    batch_count: int = 1
    """Messages of a request."""
    window_count: int = _IN_FLIGHT_MAX
    """Requests in flight on each connection."""
    connection_count: int = 1
    """Connections to each broker."""
    count: int | None = None
    """Total number of messages; None: unlimited."""
    rate: float | None = None
    """Messages a second; None: as fast as the window allows."""
    is_oneway: bool = False
    is_json: bool = True
    """Whether headers are JSON, else binary."""
    is_stamped: bool = False
    """True if requests have their send time; else all have the same time."""
    is_exact: bool = False
    """True if the latency of each request is recorded; else of one reply per read."""
    signer: Signer | None = None
    """Signs the requests; None: they are not signed."""
    tls: ssl.SSLContext | None = None
    """Certificates of connections with TLS; None for plain ones."""


class SendLoad:
    """Sends as a plan describes.

    Args:
        plan: What to send.
        queue_ids: Queues of the topic by the address of their broker.
        on_failure: Called with errors, and the number of messages that were not stored.

    Raises:
        Unreachable: A broker cannot be reached.
    """

    def __init__(
        self, plan: SendPlan, queue_ids: Mapping[str, Sequence[int]], on_failure: OnFailure
    ) -> None:
        self._plan = plan
        self._on_failure = on_failure
        self.connections: list[SendConnection] = []
        self.late_count = 0
        """Number of times that more than 50 requests were due at once."""
        self._stored_count = 0
        self._sent_count = 0
        self._unsent_count = 0  # due, with a full window
        self._request_max = None if plan.count is None else -(-plan.count // plan.batch_count)
        self._start_ns: int | None = None
        self._latencies_ns: list[int] = []
        for address, ids in queue_ids.items():
            for number in range(plan.connection_count):
                turn = number % len(ids)
                self.connections.append(self._connect(address, [*ids[turn:], *ids[:turn]]))

    def _connect(self, address: str, queue_ids: Sequence[int]) -> SendConnection:
        plan = self._plan
        key_head = frames.key_head(len(self.connections))
        requests = frames.ring_frames(
            plan.topic,
            queue_ids,
            plan.body,
            key_head,
            batch_count=plan.batch_count,
            group=plan.group,
            is_oneway=plan.is_oneway,
            is_json=plan.is_json,
            signer=plan.signer,
        )
        row_count = max(2, min(RING_ROWS, _RING_BYTES_MAX // len(requests[0])))
        slot_count = max(RING_ROWS, 1 << (plan.window_count - 1).bit_length())
        return SendConnection(
            address,
            frames.FrameRing(requests, key_head, row_count, plan.signer),
            lambda error: self._on_failure(error, plan.batch_count),
            is_json=plan.is_json,
            slot_count=slot_count,
            is_oneway=plan.is_oneway,
            is_stamped=plan.is_stamped,
            tls=plan.tls,
        )

    @property
    def message_count(self) -> int:
        """Number of stored messages, or of sent messages if they are one-way."""
        count = self._sent_count if self._plan.is_oneway else self._stored_count
        return count * self._plan.batch_count

    @property
    def body_bytes(self) -> int:
        """Total size of the bodies of the stored messages."""
        return self.message_count * len(self._plan.body)

    @property
    def in_flight(self) -> int:
        """Number of requests that are not yet answered, or not yet written if one-way."""
        if self._plan.is_oneway:
            return sum(bool(connection.unwritten) for connection in self.connections)
        return sum(connection.in_flight for connection in self.connections)

    @property
    def is_finished(self) -> bool:
        """Whether all requests are sent and answered, or no connection is left."""
        if not self.connections:
            return True
        return self._sent_count == self._request_max and not self.in_flight

    def take_latencies(self) -> list[int]:
        """Return the latencies since the last call, in ns."""
        latencies, self._latencies_ns = self._latencies_ns, []
        for connection in self.connections:
            latencies += connection.latencies_ns
            connection.latencies_ns.clear()
        return latencies

    def run(self, until_ns: int) -> None:
        """Send and receive until a time of ``perf_counter_ns``, or until all is done."""
        if self._start_ns is None:
            self._start_ns = time.perf_counter_ns()
        if self._plan.rate is not None:
            self._run_at_rate(1e9 * self._plan.batch_count / self._plan.rate, until_ns)
        elif self._plan.is_oneway:
            self._run_oneway(until_ns)
        else:
            self._run_window(until_ns)

    def finish(self, timeout_s: float) -> None:
        """Wait for the replies to requests in flight, then close the connections."""
        if self._unsent_count:
            error = RemotingError("due when it ended, and not sent: the window was full")
            self._on_failure(error, self._unsent_count * self._plan.batch_count)
        deadline_s = time.monotonic() + timeout_s
        while self.in_flight and time.monotonic() < deadline_s:
            self._exchange(0.1)
        for connection in list(self.connections):
            timeout_ms = round(timeout_s * 1000)
            code = RequestCode.SEND_MESSAGE_V2
            self._drop(connection, RequestTimedOut(connection.address, code, timeout_ms))

    def _run_window(self, until_ns: int) -> None:
        """Keep the window full: send a request for each reply."""
        clock, window, is_exact = time.perf_counter_ns, self._plan.window_count, self._plan.is_exact
        by_descriptor = {connection.fileno(): connection for connection in self.connections}
        blocked: set[int] = set()
        with _polling() as (poll, wait):
            for descriptor, connection in by_descriptor.items():
                poll.register(descriptor, select.POLLIN)
                self._fill(connection, window - connection.in_flight)
            while clock() < until_ns and not self.is_finished:
                for descriptor, event in wait():
                    connection = by_descriptor[descriptor]
                    try:
                        if event & ~select.POLLOUT:
                            self._stored_count += connection.receive(is_exact=is_exact)
                            room = window - connection.in_flight
                            if room and not connection.unwritten:
                                self._fill(connection, room)
                        if event & select.POLLOUT:
                            connection.flush()
                    except RemotingError as error:
                        poll.unregister(descriptor)
                        self._drop(connection, error)
                        continue
                    if bool(connection.unwritten) != (descriptor in blocked):
                        blocked ^= {descriptor}
                        out = select.POLLOUT if connection.unwritten else 0
                        poll.modify(descriptor, select.POLLIN | out)

    def _fill(self, connection: SendConnection, count: int) -> None:
        """Send up to ``count`` of the remaining requests."""
        if self._request_max is not None:
            count = min(count, self._request_max - self._sent_count)
        if count > 0:
            connection.send(count, time.perf_counter_ns())
            self._sent_count += count

    def _run_oneway(self, until_ns: int) -> None:
        """Write as fast as the sockets take it."""
        while time.perf_counter_ns() < until_ns and not self.is_finished:
            for connection in self.connections:
                if not connection.unwritten:
                    self._fill(connection, self._plan.window_count)
            self._exchange(0)
            if all(connection.unwritten for connection in self.connections):
                select.select([], self.connections, [], _POLL_S)

    def _run_at_rate(self, step_ns: float, until_ns: int) -> None:
        """Send requests when they are due; latencies are measured from then."""
        clock = time.perf_counter_ns
        while (now_ns := clock()) < until_ns and not self.is_finished:
            self._send_due(now_ns, step_ns)
            next_ns = min(self._due_ns(self._sent_count, step_ns), until_ns)
            self._exchange(max(next_ns - clock(), 0) / 1e9)

    def _due_ns(self, number: int, step_ns: float) -> int:
        assert self._start_ns is not None
        return int(self._start_ns + number * step_ns)

    def _send_due(self, now_ns: int, step_ns: float) -> None:
        assert self._start_ns is not None
        due_count = int((now_ns - self._start_ns) / step_ns) + 1
        if self._request_max is not None:
            due_count = min(due_count, self._request_max)
        due_count -= self._sent_count
        self.late_count += due_count > _LATE_COUNT
        while due_count > 0 and self.connections:
            connection = min(self.connections, key=_in_flight)
            room = self._plan.window_count - connection.in_flight
            if connection.unwritten or room <= 0:
                break
            count = min(-(-due_count // len(self.connections)), room)
            first = connection.number
            try:
                connection.send(count, self._due_ns(self._sent_count, step_ns))
            except RemotingError as error:
                self._drop(connection, error)
                continue
            for number in range(1, count):
                due_ns = self._due_ns(self._sent_count + number, step_ns)
                connection.mark_due(first + number, due_ns)
            self._sent_count += count
            due_count -= count
        self._unsent_count = max(due_count, 0)

    def _exchange(self, wait_s: float) -> None:
        """Flush and receive. Unlike epoll, select has a timeout finer than a millisecond."""
        blocked = [connection for connection in self.connections if connection.unwritten]
        select.select(self.connections, blocked, [], wait_s)
        for connection in list(self.connections):
            try:
                if connection.unwritten:
                    connection.flush()
                self._stored_count += connection.receive(is_exact=self._plan.is_exact)
            except RemotingError as error:
                self._drop(connection, error)

    def _drop(self, connection: SendConnection, error: RemotingError) -> None:
        """Close a connection, and count its requests in flight as failed."""
        self.connections.remove(connection)
        self._latencies_ns += connection.latencies_ns
        connection.close()
        if connection.in_flight:
            self._on_failure(error, connection.in_flight * self._plan.batch_count)


@contextmanager
def _polling() -> Iterator[tuple[Any, Callable[[], list[tuple[int, int]]]]]:
    """Open an object that waits for sockets: epoll, or poll, which has the same flags."""
    if hasattr(select, "epoll"):
        with select.epoll() as epoll:
            yield epoll, functools.partial(epoll.poll, _POLL_S)
    else:
        poll = select.poll()
        yield poll, functools.partial(poll.poll, _POLL_S * 1000)


def _in_flight(connection: SendConnection) -> int:
    return connection.in_flight


# --- pulling ------------------------------------------------------------------------------------


class PullLoad:
    """Pulls all queues of a topic at the same time.

    Args:
        starts: Queue offset to begin at, by queue.
        addresses: Address of its broker, by broker name.
        group: Consumer group.
        batch_count: Maximum number of messages of a pull.
        count: Total number of messages; None: unlimited.
        timeout_s: Timeout of a pull, in addition to the time for which the broker holds it.
        signer: Signs the requests; None: they are not signed.
        tls: Certificates of connections with TLS; None for plain ones.

    Raises:
        Unreachable: A broker cannot be reached.
    """

    def __init__(
        self,
        starts: Mapping[MessageQueue, int],
        addresses: Mapping[str, str],
        group: str,
        *,
        batch_count: int,
        count: int | None,
        timeout_s: float,
        signer: Signer | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._count = count
        self._timeout_ms = round(timeout_s * 1000) + _HELD_MS + _HELD_LONGER_MS
        self.message_count = 0
        self.body_bytes = 0
        """Total size of the records."""
        self._latencies_ns: list[int] = []
        self._templates = [_pull_template(queue, group, batch_count, signer) for queue in starts]
        by_address: dict[str, list[int]] = {}
        for number, queue in enumerate(starts):
            by_address.setdefault(addresses[queue.broker_name], []).append(number)
        offsets = list(starts.values())
        self._connections = []
        for address, numbers in by_address.items():
            connection = Connection(address, _PULL_READ_BYTES, tls)
            self._connections.append(connection)
            for number in numbers:
                connection.write(self._templates[number].fill(number, offsets[number]))
        self._replied_s = time.monotonic()

    in_flight = 0
    """Number of requests that may stall: none, as ``step`` has a timeout."""

    @property
    def is_finished(self) -> bool:
        """True if the requested number of messages has arrived."""
        return self._count is not None and self.message_count >= self._count

    def take_latencies(self) -> list[int]:
        """Return the ages of the messages since the last call, in ns."""
        latencies, self._latencies_ns = self._latencies_ns, []
        return latencies

    def run(self, until_ns: int) -> None:
        """Pull until a time of ``perf_counter_ns``, or until enough messages have arrived.

        Raises:
            RemotingError: A broker refuses, does not answer, or closes its connection.
        """
        while not self.is_finished and (left_ns := until_ns - time.perf_counter_ns()) > 0:
            self.step(left_ns / 1e9)

    def step(self, wait_s: float) -> None:
        """Wait for replies, count their messages, and pull again. Raises as ``run``."""
        blocked = [connection for connection in self._connections if connection.unwritten]
        readable, _, _ = select.select(self._connections, blocked, [], wait_s)
        for connection in blocked:
            connection.flush()
        now_s = time.monotonic()
        if readable:
            self._replied_s = now_s
        elif now_s - self._replied_s > self._timeout_ms / 1000:
            address = self._connections[0].address
            raise RequestTimedOut(address, RequestCode.PULL_MESSAGE, self._timeout_ms)
        for connection in readable:
            has_more = True
            while has_more:
                for start, end in connection.read_frames():
                    self._handle(connection, command.decode(connection.buffer[start:end]))
                has_more = connection.has_more

    def _handle(self, connection: Connection, reply: Command) -> None:
        if not reply.is_reply:
            return
        if reply.code not in _PULLED:
            raise broker_error(reply.code, reply.remark, connection.address)
        if reply.code == ResponseCode.SUCCESS:
            self._count_messages(reply.body)
        answer = headers.decode(headers.PullMessageReplyHeader, reply.ext_fields)
        template = self._templates[reply.opaque]
        connection.write(template.fill(reply.opaque, answer.next_begin_offset))

    def _count_messages(self, body: bytes) -> None:
        """Count records by their heads; nothing else of them is decoded."""
        now_ms = time.time_ns() // 1_000_000
        position = 0
        while position < len(body) and not self.is_finished:
            size, _ = records.SIZE_AND_MAGIC.unpack_from(body, position)
            if not records.FIXED_BYTES_V1 <= size <= len(body) - position:
                raise RemotingError(f"a pull brought a record of {size} bytes")
            start = position + records.POSITION_BORN_TIMESTAMP
            born_ms = int.from_bytes(body[start : start + 8], "big")
            self.message_count += 1
            self.body_bytes += size
            self._latencies_ns.append((now_ms - born_ms) * 1_000_000)
            position += size

    def finish(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()


def _pull_template(
    queue: MessageQueue, group: str, count: int, signer: Signer | None
) -> FrameTemplate:
    fields = frames.pull_fields(
        queue.topic, queue.queue_id, 0, count, group=group, hold_ms=_HELD_MS
    )
    request = Command(RequestCode.PULL_MESSAGE, ext_fields=fields)
    return FrameTemplate(request, _PULL_FIELDS, signer)


_PULL_FIELDS = (
    (b'"opaque":0,', b'"opaque":%d,'),
    (b'"queueOffset":"0"', b'"queueOffset":"%d"'),
)
_PULLED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_PULL_READ_BYTES = command.FRAME_BYTES_MAX + command.LENGTH.size
_HELD_MS = 15_000
_HELD_LONGER_MS = 10_000
"""Delay with which a Java broker may answer a held pull: it checks them every 5 s."""
