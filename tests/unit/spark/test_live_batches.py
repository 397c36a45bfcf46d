"""Messages inside of batch records of running brokers: a row for each, in reads and streams."""

import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import batch_records
from batch_records import BATCHES, PLAIN, Sent
from reput.client.admin import Admin
from reput.errors import BrokerError
from reput.format.codes import RequestCode, ResponseCode
from reput.spark.filters import from_values
from reput.spark.live import calls as live_calls
from reput.spark.live.calls import ReadFailed
from reput.spark.options import TriggerLimits
from reput.spark.streaming.stream import QueueStream
from reput.testing import LocalBroker
from spark import reading
from spark.live_traffic import BROKER, read, scan_of

pytestmark = pytest.mark.xdist_group("live")

Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        yield running
        live_calls.disconnect()


@pytest.fixture(scope="module")
def sent(mq: LocalBroker) -> list[Sent]:
    async def send() -> list[Sent]:
        async with Admin(mq.namesrv_addr) as admin:
            return await batch_records.send(admin, BROKER)

    return asyncio.run(send())


def places(rows: Iterable[dict[str, Any]]) -> list[Place]:
    return sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in rows)


def places_of(messages: Iterable[Sent]) -> list[Place]:
    return sorted((each.topic, each.queue_id, each.queue_offset) for each in messages)


def test_each_message_has_a_row_with_its_own_values(mq: LocalBroker, sent: list[Sent]) -> None:
    read_rows = read(mq.namesrv_addr)
    assert places(read_rows) == places_of(sent)
    rows = {places([row])[0]: row for row in read_rows}
    for each in sent:
        row = rows[places_of([each])[0]]
        assert (row["body"], row["tags"], row["msg_id"]) == (each.body, each.tags, each.unique_key)
        assert (tuple(row["keys"]), row["flag"], row["sys_flag"]) == (each.keys, each.flag, 0)
        assert row["properties"]["UNIQ_KEY"] == each.unique_key


@pytest.mark.parametrize(
    "options",
    [
        {"fetchOffset.numRetries": 0, "pullBatchSize": 1},
        {"pullBatchSize": 2},
        {"maxRecordsPerPartition": 1},
        {"maxRecordsPerPartition": 2},
        {"minPartitions": 40},
        {"includeBody": False},
    ],
    ids=str,
)
def test_any_pulls_and_partitions_give_each_message_once(
    mq: LocalBroker, sent: list[Sent], options: dict[str, Any]
) -> None:
    assert places(read(mq.namesrv_addr, **options)) == places_of(sent)


def test_a_range_may_begin_and_end_inside_of_a_batch(mq: LocalBroker, sent: list[Sent]) -> None:
    of_queue = [each for each in sent if (each.topic, each.queue_id) == (BATCHES, 0)]
    for start, stop in itertools.combinations_with_replacement(range(len(of_queue) + 1), 2):
        got = read(
            mq.namesrv_addr,
            assign={BATCHES: {BROKER: [0]}},
            startingOffsets={BATCHES: {BROKER: {"0": start}}},
            endingOffsets={BATCHES: {BROKER: {"0": stop}}},
        )
        assert places(got) == places_of(of_queue[start:stop])


def test_selections_are_about_the_messages(mq: LocalBroker, sent: list[Sent]) -> None:
    for options, chosen in (
        ({"tags": "TagB"}, [each for each in sent if each.tags == "TagB"]),
        (
            {"tags": "TagB", "topic": PLAIN},
            [e for e in sent if (e.tags, e.topic) == ("TagB", PLAIN)],
        ),
        ({"tags": "TagOfBatch"}, []),
        ({"key": "k4-3"}, [each for each in sent if "k4-3" in each.keys]),
        ({"key": "shared"}, sent),
        ({"uniqKey": sent[1].unique_key}, sent[1:2]),
        ({"uniqKey": sent[0].batch_key}, sent[:3]),
        ({"sql92": "TAGS = 'TagB'"}, [each for each in sent if each.tags == "TagB"]),
    ):
        assert places(read(mq.namesrv_addr, **options)) == places_of(chosen), options
    pushed = from_values("tags", ["TagB"])
    got = read(mq.namesrv_addr, pushed)
    assert places(got) == places_of(each for each in sent if each.tags == "TagB")


def test_batch_queues_are_found_without_a_permission_for_settings(
    mq: LocalBroker, sent: list[Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    ask = type(live_calls.connected(scan_of(mq.namesrv_addr)._live).admin.calls).ask

    async def refuse(calls: Any, address: str, request: Any, *more: Any, **named: Any) -> Any:
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            refused.append(address)
            raise BrokerError(ResponseCode.NO_PERMISSION, "no", address)
        return await ask(calls, address, request, *more, **named)

    calls = live_calls.connected(scan_of(mq.namesrv_addr)._live).admin.calls
    monkeypatch.setattr(type(calls), "ask", refuse)
    got = read(mq.namesrv_addr, tags="TagB")
    assert places(got) == places_of(each for each in sent if each.tags == "TagB")
    assert refused


def test_the_accelerator_leaves_topics_with_batch_queues_to_python(
    mq: LocalBroker, sent: list[Sent]
) -> None:
    scan = scan_of(mq.namesrv_addr)
    tasks = scan.tasks()
    assert scan.plain_pulls(tasks) is None
    with pytest.raises(ReadFailed, match="has a batch record"):
        [*itertools.chain.from_iterable(map(scan.read_records, tasks))]
    scan = scan_of(mq.namesrv_addr, topic=PLAIN)
    assert scan.plain_pulls(scan.tasks()) is not None


@pytest.mark.parametrize("start", [0, 2, 5])
@pytest.mark.parametrize("limit", [1, 3, None])
def test_a_stream_has_each_message_once(
    mq: LocalBroker, sent: list[Sent], start: int, limit: int | None
) -> None:
    starts = {BATCHES: {BROKER: {"0": start, "1": 0}}}
    texts = {"nameServer": mq.namesrv_addr, "topic": BATCHES, "startingOffsets": starts}
    options = reading.option_texts.parse_stream(reading.texts(texts))
    stream = QueueStream(options, ["topic", "queue_id", "queue_offset"])
    position, rows = stream.initial_offset(), []
    limits = TriggerLimits(max_offsets=limit) if limit else None
    while (end := stream.latest_offset(position, limits)) != position:
        for task in stream.tasks(position, end):
            for batch in stream.read(task):
                rows += batch.to_pylist()
        position = json.loads(json.dumps(end))
    wanted = [each for each in sent if each.topic == BATCHES]
    assert places(rows) == places_of(
        each for each in wanted if each.queue_id or each.queue_offset >= start
    )
