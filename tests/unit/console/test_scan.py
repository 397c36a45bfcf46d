"""Searches against a live broker, brokers that hang and lie, and store folders."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import golden
import store_builder
from reput.client import Message, Producer
from reput.client.admin import Admin
from reput.client.config import ClientConfig
from reput.client.core.key_search import Window
from reput.clock import Clock, ManualClock, SystemClock
from reput.console import scan, search
from reput.console.scan import Lookup, Progress, ScanPart, SearchSlots, Spans, TooManySearches
from reput.console.search import Answer, Budget, Cursor, Question, Row, Span
from reput.console.settings import StorePlace
from reput.console.sources.folder import FolderMessages, StoreFolders
from reput.console.sources.live_messages import LiveMessages
from reput.errors import InvalidOption, StoreUnavailable
from reput.format import command, message as message_format
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.store.reader import StoreReader
from reput.testing import LocalBroker
from scripted_cluster import ScriptedCluster

ORDER_COUNT = 300


async def ask(
    source: scan.MessageSource,
    question: Question,
    budget: Budget | None = None,
    cursor: Cursor | None = None,
    clock: Clock | None = None,
) -> Answer:
    """Run a search; the rows of its events are those of its answer."""
    rows: list[Row] = []
    answer: Answer | None = None
    async for event in scan.run(
        search.plan(question), source, budget or Budget(), clock or SystemClock(), cursor
    ):
        assert answer is None, "the answer is the last event"
        if isinstance(event, Row):
            rows.append(event)
        elif isinstance(event, Answer):
            answer = event
        else:
            assert isinstance(event, Progress)
    assert answer is not None
    assert tuple(rows) == answer.rows
    return answer


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A broker with 300 orders: number n has key n % 3, tag A or B, and amount n."""

    async def send() -> None:
        async with Producer("writers", namesrv=mq.namesrv_addr) as producer:
            for number in range(ORDER_COUNT):
                await producer.send(
                    Message(
                        "Orders",
                        f'{{"order": {number}}}'.encode() * (1000 if number == 7 else 1),
                        tags="AB"[number % 2],
                        keys=f"k{number % 3}",
                        properties={"amount": str(number)},
                    )
                )

    with LocalBroker(topics={"Orders": 4}) as mq:
        asyncio.run(send())
        yield mq


@pytest.fixture
async def live(broker: LocalBroker) -> AsyncIterator[LiveMessages]:
    async with Admin(broker.namesrv_addr) as admin:
        yield LiveMessages(admin)


def amounts(answer: Answer) -> set[int]:
    """Return the numbers of the orders in an answer, from the start of their bodies."""
    return {int(row.body.partition(": ")[2].partition("}")[0]) for row in answer.rows}


# --- a live broker ------------------------------------------------------------------------------


async def test_all_messages_newest_first_page_by_page(live: LiveMessages) -> None:
    numbers: list[set[int]] = []
    times: list[int] = []
    cursor = None
    while True:
        answer = await ask(live, Question(topic="Orders", row_count=80), cursor=cursor)
        numbers.append(amounts(answer))
        times += [row.store_ms for row in answer.rows]
        cursor = answer.cursor
        if cursor is None:
            break
        assert answer.pause == "80 rows"
        assert not answer.complete
    assert answer.complete
    assert [len(page) for page in numbers] == [80, 80, 80, 60]
    assert set.union(*numbers) == set(range(ORDER_COUNT))
    assert times == sorted(times, reverse=True)
    assert answer.looked_at.brokers == ("broker-a",)


