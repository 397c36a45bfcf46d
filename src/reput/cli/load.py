"""The load of ``reput bench``: sends and pulls on bare connections, so that the broker is measured.

A request is made once for each queue; of each that is sent only its number, its time and its
messages' ids are new. One connection keeps ``window_count`` requests in flight.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from reput.cli.histogram import Histogram
from reput.client.core import requests
from reput.client.core.requests import SendRequests
from reput.errors import BrokerError, ConnectionLost, NotAFrame, RemotingError, Unreachable
from reput.format import batch, command, headers, message as records, properties as props
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.remoting.client import RemotingClient

if TYPE_CHECKING:
    from reput.client.core.route_cache import TopicRoute

_OPAQUE = 1_000_000_000
"""The numbers of requests begin here: all have as many digits."""
_BORN_MS = 1_234_567_890_123
_UNIQUE_KEY = "F" * 31 + "7"
_TICK_S = 0.001
_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
_HELD_MS = 15_000
_HELD_LONGER_MS = 10_000
"""A Java broker looks every 5 s which pulls it has held for long enough."""
_SUSPEND_AND_SUBSCRIPTION = 6


@dataclass
class Meter:
    """What has happened so far."""

    message_count: int = 0
    body_bytes: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Why -> how many messages were not taken."""
    latency_us: Histogram = field(default_factory=Histogram)
    recent_us: Histogram = field(default_factory=Histogram)
    """Since ``take_recent``."""

    def count_latency(self, latency_us: int) -> None:
        """Count how long a request took, or how old a message was."""
        self.recent_us.record(latency_us)

    def take_recent(self) -> Histogram:
        """Return the latencies since the last call, and add them to all."""
        recent, self.recent_us = self.recent_us, Histogram()
        self.latency_us.add(recent)
        return recent

    def fail(self, reason: str, count: int) -> None:
        """Count messages that were not taken."""
        self.failures[reason] = self.failures.get(reason, 0) + count

    @property
    def failed_count(self) -> int:
        """Messages that were not taken."""
        return sum(self.failures.values())


@dataclass(frozen=True)
class SendPlan:
    """What to send, and how fast."""

    topic: str
    body_bytes: int
    batch_count: int
    window_count: int
    connection_count: int
    count: int | None
    """Messages in all; None: until it is stopped."""
    rate: float | None
    """Messages a second; None: as fast as the window allows."""
    is_oneway: bool
    timeout_s: float


# --- sending ------------------------------------------------------------------------------------


class Template:
    """A request of which number, time and ids are filled in.

    Args:
        plan: What is sent.
        queue: Where to.
        group: The producer's.
    """

    def __init__(self, plan: SendPlan, queue: MessageQueue, group: str) -> None:
        marks = props.encode({props.UNIQ_KEY: _UNIQUE_KEY, props.WAIT: "true"})
        body = b"x" * plan.body_bytes
        is_batch = plan.batch_count > 1
        if is_batch:
            body = batch.encode([batch.InnerMessage(0, body, marks)] * plan.batch_count)
        request = SendRequests(group, "TBW102", 4).send(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            "" if is_batch else marks.decode(),
            body,
            _BORN_MS,
            is_batch=is_batch,
        )
        request.opaque = _OPAQUE
        if plan.is_oneway:
            requests.oneway(request)
        fields = {
            str(_OPAQUE).encode(): b"%(opaque)d",
            str(_BORN_MS).encode(): b"%(born)d",
        }
        frame = command.encode(request).replace(b"%", b"%%")
        for placeholder, format_of_it in fields.items():
            assert frame.count(placeholder) == 1
            frame = frame.replace(placeholder, format_of_it)
        for number in range(plan.batch_count):
            frame = frame.replace(_UNIQUE_KEY.encode(), b"%%(id)024X%08X" % number, 1)
        self._frame = frame

    def fill(self, opaque: int, born_ms: int, message_id: int) -> bytes:
        """Return a frame to send."""
        return self._frame % {b"opaque": opaque, b"born": born_ms, b"id": message_id}


