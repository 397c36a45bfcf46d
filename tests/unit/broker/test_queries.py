"""12, 33, 43, 45, 303, 321 at a broker."""

import json

import pytest

import broker_subject
from broker_subject import NAME, Subject, messages_in
from reput import limits
from reput.broker.processors import queries
from reput.format import bodies, cq_unit, headers
from reput.format.bodies import ConsumeQueueUnits, TimeSpans
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    QueryConsumeQueueHeader,
    QueryMessageHeader,
    TimeSpanHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)

END_OF_TIME_MS = (1 << 63) - 1


async def query(subject: Subject, key: str, **fields: object) -> Command:
    header = QueryMessageHeader(
        topic="T", key=key, max_num=64, begin_timestamp=0, end_timestamp=END_OF_TIME_MS
    )
    header = broker_subject.with_fields(header, fields)
    return await subject.ask(RequestCode.QUERY_MESSAGE, header)


async def test_messages_are_found_by_each_of_their_keys(subject: Subject) -> None:
    await subject.send("T", b"one", properties={"KEYS": "k1 k2"})
    await subject.send("T", b"two", properties={"KEYS": "k2"})
    await subject.send("U", b"elsewhere", properties={"KEYS": "k2"})
    bodies_by_key = {
        key: [one.body for one in messages_in((await query(subject, key)).body)]
        for key in ("k1", "k2")
    }
    assert bodies_by_key == {"k1": [b"one"], "k2": [b"one", b"two"]}


async def test_the_reply_says_how_far_the_index_is(subject: Subject) -> None:
    await subject.send("T", b"one", properties={"KEYS": "k"})
    reply = await query(subject, "k")
    (one,) = messages_in(reply.body)
    assert reply.ext_fields == {
        "indexLastUpdateTimestamp": str(one.store_timestamp),
        "indexLastUpdatePhyoffset": str(one.physical_offset),
    }


async def test_a_key_that_no_message_can_have_is_refused(subject: Subject) -> None:
    reply = await query(subject, "k" * 32_767)
    assert reply.code == ResponseCode.QUERY_NOT_FOUND
    assert "allowed: at most 32767 characters, limit query_key_letters" in (reply.remark or "")


async def test_a_search_among_too_many_entries_is_given_up(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Aa" and "BB" have one hash: a chain of messages that do not carry the key."""
    monkeypatch.setattr(limits, "INDEX_STEPS", limits.INDEX_STEPS.at(1000))
    await subject.send("T", b"found", properties={"KEYS": "kAa"})
    for _ in range(12):
        await subject.send("T", b"other", properties={"KEYS": "kBB"})
    reply = await query(subject, "kAa")
    assert reply.code == ResponseCode.QUERY_NOT_FOUND
    assert "topic T, key 'kAa'): more than 1000; allowed" in (reply.remark or "")
    assert subject.broker.serving.refusals.counts["index_steps"] == 1
    await subject.send("T", b"newer", properties={"KEYS": "kAa"})
    reply = await query(subject, "kAa")
    assert [one.body for one in messages_in(reply.body)] == [b"newer"]
    assert reply.remark == "the newest 1; there may be more"


async def test_a_query_lets_others_have_their_turn(subject: Subject) -> None:
    """One message with one key 2,000 times is one message, and a chain of 2,000 entries."""
    await subject.send("T", b"found", properties={"KEYS": "k " * 2000})
    request = Command(
        RequestCode.QUERY_MESSAGE,
        ext_fields=headers.encode(
            QueryMessageHeader(
                topic="T", key="k", max_num=64, begin_timestamp=0, end_timestamp=END_OF_TIME_MS
            )
        ),
    )
    work = queries.query_message(subject.broker, channel=None, request=request)  # type: ignore[arg-type]
    turns = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            reply = end.value
            break
        turns += 1
    assert turns >= 2000 // 500
    assert [one.body for one in messages_in(reply.body)] == [b"found"]


async def test_a_query_keeps_no_more_than_a_reply_holds(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "BODY_BYTES_MAX", 1000)
    for number in range(4):
        await subject.send("T", b"%d" % number + bytes(300), properties={"KEYS": "k"})
    reply = await query(subject, "k")
    assert [one.body[:1] for one in messages_in(reply.body)] == [b"2", b"3"]
    assert reply.remark == "the newest 2; there may be more"


async def test_nothing_found_is_a_code_and_no_empty_result(subject: Subject) -> None:
    reply = await query(subject, "none")
    assert (reply.code, reply.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "can not find message, maybe time range not correct",
    )


async def test_of_many_the_newest_come_and_it_is_said(subject: Subject) -> None:
    for number in range(70):
        await subject.send("T", b"%d" % number, properties={"KEYS": "k", "UNIQ_KEY": "u"})
    reply = await query(subject, "k", max_num=1 << 30)
    assert [one.body for one in messages_in(reply.body)] == [b"%d" % i for i in range(6, 70)]
    assert reply.code == ResponseCode.SUCCESS
    assert reply.remark == "the newest 64; there may be more"
    reply = await query(subject, "k", max_num=2)
    assert [one.body for one in messages_in(reply.body)] == [b"68", b"69"]
    reply = await query(subject, "u", max_num=1, is_unique_key=True)
    assert len(messages_in(reply.body)) == 32  # defaultQueryMaxNum, whatever is asked for
    assert (await query(subject, "k", max_num=-1)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_reply_is_no_larger_than_a_frame(subject: Subject) -> None:
    for number in range(5):
        await subject.send("T", b"%d" % number * (4 << 20), properties={"KEYS": "k"})
    reply = await query(subject, "k")
    assert [one.body[:1] for one in messages_in(reply.body)] == [b"2", b"3", b"4"]
    assert reply.remark == "the newest 3; there may be more"


async def test_a_record_is_viewed_by_its_physical_offset(subject: Subject) -> None:
    await subject.send("T", b"one")
    (one,) = messages_in((await subject.pull("T")).body)
    header = ViewMessageHeader(offset=one.physical_offset)
    (viewed,) = messages_in((await subject.ask(RequestCode.VIEW_MESSAGE_BY_ID, header)).body)
    assert viewed == one


@pytest.mark.parametrize("physical_offset", [1, -1, 1 << 62])
async def test_where_no_record_begins_none_is_viewed(
    subject: Subject, physical_offset: int
) -> None:
    header = ViewMessageHeader(offset=physical_offset)
    reply = await subject.ask(RequestCode.VIEW_MESSAGE_BY_ID, header)
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        f"can not find message by the offset, {physical_offset}",
    )


async def units(subject: Subject, **fields: object) -> Command:
    header = QueryConsumeQueueHeader(topic="T", queue_id=0, index=0, count=10)
    header = broker_subject.with_fields(header, fields)
    return await subject.ask(RequestCode.QUERY_CONSUME_QUEUE, header)


async def test_units_are_told_as_they_stand(subject: Subject) -> None:
    for number in range(5):
        await subject.send("T", b"%d" % number, properties={"TAGS": f"tag-{number}"})
    found = bodies.decode(ConsumeQueueUnits, (await units(subject, index=1, count=3)).body)
    assert (found.min_queue_index, found.max_queue_index) == (0, 5)
    stored = messages_in((await subject.pull("T")).body)[1:4]
    assert [(one.physic_offset, one.physic_size, one.tags_code) for one in found.queue_data] == [
        (one.physical_offset, one.store_size, cq_unit.tags_code(one.tags)) for one in stored
    ]
    reply = await units(subject, consumer_group="group")
    assert bodies.decode(ConsumeQueueUnits, reply.body).filter_data == "group@T is not online!"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"queue_id": 9}, "9@T is not exist!"),
        ({"topic": "None"}, "0@None is not exist!"),
        ({"index": 1}, "Index 1 of 0@T is not exist!"),
        ({"index": -1}, "Index -1 of 0@T is not exist!"),
    ],
)
async def test_a_queue_that_is_not_there_has_no_units(
    subject: Subject, fields: dict[str, object], text: str
) -> None:
    await subject.send("T")
    reply = await units(subject, **fields)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, text)


