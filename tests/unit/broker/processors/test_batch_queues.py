"""Topics of 5.x with batch queues: batches are stored and delivered unchanged."""

from pathlib import Path
from typing import Any

import golden
import world
from reput import config as configuration
from reput.client.message import received
from reput.format import batch, headers, properties as props
from reput.format.batch import InnerMessage
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    OffsetReplyHeader,
    PullMessageReplyHeader,
    QueueHeader,
)
from reput.store.config import StoreConfig
from world import Subject

TOPIC = "GoldenBatch-bcq"


async def test_a_batch_queue_of_java_is_pulled_and_extended(tmp_path: Path) -> None:
    root = golden.copy_store("5.5.0", "v5", tmp_path)
    settings = dict(golden.manifest("5.5.0", "v5")["config"])
    known = configuration.load(StoreConfig, settings, environment={}, explicit={}).value
    sizes = {
        name: getattr(known, name)
        for name in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue",
                     "mapper_file_size_batch_consume_queue", "max_hash_slot_num", "max_index_num",
                     "max_message_size", "enable_multi_dispatch", "disk_max_used_space_ratio")
    }  # fmt: skip
    async with world.broker(root, store=sizes) as subject:
        for _ in range(2):  # the kernel would answer the second pull
            reply = await subject.pull(TOPIC, 0, 5)
            assert reply.code == ResponseCode.SUCCESS, reply.remark
            messages = received(reply.body, "broker-a")
            assert [message.queue_offset for message in messages] == list(
                range(4, 12)
            )  # whole batches
            header = headers.decode(PullMessageReplyHeader, reply.ext_fields)
            assert (header.next_begin_offset, header.min_offset, header.max_offset) == (12, 0, 12)
        end = await subject.ask(RequestCode.GET_MAX_OFFSET, QueueHeader(topic=TOPIC, queue_id=0))
        assert headers.decode(OffsetReplyHeader, end.ext_fields).offset == 12
        assert (await subject.send(TOPIC, b"12")).code == ResponseCode.SUCCESS
        reply = await send_batch(subject, [b"13", b"14"], topic=TOPIC)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        reply = await subject.pull(TOPIC, 0, 12)
        messages = received(reply.body, "broker-a")
        assert [(message.queue_offset, message.body) for message in messages] == [
            (12, b"12"), (13, b"13"), (14, b"14"),
        ]  # fmt: skip


async def send_batch(
    subject: Subject,
    texts: list[bytes],
    *,
    topic: str = "B",
    key: str | None = "U",
    **fields: Any,
) -> Command:
    inner = [InnerMessage(0, body, props.encode({"KEYS": "k"})) for body in texts]
    properties = {"WAIT": "true", **({"UNIQ_KEY": key} if key else {})}
    code = RequestCode.SEND_BATCH_MESSAGE
    return await subject.send(
        topic, batch.encode(inner), code=code, batch=True, properties=properties, **fields
    )