async def test_oldest_first(live: LiveMessages) -> None:
    answer = await ask(live, Question(topic="Orders", is_newest_first=False, row_count=10))
    newest = await ask(live, Question(topic="Orders", row_count=10))
    assert min(amounts(answer)) == 0
    assert max(row.store_ms for row in answer.rows) <= min(row.store_ms for row in newest.rows)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Question(topic="Orders", tags=("B",), row_count=500), set(range(1, 300, 2))),
        (Question(topic="Orders", sql="amount > 290", row_count=500), set(range(291, 300))),
        (Question(topic="Orders", text='"order": 29', row_count=500), {29, *range(290, 300)}),
        (
            Question(topic="Orders", expression=r": 1?5\}", row_count=500),
            {5, 15},
        ),
        (Question(topic="Orders", property_name="amount", property_value="42"), {42}),
        (Question(topic="Orders", property_name="weight"), set()),
        (Question(topic="Orders", key="k1", row_count=500), set(range(1, 300, 3))),
        (Question(topic="Orders", key="k1", tags=("A",), row_count=500), set(range(4, 300, 6))),
        (Question(topic="Orders", key="k9"), set()),
    ],
)
async def test_conditions(live: LiveMessages, question: Question, expected: set[int]) -> None:
    answer = await ask(live, question)
    assert amounts(answer) == expected
    assert answer.complete


@pytest.mark.parametrize(
    "question",
    [
        Question(topic="Orders", text='"order": 29', row_count=500),
        Question(topic="Orders", text='"order": 7}{"order": 7}', row_count=500),  # compressed
        Question(topic="Orders", text="nothing has this"),
        Question(topic="Orders", text='"order"', row_count=500, is_newest_first=False),
        Question(topic="Orders", text='"order": 1', sql="amount > 100", row_count=500),
        Question(topic="Orders", text='"order": 1', expression=r": 1?5\}", row_count=500),
        Question(topic="Orders", text='"order": 1', tags=("B",), row_count=500),
        Question(topic="Orders", expression=r'"order": 2\d', row_count=500),
        Question(topic="Orders", property_name="amount", property_value="42"),
        Question(topic="Orders", sql="amount between 40 and 60", row_count=500),
    ],
)
async def test_the_answer_is_that_of_decoding_every_message(
    broker: LocalBroker, live: LiveMessages, question: Question
) -> None:
    answer = await ask(live, question)
    async with Admin(broker.namesrv_addr) as admin:
        expected = await ask(LiveMessages(admin, decodes_all=True), question)
    assert replace(answer, took_ms=0) == replace(expected, took_ms=0)
    assert answer.complete


async def test_an_interval_has_its_messages_and_no_others(live: LiveMessages) -> None:
    everything = await ask(live, Question(topic="Orders", row_count=500))
    times = sorted(row.store_ms for row in everything.rows)
    begin_ms, end_ms = times[100], times[200]
    answer = await ask(
        live, Question(topic="Orders", begin_ms=begin_ms, end_ms=end_ms, row_count=500)
    )
    assert sorted(row.store_ms for row in answer.rows) == [
        time for time in times if begin_ms <= time < end_ms
    ]


async def test_ids(live: LiveMessages) -> None:
    (row,) = (await ask(live, Question(topic="Orders", sql="amount = 7"))).rows
    for question in (
        Question(topic="Orders", id=row.id),
        Question(id=row.offset_id),
        Question(topic="Orders", id=row.offset_id),
    ):
        answer = await ask(live, question)
        assert [hit.offset_id for hit in answer.rows] == [row.offset_id]
    other = row.offset_id[:-1] + ("1" if row.offset_id[-1] == "0" else "0")
    assert (await ask(live, Question(topic="Orders", id=other))).rows == ()


async def test_an_offset_id_elsewhere_is_not_asked(live: LiveMessages) -> None:
    answer = await ask(live, Question(id="7F000001000000010000000000000000"))
    assert "127.0.0.1:1, in the offset id, is no broker of this cluster" in answer.sentence()