class Sender:
    """Sends what a plan says, until it is done or stopped.

    Args:
        plan: What and how.
        route: Where the topic is.
        group: The producer's.
        meter: What is told what happens.
    """

    def __init__(self, plan: SendPlan, route: "TopicRoute", group: str, meter: Meter) -> None:
        self.plan = plan
        self.meter = meter
        self.is_stopped = False
        self._route = route
        self._group = group
        self._connections: list[_Connection] = []
        self._begun_count = 0
        self._sent_count = 0
        self._due: deque[int] = deque()  # when requests became due that had no room, ns
        self._is_over = asyncio.Event()  # stopped, or nothing is on its way
        self._run_id = time.time_ns() & ((1 << 44) - 1)

    async def run(self) -> None:
        """Connect, send, and wait for the last replies.

        Raises:
            Unreachable: A broker.
        """
        try:
            await self._connect()
            self.started_ns = time.perf_counter_ns()
            if self.plan.rate is not None:
                await self._send_at_rate(self.plan.rate)
            elif self.plan.is_oneway:
                await self._send_oneway()
            else:
                for one in list(self._connections):
                    one.fill_window()
                await self._while_answered()
            await self._wait_for_replies()
        finally:
            for one in self._connections:
                one.close()

    def stop(self) -> None:
        """Send no more."""
        self.is_stopped = True
        self._is_over.set()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        by_address: dict[str, list[Template]] = {}
        for queue in self._route.publish_queues:
            address = self._route.master(queue.broker_name)
            template = Template(self.plan, queue, self._group)
            by_address.setdefault(address, []).append(template)
        for address, templates in by_address.items():
            host, _, port = address.rpartition(":")
            for number in range(self.plan.connection_count):
                turned = templates[number % len(templates) :] + templates[: number % len(templates)]
                try:
                    _, connection = await loop.create_connection(
                        lambda at=address, of=turned: _Connection(self, at, of),  # type: ignore[misc]
                        host.strip("[]"),
                        int(port),
                    )
                except OSError as error:
                    raise Unreachable(address, error.strerror or str(error)) from error
                self._connections.append(connection)

    def take(self) -> bool:
        """Take one more request to send; False if there is none."""
        plan = self.plan
        if self.is_stopped or (
            plan.count is not None and self._begun_count * plan.batch_count >= plan.count
        ):
            return False
        self._begun_count += 1
        return True

    def next_id(self) -> int:
        """Return what the ids of the messages of one more request begin with."""
        self._sent_count += 1
        return self._run_id << 40 | self._sent_count

    async def _send_at_rate(self, rate: float) -> None:
        """Send when requests are due, whether earlier ones are answered or not."""
        interval_ns = 1e9 * self.plan.batch_count / rate
        scheduled = 0
        while not self.is_stopped and self._connections:
            now_ns = time.perf_counter_ns()
            while (due_ns := self.started_ns + int(scheduled * interval_ns)) <= now_ns:
                scheduled += 1
                if not self.take():
                    return
                # What found no room counts from when it was due; else the tick's own delay would.
                connection = self._with_room()
                if connection is None:
                    self._due.append(due_ns)
                else:
                    connection.send(now_ns)
            for connection in self._connections:
                connection.flush()
            await asyncio.sleep(_TICK_S)

    async def _send_oneway(self) -> None:
        while not self.is_stopped and self._connections:
            for connection in list(self._connections):
                await connection.writable.wait()
                for _ in range(self.plan.window_count):
                    if not self.take():
                        return
                    connection.send(0)
                connection.flush()
            await asyncio.sleep(0)

    def _with_room(self) -> "_Connection | None":
        if self._due:
            return None
        one = min(self._connections, key=lambda one: len(one.pending), default=None)
        if one is None or (len(one.pending) >= self.plan.window_count and not self.plan.is_oneway):
            return None
        return one

    def next_start_ns(self) -> int | None:
        """Return when the next request counts from; None if there is none to send now."""
        if self.plan.rate is not None:
            return self._due.popleft() if self._due else None
        return time.perf_counter_ns() if self.take() else None

    def lost(self, connection: "_Connection") -> None:
        """Take note that a connection is gone."""
        if connection in self._connections:
            self._connections.remove(connection)
        self.quiet()

    def quiet(self) -> None:
        """Take note that a connection waits for no reply."""
        if not any(one.pending for one in self._connections):
            self._is_over.set()

    async def _while_answered(self) -> None:
        """Return when all is answered, when stopped, or when answers have ceased to come."""
        seen_count = -1
        while not self._is_over.is_set() and seen_count != self._answered_count:
            seen_count = self._answered_count
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.plan.timeout_s):
                    await self._is_over.wait()

    @property
    def _answered_count(self) -> int:
        return self.meter.message_count + self.meter.failed_count

    async def _wait_for_replies(self) -> None:
        for one in list(self._connections):
            one.flush()
            if self.plan.is_oneway:
                await one.writable.wait()
        self._is_over.clear()
        self.quiet()
        try:
            async with asyncio.timeout(self.plan.timeout_s):
                await self._is_over.wait()
        except TimeoutError:
            for one in self._connections:
                unanswered = len(one.pending) * self.plan.batch_count
                self.meter.fail(f"{one.address} did not answer in time", unanswered)
                one.pending.clear()
        if self._due:
            unsent = len(self._due) * self.plan.batch_count
            self.meter.fail("due when it ended, and not sent: the window was full", unsent)


