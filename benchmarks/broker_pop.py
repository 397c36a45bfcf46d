"""Pop and acknowledge, beside pull and commit: what a message costs our broker.

Four tasks over a connection each ask for 32 messages at a time, until all are consumed. The client
is in this process; of the broker its CPU is measured, so that the client's does not count.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import broker_targets as targets
from benchmarks.broker_process import cpu_seconds
from benchmarks.broker_targets import Target
from reput.format import bodies, headers
from reput.format.codes import RequestCode as Code, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AckMessageHeader,
    Header,
    PopMessageHeader,
    PopMessageReplyHeader,
    PullMessageHeader,
    PullMessageReplyHeader,
    UpdateConsumerOffsetHeader,
)
from reput.remoting.client import RemotingClient

NAME = "broker_pop"
QUESTION = "messages/s and broker CPU a message of pop + ack, of pull + commit beside it"
TOPIC = "bench-pop"
QUEUE_COUNT = 4
BATCH = 32

Ask = Callable[[int, Header, bytes], Awaitable[Command]]


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Fill a topic, then consume it in each way; quick: about 15 s."""
    count = 20_000 if quick else 200_000
    ways = {"pull_commit": _pull, "pop_batch_ack": _pop_batch, "pop_single_acks": _pop_single}
    found: dict[str, object] = {}
    with targets.brokers(folder / NAME, is_ours_alone=True) as (ours,):
        targets.load(ours, "fill", topic=TOPIC, messages=count)
        for name, way in ways.items():
            found[name] = asyncio.run(_measure(ours, name, way, count))
    return found


async def _measure(
    target: Target, group: str, way: Callable[..., Awaitable[int]], count: int
) -> dict[str, float]:
    clients = [RemotingClient() for _ in range(QUEUE_COUNT)]

    def ask_with(client: RemotingClient) -> Ask:
        async def ask(code: int, header: Header, body: bytes = b"") -> Command:
            request = Command(code, ext_fields=headers.encode(header), body=body)
            return await client.invoke(target.address, request, 30_000)

        return ask

    cpu, start = cpu_seconds(target.pid), time.perf_counter()
    done = await asyncio.gather(
        *(way(ask_with(client), group, queue_id) for queue_id, client in enumerate(clients))
    )
    took, cpu = time.perf_counter() - start, cpu_seconds(target.pid) - cpu
    for client in clients:
        await client.close()
    if sum(done) != count:
        raise RuntimeError(f"{group}: {sum(done)} of {count} messages")
    return {"per_s": round(count / took), "broker_cpu_us": round(1e6 * cpu / count, 2)}


async def _pull(ask: Ask, group: str, queue_id: int) -> int:
    at = 0
    while True:
        header = PullMessageHeader(
            consumer_group=group, topic=TOPIC, queue_id=queue_id, queue_offset=at,
            max_msg_nums=BATCH, sys_flag=4, commit_offset=0, suspend_timeout_millis=0,
            subscription="*", sub_version=0,
        )  # fmt: skip
        reply = await ask(Code.PULL_MESSAGE, header, b"")
        if reply.code != ResponseCode.SUCCESS:
            return at
        at = headers.decode(PullMessageReplyHeader, reply.ext_fields).next_begin_offset
        commit = UpdateConsumerOffsetHeader(
            consumer_group=group, topic=TOPIC, queue_id=queue_id, commit_offset=at
        )
        await ask(Code.UPDATE_CONSUMER_OFFSET, commit, b"")


async def _pop(ask: Ask, group: str, queue_id: int) -> tuple[PopMessageReplyHeader, int, list[int]]:
    """Return a reply's header, where its checkpoint starts and the messages' queue offsets."""
    header = PopMessageHeader(
        consumer_group=group, topic=TOPIC, queue_id=queue_id, max_msg_nums=BATCH,
        invisible_time=600_000, poll_time=0, born_time=0, init_mode=0, exp_type="TAG", exp="*",
    )  # fmt: skip
    reply = await ask(Code.POP_MESSAGE, header, b"")
    found = headers.decode(PopMessageReplyHeader, reply.ext_fields)
    if reply.code != ResponseCode.SUCCESS:
        return found, 0, []
    start = int((found.start_offset_info or "").split(" ")[2])
    offsets = (found.msg_offset_info or "").split(" ")[2].split(",")
    return found, start, [int(one) for one in offsets]


async def _pop_batch(ask: Ask, group: str, queue_id: int) -> int:
    done = 0
    while True:
        found, start, offsets = await _pop(ask, group, queue_id)
        if not offsets:
            return done
        bits = sum(1 << one - start for one in offsets).to_bytes(BATCH // 8 + 1, "little")
        ack: dict[str, Any] = {
            "c": group, "t": TOPIC, "r": "0", "so": start, "q": queue_id, "rq": found.revive_qid,
            "pt": found.pop_time, "it": found.invisible_time, "b": base64.b64encode(bits).decode(),
        }  # fmt: skip
        body = bodies.encode({"brokerName": "broker-a", "acks": [ack]})
        reply = await ask(Code.BATCH_ACK_MESSAGE, Header(), body)
        done += len(offsets) * (reply.code == ResponseCode.SUCCESS)


async def _pop_single(ask: Ask, group: str, queue_id: int) -> int:
    """Acknowledge one by one, as push consumers do."""
    done = 0
    while True:
        found, start, offsets = await _pop(ask, group, queue_id)
        if not offsets:
            return done
        handle = f"{start} {found.pop_time} {found.invisible_time} {found.revive_qid} 0 broker-a"
        acks = [
            AckMessageHeader(
                consumer_group=group, topic=TOPIC, queue_id=queue_id, offset=one,
                extra_info=f"{handle} {queue_id} {one}",
            )
            for one in offsets
        ]  # fmt: skip
        replies = await asyncio.gather(*(ask(Code.ACK_MESSAGE, one, b"") for one in acks))
        done += sum(one.code == ResponseCode.SUCCESS for one in replies)