@pytest.mark.parametrize(
    ("budget", "pause"),
    [
        (Budget(message_count=100), "100 messages"),
        (Budget(byte_count=1), "0 MiB"),
        (Budget(duration_ms=0), "0 s"),
    ],
)
async def test_a_budget_pauses_the_search(live: LiveMessages, budget: Budget, pause: str) -> None:
    answer = await ask(live, Question(topic="Orders", text="nothing has this"), budget)
    assert answer.pause == pause
    assert not answer.complete
    assert answer.cursor is not None
    assert f"paused after {pause}" in answer.sentence()
    rest = await ask(live, Question(topic="Orders", text="nothing has this"), cursor=answer.cursor)
    assert rest.complete
    assert rest.looked_at.message_count + answer.looked_at.message_count == ORDER_COUNT


class StarvedSource:
    """The messages of a source on a machine where each answer takes five seconds."""

    def __init__(self, source: scan.MessageSource, clock: ManualClock) -> None:
        self._source = source
        self._clock = clock

    async def spans(self, question: Question) -> Spans:
        self._clock.advance(5_000)
        return await self._source.spans(question)

    async def read(self, part: Span, question: Question) -> ScanPart:
        self._clock.advance(5_000)
        return await self._source.read(part, question)

    async def query(self, topic: str, key: str, window: Window, *, is_unique: bool) -> Lookup:
        self._clock.advance(5_000)
        return await self._source.query(topic, key, window, is_unique=is_unique)

    async def at_offset_id(self, offset_id: str) -> Lookup:
        return await self._source.at_offset_id(offset_id)


@pytest.mark.parametrize("key", ["", "k1"])
async def test_a_starved_search_proceeds(live: LiveMessages, key: str) -> None:
    clock = ManualClock(SystemClock().now_ms())
    source = StarvedSource(live, clock)
    question = Question(topic="Orders", key=key, row_count=500)
    rows: list[Row] = []
    cursor = None
    while True:
        answer = await ask(source, question, Budget(duration_ms=1_000), cursor, clock)
        assert answer.looked_at.message_count or answer.looked_at.query_count
        rows += answer.rows
        cursor = answer.cursor
        if cursor is None:
            break
        assert answer.pause == "1 s"
    assert answer.complete
    assert len({row.offset_id for row in rows}) == len(rows) == ORDER_COUNT // (3 if key else 1)


async def test_a_search_commits_nothing_and_is_in_no_group(
    live: LiveMessages, broker: LocalBroker
) -> None:
    await ask(live, Question(topic="Orders", row_count=500))
    async with Admin(broker.namesrv_addr) as admin:
        assert await admin.groups_of_topic("Orders") == []


async def test_an_expression_that_takes_forever_is_ended(
    live: LiveMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.console.matching.BATCH_MS", 200)
    question = Question(topic="Orders", expression=r"(.*)*(.*)*(.*)*z", sql="amount = 7")
    answer = await ask(live, question)
    assert not answer.complete
    assert "1 message not checked: the expression takes more than 0.2 s" in answer.sentence()


def test_an_expression_that_is_none() -> None:
    with pytest.raises(InvalidOption, match="regular expression"):
        scan.Expression("(")


# --- brokers that hang and lie ------------------------------------------------------------------


@pytest.fixture
async def cluster(broker: LocalBroker) -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster({"Orders": {"broker-a": 1, "broker-b": 1}}, brokers=2) as scripted:
        yield scripted


async def scripted_answer(cluster: ScriptedCluster, question: Question) -> Answer:
    client = ClientConfig(namesrv_addr=cluster.namesrv)
    async with Admin(client=client) as admin:
        return await ask(LiveMessages(admin, answer_ms=300), question)


def stats(name: str, high: int) -> bytes:
    queue = f'{{"topic":"Orders","brokerName":"{name}","queueId":0}}'
    offsets = f'{{"minOffset":0,"maxOffset":{high},"lastUpdateTimestamp":0}}'
    return f'{{"offsetTable":{{{queue}:{offsets}}}}}'.encode()


def pulled(request: Command, code: int, next_offset: int, body: bytes = b"") -> Command:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": "9",
    }
    return command.reply(request, code, ext_fields=fields, body=body)