class _Connection(asyncio.Protocol):
    """One connection with its window."""

    def __init__(self, sender: Sender, address: str, templates: Sequence[Template]) -> None:
        self.address = address
        self.pending: dict[int, int] = {}
        """Number of a request -> when it began, ns."""
        self.writable = asyncio.Event()
        self.writable.set()
        self._sender = sender
        self._templates = templates
        self._opaque = _OPAQUE
        self._received = bytearray()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def fill_window(self) -> None:
        """Send until the window is full or nothing is to be sent."""
        while len(self.pending) < self._sender.plan.window_count:
            started_ns = self._sender.next_start_ns()
            if started_ns is None:
                break
            self.send(started_ns)
        self.flush()

    def send(self, started_ns: int) -> None:
        """Send a request with the next ``flush``."""
        plan = self._sender.plan
        self._opaque += 1
        template = self._templates[self._opaque % len(self._templates)]
        born_ms = time.time_ns() // 1_000_000
        self._unsent.append(template.fill(self._opaque, born_ms, self._sender.next_id()))
        if plan.is_oneway:
            self._count(plan.batch_count)
        else:
            self.pending[self._opaque] = started_ns

    def flush(self) -> None:
        """Write what is to be sent."""
        if self._unsent and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at, end = 0, len(received)
        while end - at >= command.LENGTH.size:
            (length,) = command.LENGTH.unpack_from(received, at)
            if not 0 < length <= command.FRAME_BYTES_MAX:
                raise NotAFrame(f"{self.address} sends a frame of {length} bytes")
            if end - at < command.LENGTH.size + length:
                break
            at += command.LENGTH.size
            self._replied(command.decode(bytes(received[at : at + length])))
            at += length
        del received[:at]
        self.fill_window()
        if not self.pending:
            self._sender.quiet()

    def _replied(self, reply: command.Command) -> None:
        started_ns = self.pending.pop(reply.opaque, None)
        if started_ns is None:
            return
        meter, plan = self._sender.meter, self._sender.plan
        meter.count_latency((time.perf_counter_ns() - started_ns) // 1000)
        if reply.code in _STORED:
            self._count(plan.batch_count)
        else:
            meter.fail(str(BrokerError(reply.code, reply.remark, self.address)), plan.batch_count)

    def _count(self, count: int) -> None:
        meter = self._sender.meter
        meter.message_count += count
        meter.body_bytes += count * self._sender.plan.body_bytes

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.writable.set()
        if self.pending:
            reason = str(ConnectionLost(self.address))
            self._sender.meter.fail(reason, len(self.pending) * self._sender.plan.batch_count)
            self.pending.clear()
        self._sender.lost(self)

    def close(self) -> None:
        """Close the connection, after what is written."""
        if self._transport is not None:
            self._transport.close()


# --- pulling ------------------------------------------------------------------------------------


class Puller:
    """Pulls all queues of a topic at the same time, until stopped.

    Args:
        route: Where the topic is.
        starts: Each queue and where to begin in it.
        group: Who pulls.
        batch_count: Most messages of a pull.
        count: Messages in all; None: until stopped.
        timeout_s: How long a pull may take, more than the broker holds it.
        meter: What is told what happens.
        on_first: Called with the first message.
    """

    def __init__(
        self,
        route: "TopicRoute",
        starts: dict[MessageQueue, int],
        group: str,
        *,
        batch_count: int,
        count: int | None,
        timeout_s: float,
        meter: Meter,
        on_first: Callable[[], None],
    ) -> None:
        self._route = route
        self._starts = starts
        self._group = group
        self._batch_count = batch_count
        self._count = count
        self._timeout_ms = round(timeout_s * 1000) + _HELD_MS + _HELD_LONGER_MS
        self._meter = meter
        self._on_first = on_first
        self._is_stopped = asyncio.Event()

    async def run(self) -> None:
        """Pull until there are enough messages, or ``stop``.

        Raises:
            RemotingError: A broker cannot be reached, or refuses.
        """
        async with RemotingClient() as client:
            pulls = [
                asyncio.create_task(self._pull(client, queue, start))
                for queue, start in self._starts.items()
            ]
            stop = asyncio.create_task(self._is_stopped.wait())
            try:
                done, _ = await asyncio.wait([*pulls, stop], return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
            finally:
                for one in (*pulls, stop):
                    one.cancel()
                await asyncio.gather(*pulls, stop, return_exceptions=True)

    def stop(self) -> None:
        """Pull no more."""
        self._is_stopped.set()

    async def _pull(self, client: RemotingClient, queue: MessageQueue, start: int) -> None:
        header = headers.PullMessageHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=start,
            max_msg_nums=self._batch_count,
            sys_flag=_SUSPEND_AND_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=_HELD_MS,
            subscription="*",
            sub_version=0,
        )
        address = self._route.any_address(queue.broker_name)
        while not self._is_stopped.is_set():
            request = requests.make(RequestCode.PULL_MESSAGE, header)
            reply = await client.invoke(address, request, self._timeout_ms)
            if reply.code not in _PULLED:
                raise BrokerError(reply.code, reply.remark, address)
            if reply.code == ResponseCode.SUCCESS:
                self._count_messages(reply.body)
            answer = headers.decode(headers.PullMessageReplyHeader, reply.ext_fields)
            header.queue_offset = answer.next_begin_offset

    def _count_messages(self, body: bytes) -> None:
        """Count records by their heads: nothing of them is decoded."""
        meter = self._meter
        if not meter.message_count:
            self._on_first()
        now_ms = time.time_ns() // 1_000_000
        at = 0
        while at < len(body):
            if self._count is not None and meter.message_count >= self._count:
                break
            size, _ = records.SIZE_AND_MAGIC.unpack_from(body, at)
            if not records.FIXED_BYTES_V1 <= size <= len(body) - at:
                raise RemotingError(f"a pull brought a record of {size} bytes")
            born_at = at + records.POSITION_BORN_TIMESTAMP
            born_ms = int.from_bytes(body[born_at : born_at + 8], "big")
            meter.message_count += 1
            meter.body_bytes += size
            meter.count_latency((now_ms - born_ms) * 1000)
            at += size
        if self._count is not None and meter.message_count >= self._count:
            self.stop()


_PULLED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
