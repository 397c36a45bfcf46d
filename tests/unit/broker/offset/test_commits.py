"""15 and other requests that set consumer offsets: existing queues, Java's numbers, limits."""

from pathlib import Path

import pytest

import world
from reput.broker.pull_subscriptions import Delivery
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import (
    UpdateConsumerOffsetHeader,
)
from world import Subject


async def commit(
    subject: Subject, group: str = "g", queue_id: int = 0, value: int = 1, topic: str = "T"
) -> Command:
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=value
    )
    return await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def test_a_refused_offset_from_the_kernel_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.broker(tmp_path, reput_consumer_offsets_max=1) as subject:
        broker = subject.broker
        assert broker.parts.deliveries.consumer_offsets.count == 0
        deliveries = [Delivery("T", "g", queue_id, 1, 1, 10, 5) for queue_id in range(3)]
        monkeypatch.setattr(
            type(broker.parts.pull_subscriptions), "has_news", property(lambda _: True)
        )
        monkeypatch.setattr(broker.parts.pull_subscriptions, "take", lambda: deliveries)
        assert broker.parts.deliveries.consumer_offsets.count == 1
        assert broker.serving.refusals.counts == {"consumer_offsets": 2}
        monkeypatch.undo()


async def test_the_count_is_the_number_of_offsets(subject: Subject) -> None:
    table = subject.parts.deliveries.consumer_offsets
    for queue_id in (0, 1, 1, 2):
        await commit(subject, queue_id=queue_id)
    await commit(subject, group="h")
    assert table.count == len(list(table.all())) == 4
    table.delete(topic="T", group="g")
    assert table.count == len(list(table.all())) == 1