async def test_a_silent_broker_is_named_and_the_other_is_read(cluster: ScriptedCluster) -> None:
    placed = store_builder.place([store_builder.message("Orders") for _ in range(3)], 1 << 20)
    records = b"".join(map(message_format.encode, placed))
    healthy, hanging = cluster.brokers
    for broker in (healthy, hanging):
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda request: command.reply(
            request, body=stats("broker-a", 3)
        )
        broker.answers[RequestCode.PULL_MESSAGE] = lambda request: pulled(
            request, ResponseCode.SUCCESS, 3, records
        )
    hanging.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda _: None
    answer = await scripted_answer(cluster, Question(topic="Orders"))
    assert len(answer.rows) == 3
    assert not answer.complete
    assert answer.sentence().startswith("Not complete: broker-b: did not answer in 0.3 s.")


async def test_a_broker_that_hangs_later_stays_in_the_cursor(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers:
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda request, name=broker.name: (
            command.reply(request, body=stats(name, 5))
        )
        broker.answers[RequestCode.PULL_MESSAGE] = lambda _: None
    answer = await scripted_answer(cluster, Question(topic="Orders"))
    assert answer.rows == ()
    assert {missing.where for missing in answer.missing} == {"broker-a", "broker-b"}
    assert answer.cursor is not None
    assert [span.high for span in answer.cursor.spans] == [5, 5]


async def test_a_broker_that_returns_less_than_asked_for_is_asked_again(
    cluster: ScriptedCluster,
) -> None:
    messages = store_builder.place(
        [store_builder.message("Orders", b"%d" % number) for number in range(100)], 1 << 20
    )
    records = [message_format.encode(message) for message in messages]

    def few(request: Command) -> Command:
        low = int((request.ext_fields or {})["queueOffset"])
        body = b"".join(records[low : low + 3])
        return pulled(request, ResponseCode.SUCCESS, min(low + 3, 100), body)

    for broker in cluster.brokers:
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda request, name=broker.name: (
            command.reply(request, body=stats(name, 100))
        )
        broker.answers[RequestCode.PULL_MESSAGE] = few
    answer = await scripted_answer(cluster, Question(topic="Orders", row_count=500))
    assert answer.complete
    for name in ("broker-a", "broker-b"):
        rows = [row for row in answer.rows if row.broker == name]
        assert sorted(int(row.body) for row in rows) == list(range(100))


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY])
async def test_a_broker_that_returns_nothing_does_not_hold_the_search(
    cluster: ScriptedCluster, code: ResponseCode
) -> None:
    for broker in cluster.brokers:
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda request, name=broker.name: (
            command.reply(request, body=stats(name, 5))
        )
        broker.answers[RequestCode.PULL_MESSAGE] = lambda request: pulled(request, code, 0)
    answer = await scripted_answer(cluster, Question(topic="Orders"))
    assert "returns nothing from queue offset 0 to 4" in answer.sentence()


