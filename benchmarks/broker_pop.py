"""Cost of a message with pop and ack, and with pull and commit, for our broker and Java's 5.5.0.

Four tasks with a connection each request 32 messages at a time, until all are consumed. The client
is this process; the cost is the CPU of the broker alone.

The 32 messages are acknowledged in one request (``batch_ack``); by one request each, 32 of them in
one write (``acks_together``), as by a consumer of many threads under load; or one after the reply
to the other (``acks_apart``), where most of the cost is reading and writing single frames.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import broker_targets as targets
from benchmarks.broker_process import cpu_seconds
from benchmarks.broker_targets import OURS, Target
from reput.format import bodies, command as commands, headers
from reput.format.codes import RequestCode as Code, ResponseCode
from reput.format.command import LENGTH, Command
from reput.format.headers import (
    AckMessageHeader,
    Header,
    PopMessageHeader,
    PopMessageReplyHeader,
    PullMessageHeader,
    PullMessageReplyHeader,
    UpdateConsumerOffsetHeader,
)

NAME = "broker_pop"
QUESTION = "messages/s and broker CPU a message of pop + ack, of pull + commit beside it"
TOPIC = "bench-pop"
QUEUE_COUNT = 4
BATCH = 32

EMPTY_MAX = 5
"""Consecutive replies without messages that end a task: Java returns a few in between."""
TIMEOUT_S = 30

Way = Callable[["Connection", str, int], Awaitable[int]]
"""Consumes a queue, given connection, group and queue id; returns the number of messages."""


class Connection:
    """A connection to a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, code: int, header: Header, body: bytes = b"") -> Command:
        """Return the reply to a request."""
        (reply,) = await self.ask_all([_frame(code, header, body)])
        return commands.decode(reply)

    async def ask_all(self, frames: list[bytes]) -> list[bytes]:
        """Return the frames of the replies to requests, which are sent in one write."""
        self._writer.write(b"".join(frames))
        async with asyncio.timeout(TIMEOUT_S):
            return [await self._read() for _ in frames]

    async def _read(self) -> bytes:
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return await self._reader.readexactly(size)

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()


