"""Replies 43 and 45 have a data version, as slaves of 5.x require; it rises with changes."""

import json
from pathlib import Path

from reput.format.codes import RequestCode
from reput.format.headers import UpdateConsumerOffsetHeader
from world import Subject


async def version(subject: Subject, code: int) -> int:
    table = json.loads((await subject.ask(code)).body)
    assert table["dataVersion"].keys() >= {"counter", "timestamp"}
    return int(table["dataVersion"]["counter"])


async def test_the_version_of_consumer_offsets_rises_with_commits(subject: Subject) -> None:
    before = await version(subject, RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert await version(subject, RequestCode.GET_ALL_CONSUMER_OFFSET) == before
    header = UpdateConsumerOffsetHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=0)
    assert (await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0
    after = await version(subject, RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert after > before
    subject.parts.deliveries.consumer_offsets.save(1)
    path = Path(subject.broker.store.root) / "config/consumerOffset.json"
    assert json.loads(path.read_text())["dataVersion"]["counter"] == after


async def test_the_version_of_delay_offsets_rises_with_deliveries(subject: Subject) -> None:
    before = await version(subject, RequestCode.GET_ALL_DELAY_OFFSET)
    subject.parts.delayed.table.put(3, 1)
    assert await version(subject, RequestCode.GET_ALL_DELAY_OFFSET) > before