async def test_a_damaged_reply_is_no_empty_one(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers:
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda request, name=broker.name: (
            command.reply(request, body=stats(name, 5))
        )
        broker.answers[RequestCode.PULL_MESSAGE] = lambda request: pulled(
            request, ResponseCode.SUCCESS, 5, b"\xff" * 50
        )
    answer = await scripted_answer(cluster, Question(topic="Orders"))
    assert not answer.complete
    assert "the reply is damaged" in answer.sentence()


# --- store folders ------------------------------------------------------------------------------


def folder_of(path: Path | str) -> FolderMessages:
    place = StorePlace("store", str(path), may_be_live=True)
    return FolderMessages(StoreFolders({"store": place}, ManualClock(0)), "store")


@pytest.mark.parametrize(("version", "name"), golden.EACH_STORE)
@pytest.mark.sampled(4)
async def test_a_folder_has_the_messages_of_its_queues(version: str, name: str) -> None:
    """Every topic of an official broker's store: all queue offsets of all of its queues."""
    path = golden.unpack(version, name)
    reader = StoreReader.open(str(path), allow_live=True)
    for topic, queue_ids in reader.queue_ids.items():
        expected = {
            (queue_id, int(number))
            for queue_id in queue_ids
            for number in reader.queue(topic, queue_id).units(
                reader.queue(topic, queue_id).min_offset, 1 << 40
            )[0]
        }
        rows: list[Row] = []
        cursor = None
        while True:
            answer = await ask(folder_of(path), Question(topic=topic, row_count=500), cursor=cursor)
            rows += answer.rows
            cursor = answer.cursor
            if cursor is None:
                break
        assert not answer.missing
        assert {(row.queue_id, row.queue_offset) for row in rows} == expected


async def test_a_folder_by_key_and_id() -> None:
    path = golden.unpack("4.9.7", "clean")
    reader = StoreReader.open(str(path))
    message = next(message for message in reader.messages() if message.keys)
    source = folder_of(path)
    by_key = await ask(source, Question(topic=message.topic, key=message.keys[0], row_count=500))
    assert message.physical_offset in {row.physical_offset for row in by_key.rows}
    assert by_key.complete
    (row,) = (await ask(source, Question(topic=message.topic, id=by_key.rows[0].id))).rows[:1]
    assert row == by_key.rows[0]
    (row,) = (await ask(source, Question(id=row.offset_id))).rows
    assert row == by_key.rows[0]


async def test_ids_of_a_batch_find_each_message_inside() -> None:
    topic = "GoldenBatch-bcq"
    java = [entry for entry in golden.messages("5.5.0", "v5") if entry["topic"] == topic][1]
    source = folder_of(golden.unpack("5.5.0", "v5"))
    for question in (
        Question(topic=topic, id=java["uniqKey"]),
        Question(topic=topic, id=java["offsetMsgId"]),
        Question(id=java["offsetMsgId"]),
    ):
        rows = (await ask(source, question)).rows
        assert sorted((row.queue_offset, *row.keys) for row in rows) == [
            (4, "bk0"), (5, "bk1"), (6, "bk2"), (7, "bk3"),
        ]  # fmt: skip


async def test_damage_makes_an_answer_of_a_folder_incomplete(tmp_path: Path) -> None:
    path = golden.copy_store("4.9.7", "clean", tmp_path / "store")
    reader = StoreReader.open(str(path))
    message = next(message for message in reader.messages() if message.topic in reader.topics())
    log_file = reader.log.file_at(message.physical_offset)
    with (path / "commitlog" / log_file.name).open("r+b") as file:
        file.seek(message.physical_offset - log_file.start + 4)
        file.write(b"\0\0\0\0")
    answer = await ask(folder_of(path), Question(topic=message.topic, row_count=500))
    assert not answer.complete
    assert f"queue offset {message.queue_offset}" in answer.sentence()


async def test_only_configured_stores_are_read(tmp_path: Path) -> None:
    folders = StoreFolders({"a": StorePlace("a", str(tmp_path))}, ManualClock(0))
    with pytest.raises(InvalidOption, match="option 'store' is '/etc'; allowed: a"):
        await FolderMessages(folders, "/etc").query("T", "k", Window(0, 1), is_unique=False)
    with pytest.raises(StoreUnavailable):
        await FolderMessages(folders, "a").query("T", "k", Window(0, 1), is_unique=False)


# --- slots --------------------------------------------------------------------------------------


def test_searches_at_once_are_bounded() -> None:
    slots = SearchSlots()
    with slots.take("ann"), slots.take("ann"):
        with pytest.raises(TooManySearches, match="2 searches of this user"), slots.take("ann"):
            pass
        with (
            slots.take("bob"),
            slots.take("eve"),
            pytest.raises(TooManySearches, match="4 searches are running"),
            slots.take("dan"),
        ):
            pass
    with slots.take("ann"), slots.take("ann"):
        pass
