"""Topics of 5.x with batch queues: read over the wire, and sent to no more."""

from pathlib import Path

import broker_subject
import golden
from reput import config as configuration
from reput.client.message import received
from reput.format import headers
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import OffsetReplyHeader, PullMessageReplyHeader, QueueHeader
from reput.store.config import StoreConfig

TOPIC = "GoldenBatch-bcq"


async def test_a_batch_queue_is_pulled_and_takes_no_more(tmp_path: Path) -> None:
    root = golden.copy_store("5.5.0", "v5", tmp_path)
    settings = dict(golden.manifest("5.5.0", "v5")["config"])
    known = configuration.load(StoreConfig, settings, environment={}, explicit={}).value
    sizes = {
        name: getattr(known, name)
        for name in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue",
                     "max_hash_slot_num", "max_index_num", "max_message_size",
                     "enable_multi_dispatch", "disk_max_used_space_ratio")
    }  # fmt: skip
    async with broker_subject.running(root, store=sizes) as subject:
        for _ in range(2):  # the second one would be the kernel's
            reply = await subject.pull(TOPIC, 0, 5)
            assert reply.code == ResponseCode.SUCCESS, reply.remark
            found = received(reply.body, "broker-a")
            assert [one.queue_offset for one in found] == list(range(4, 12))  # whole batches
            header = headers.decode(PullMessageReplyHeader, reply.ext_fields)
            assert (header.next_begin_offset, header.min_offset, header.max_offset) == (12, 0, 12)
        end = await subject.ask(RequestCode.GET_MAX_OFFSET, QueueHeader(topic=TOPIC, queue_id=0))
        assert headers.decode(OffsetReplyHeader, end.ext_fields).offset == 12
        reply = await subject.send(TOPIC)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert "BatchCQ" in (reply.remark or "")