def _frame(code: int, header: Header, body: bytes = b"") -> bytes:
    return commands.encode(Command(code, 1, ext_fields=headers.encode(header), body=body))


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Fill a topic, then consume it in each way; quick: about half a minute."""
    count = 20_000 if quick else 200_000
    ways = {
        "pull_commit": _pull,
        "pop_batch_ack": _pop_batch,
        "pop_acks_together": _pop_together,
        "pop_acks_apart": _pop_apart,
    }
    results: dict[str, object] = {}
    with targets.brokers(folder / NAME, version="5.5.0") as brokers:
        for target in brokers:
            targets.load(target, "fill", topic=TOPIC, messages=count)
            if target.name != OURS:  # warm-up, for Java's compiler
                for name, way in ways.items():
                    _run(_measure(target, f"warm-{name}", way, count))
            results[target.name] = {
                name: _run(_measure(target, name, way, count)) for name, way in ways.items()
            }
    return results


def _run(measuring: Awaitable[dict[str, float]]) -> dict[str, float]:
    # uvloop sends the writes of one iteration together.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measuring)  # type: ignore[arg-type]


async def _measure(target: Target, group: str, way: Way, count: int) -> dict[str, float]:
    host, _, port = target.address.rpartition(":")
    connections = [
        Connection(*await asyncio.open_connection(host, int(port), limit=1 << 20))
        for _ in range(QUEUE_COUNT)
    ]
    cpu, start = cpu_seconds(target.pid), time.perf_counter()
    done = await asyncio.gather(
        *(way(connection, group, queue_id) for queue_id, connection in enumerate(connections))
    )
    took, cpu = time.perf_counter() - start, cpu_seconds(target.pid) - cpu
    for connection in connections:
        await connection.close()
    if sum(done) != count:
        raise RuntimeError(f"{target.name}, {group}: {sum(done)} of {count} messages")
    return {"per_s": round(count / took), "broker_cpu_us": round(1e6 * cpu / count, 2)}


async def _pull(connection: Connection, group: str, queue_id: int) -> int:
    queue_offset = 0
    while True:
        header = PullMessageHeader(
            consumer_group=group, topic=TOPIC, queue_id=queue_id, queue_offset=queue_offset,
            max_msg_nums=BATCH, sys_flag=4, commit_offset=0, suspend_timeout_millis=0,
            subscription="*", sub_version=0,
        )  # fmt: skip
        reply = await connection.ask(Code.PULL_MESSAGE, header)
        if reply.code != ResponseCode.SUCCESS:
            return queue_offset
        queue_offset = headers.decode(PullMessageReplyHeader, reply.ext_fields).next_begin_offset
        commit = UpdateConsumerOffsetHeader(
            consumer_group=group, topic=TOPIC, queue_id=queue_id, commit_offset=queue_offset
        )
        await connection.ask(Code.UPDATE_CONSUMER_OFFSET, commit)


async def _pop(
    connection: Connection, group: str, queue_id: int
) -> tuple[PopMessageReplyHeader, int, list[int]]:
    """Return a reply's header, the start of its checkpoint and the messages' queue offsets."""
    header = PopMessageHeader(
        consumer_group=group, topic=TOPIC, queue_id=queue_id, max_msg_nums=BATCH,
        invisible_time=600_000, poll_time=0, born_time=0, init_mode=0, exp_type="TAG", exp="*",
    )  # fmt: skip
    for _ in range(EMPTY_MAX):
        reply = await connection.ask(Code.POP_MESSAGE, header)
        if reply.code == ResponseCode.SUCCESS:
            break
    header = headers.decode(PopMessageReplyHeader, reply.ext_fields)
    if reply.code != ResponseCode.SUCCESS:
        return header, 0, []
    start = int((header.start_offset_info or "").split(" ")[2])
    offsets = (header.msg_offset_info or "").split(" ")[2].split(",")
    return header, start, [int(queue_offset) for queue_offset in offsets]


async def _pop_batch(connection: Connection, group: str, queue_id: int) -> int:
    done = 0
    while True:
        header, start, offsets = await _pop(connection, group, queue_id)
        if not offsets:
            return done
        bits = sum(1 << queue_offset - start for queue_offset in offsets)
        bitset = base64.b64encode(bits.to_bytes(BATCH // 8 + 1, "little")).decode()
        ack: dict[str, Any] = {
            "c": group, "t": TOPIC, "r": "0", "so": start, "q": queue_id, "rq": header.revive_qid,
            "pt": header.pop_time, "it": header.invisible_time, "b": bitset,
        }  # fmt: skip
        body = bodies.encode({"brokerName": "broker-a", "acks": [ack]})
        reply = await connection.ask(Code.BATCH_ACK_MESSAGE, Header(), body)
        done += len(offsets) * (reply.code == ResponseCode.SUCCESS)


async def _pop_single(
    connection: Connection, group: str, queue_id: int
) -> AsyncIterator[list[bytes]]:
    """Pop, and yield the requests that acknowledge the messages one by one."""
    while True:
        header, start, offsets = await _pop(connection, group, queue_id)
        if not offsets:
            return
        handle = f"{start} {header.pop_time} {header.invisible_time} {header.revive_qid} 0 broker-a"
        yield [
            _frame(
                Code.ACK_MESSAGE,
                AckMessageHeader(
                    consumer_group=group, topic=TOPIC, queue_id=queue_id, offset=queue_offset,
                    extra_info=f"{handle} {queue_id} {queue_offset}",
                ),
            )
            for queue_offset in offsets
        ]  # fmt: skip


async def _pop_together(connection: Connection, group: str, queue_id: int) -> int:
    done = 0
    async for acks in _pop_single(connection, group, queue_id):
        done += sum(_is_success(reply) for reply in await connection.ask_all(acks))
    return done


async def _pop_apart(connection: Connection, group: str, queue_id: int) -> int:
    done = 0
    async for acks in _pop_single(connection, group, queue_id):
        for ack in acks:
            done += sum(_is_success(reply) for reply in await connection.ask_all([ack]))
    return done


def _is_success(frame: bytes) -> bool:
    return b'"code":%d,' % ResponseCode.SUCCESS in frame