async def test_the_extension_of_units_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("extended")
    async with broker_subject.running(root, store={"enable_consume_queue_ext": True}) as subject:
        await subject.send("T", properties={"TAGS": "a"})
        subject.broker.store.step()
        (one,) = bodies.decode(ConsumeQueueUnits, (await units(subject)).body).queue_data
        assert cq_unit.is_ext_address(one.tags_code)
        said = json.loads(one.extend_data_json or "")
        assert said["tagsCode"] == cq_unit.tags_code("a")


async def test_times_of_what_was_consumed(subject: Subject) -> None:
    for number in range(3):
        await subject.send("T", b"%d" % number)
    header = UpdateConsumerOffsetHeader(
        consumer_group="group", topic="T", queue_id=0, commit_offset=2
    )
    await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    reply = await subject.ask(
        RequestCode.QUERY_CONSUME_TIME_SPAN, TimeSpanHeader(topic="T", group="group")
    )
    first, empty, *_ = bodies.decode(TimeSpans, reply.body).consume_time_span_set
    times = [one.store_timestamp for one in messages_in((await subject.pull("T")).body)]
    assert (first.min_time_stamp, first.consume_time_stamp, first.max_time_stamp) == (
        times[0], times[1], times[2],
    )  # fmt: skip
    assert first.delay_time >= 0
    assert (first.message_queue.broker_name, first.message_queue.queue_id) == (NAME, 0)
    # As Java says it of a queue without messages.
    assert (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time) == (-1, -1, 0)


async def test_offsets_are_told_as_slaves_read_them(subject: Subject) -> None:
    subject.parts.deliveries.consumer_offsets.put("T", "group", 0, 5)
    subject.parts.deliveries.consumer_offsets.put("T", "group", 3, 7)
    reply = await subject.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert json.loads(reply.body) == {"offsetTable": {"T@group": {"0": 5, "3": 7}}}
    subject.parts.delayed.table.put(3, 11)
    reply = await subject.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert json.loads(reply.body) == {"offsetTable": {"3": 11}}


async def test_what_kind_of_key_is_asked_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("tags")
    async with broker_subject.running(root, store={"index_tags": True}) as subject:
        await subject.send("T", b"1", properties={"KEYS": "a", "UNIQ_KEY": "u", "TAGS": "b"})
        await subject.send("T", b"2", properties={"KEYS": "b", "UNIQ_KEY": "v", "TAGS": "a"})

        async def found(key: str, **fields: object) -> list[bytes]:
            reply = await query(subject, key, **fields)
            return [one.body for one in messages_in(reply.body)]

        assert await found("a", index_type="K") == await found("a") == [b"1"]
        assert await found("u", index_type="U") == await found("u", index_type="K") == [b"1"]
        assert await found("a", index_type="T") == [b"2"]
        assert await found("a", index_type="T", is_unique_key=True) == [b"1"]  # as Java
        assert await found("b", index_type="T", last_key="anything") == [b"1"]


async def test_tags_are_not_always_in_the_index(subject: Subject) -> None:
    await subject.send("T", b"1", properties={"TAGS": "a"})
    reply = await query(subject, "a", index_type="T")
    assert (reply.code, "indexTags" in (reply.remark or "")) == (ResponseCode.QUERY_NOT_FOUND, True)
    reply = await query(subject, "a", index_type="X")
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "indexType[X] is illegal, allowed: K (key), U (unique key), T (tags)",
    )
