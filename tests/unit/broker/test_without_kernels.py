"""A broker without compiled kernels: every request falls back to its processor, and is served.

The broker runs in its own process, from a copy of the package without shared objects, where numba
cannot be imported.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pop_client
import reput
import world
from reput.broker.kernels import hot
from reput.clock import ManualClock
from reput.format import batch, kernels
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Serialization
from reput.format.headers import (
    EndTransactionHeader,
    Header,
    QueryConsumerOffsetHeader,
    SendBackHeader,
    UpdateConsumerOffsetHeader,
)
from world import Subject, messages_in

PACKAGE = Path(reput.__file__).parent
TESTS = Path(world.__file__).parent
START_MS = 1_700_000_000_000
COMMIT = 8
CODE = """
import sys

sys.modules["numba"] = sys.modules["llvmlite"] = None
sys.path.append(sys.argv[1])
import test_without_kernels

test_without_kernels.serve(sys.argv[2])
"""


def test_all_requests_are_served_by_processors(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site / "reput", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    path = os.pathsep.join([str(site), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(Path(__file__).parent), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "served\n"
    assert not (tmp_path / "cache").exists(), "nothing was compiled"


def serve(root: str) -> None:
    """Serve requests of all kinds that have a fast path, and check what clients receive."""
    assert not hot.is_compiled
    assert kernels.engine() not in ("native", "numba")
    asyncio.run(_serve(Path(root)))
    sys.stdout.write("served\n")


async def _serve(root: Path) -> None:
    clock = ManualClock(START_MS)
    delays = {"message_delay_level": "1s 2s 3s 4s"}
    async with world.broker(root, clock=clock, store=delays, reput_fast_path=True) as subject:
        assert subject.broker.frontend is None
        await _send_and_pull(subject)
        await _commit_offset(subject)
        await _pop_and_acknowledge(subject)
        await _send_back(subject, clock)
        await _wait_for_timer(subject, clock)
        await _commit_transaction(subject)
        counts = subject.parts.fast_counts
        assert (counts.sends, counts.pulls, counts.acks, counts.send_backs) == (0, 0, 0, 0)
        assert (counts.ack_batches, counts.transaction_ends) == (0, 0)
    async with world.broker(root, clock=clock, store=delays) as subject:
        assert await _bodies(subject, "T") == [b"json", b"binary", b"one", b"two"]


async def _ask(subject: Subject, code: int, header: Header) -> None:
    reply = await subject.ask(code, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def _bodies(subject: Subject, topic: str, queue_id: int = 0, **fields: object) -> list[bytes]:
    reply = await subject.pull(topic, queue_id, **fields)
    return [message.body for message in messages_in(reply.body)]


async def _send_and_pull(subject: Subject) -> None:
    messages = [batch.InnerMessage(0, body, b"WAIT\1true") for body in (b"one", b"two")]
    sends = [
        subject.send("T", b"json", properties={"TAGS": "a", "KEYS": "k"}),
        subject.send("T", b"binary", serialization=Serialization.ROCKETMQ),
        subject.send("T", batch.encode(messages), code=RequestCode.SEND_BATCH_MESSAGE, batch=True),
    ]
    for send in sends:
        reply = await send
        assert reply.code == ResponseCode.SUCCESS, reply.remark
    for _ in range(2):  # the second pull of a subscription could take the fast path
        assert await _bodies(subject, "T") == [b"json", b"binary", b"one", b"two"]
    assert await _bodies(subject, "T", subscription="a") == [b"json"]
    assert await _bodies(subject, "T", queue_offset=2) == [b"one", b"two"]


async def _commit_offset(subject: Subject) -> None:
    place = {"consumer_group": "consumers", "topic": "T", "queue_id": 0}
    header = UpdateConsumerOffsetHeader(commit_offset=2, **place)
    await _ask(subject, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    reply = await subject.ask(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(**place))
    assert reply.ext_fields == {"offset": "2"}


async def _pop_and_acknowledge(subject: Subject) -> None:
    first = await pop_client.pop(subject, max_msg_nums=2)
    rest = await pop_client.pop(subject)
    assert [message.body for message in first + rest] == [b"json", b"binary", b"one", b"two"]
    for message in first:
        assert (await pop_client.ack(subject, message)).code == ResponseCode.SUCCESS
    assert (await pop_client.ack_batch(subject, rest)).code == ResponseCode.SUCCESS
    subject.broker.clock.advance(2 * pop_client.INVISIBLE_MS)  # type: ignore[attr-defined]
    subject.parts.pops.revive.step(subject.broker.clock.now_ms())
    assert await pop_client.pop(subject) == []


async def _send_back(subject: Subject, clock: ManualClock) -> None:
    (message, *_) = messages_in((await subject.pull("T")).body)
    header = SendBackHeader(
        offset=message.physical_offset, group="consumers", delay_level=1, origin_topic="T"
    )
    await _ask(subject, RequestCode.CONSUMER_SEND_MSG_BACK, header)
    clock.advance(1000)
    subject.broker.store.step_memory()
    while subject.parts.delayed.step(clock.now_ms()):
        subject.broker.store.step_memory()
    (retried,) = messages_in((await subject.pull("%RETRY%consumers")).body)
    assert (retried.body, retried.reconsume_times) == (b"json", 1)
    assert retried.properties["RETRY_TOPIC"] == "T"


async def _wait_for_timer(subject: Subject, clock: ManualClock) -> None:
    properties = {"TIMER_DELIVER_MS": str(clock.now_ms() + 5000), "UNIQ_KEY": "0A"}
    reply = await subject.send("T", b"timed", queue_id=2, properties=properties)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    _step_timers(subject, clock)
    assert await _bodies(subject, "T", 2) == []
    clock.advance(7000)
    _step_timers(subject, clock)
    assert await _bodies(subject, "T", 2) == [b"timed"]


def _step_timers(subject: Subject, clock: ManualClock) -> None:
    subject.broker.store.step_memory()
    while subject.parts.timers.step(clock.now_ms()):
        subject.broker.store.step_memory()


async def _commit_transaction(subject: Subject) -> None:
    properties = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "0B"}
    now_ms = subject.broker.clock.now_ms()
    reply = await subject.send(
        "T", b"half", queue_id=1, properties=properties, sys_flag=4, born_timestamp=now_ms
    )
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert reply.ext_fields is not None
    assert await _bodies(subject, "T", 1) == []
    header = EndTransactionHeader(
        producer_group="producers",
        tran_state_table_offset=int(reply.ext_fields["queueOffset"]),
        commit_log_offset=int(reply.ext_fields["msgId"][16:], 16),
        commit_or_rollback=COMMIT,
        msg_id="0B",
        transaction_id="0B",
    )
    await _ask(subject, RequestCode.END_TRANSACTION, header)
    assert await _bodies(subject, "T", 1) == [b"half"]
