"""Pulling and waiting for messages. Codes are Java's (facts, sections 3.7 and 5)."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

import broker_subject
from broker_subject import Subject
from reput.broker.filter.selection import Selection
from reput.broker.parts import Parts
from reput.broker.processors import pull
from reput.format import properties as props
from reput.format.bodies import ConsumerData, HeartbeatData, SubscriptionData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    PullMessageHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reput.remoting.client import RemotingClient
from reput.store.getting import GetResult
from reput.store.incoming import IncomingMessage

COMMIT = 1
SUSPEND = 2
IN_REQUEST = 4


def bodies_of(reply: Command) -> list[bytes]:
    return [one.body for one in broker_subject.messages_in(reply.body)]


def message(topic: str, tag: str) -> IncomingMessage:
    return IncomingMessage(topic, b"body", 0, props.encode({props.TAGS: tag}))


async def held(subject: Subject, count: int = 1) -> None:
    while len(subject.parts.held_pulls) < count:
        await asyncio.sleep(0)


async def test_records_come_as_they_stand_in_the_log(subject: Subject) -> None:
    for number in range(3):
        await subject.send("T", str(number).encode())
    reply = await subject.pull("T")
    assert reply.code == ResponseCode.SUCCESS
    assert reply.remark == "FOUND"
    assert reply.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
    }
    assert reply.body == subject.broker.store.get("T", 0, 0).data
    assert bodies_of(reply) == [b"0", b"1", b"2"]


async def test_a_5x_lite_pull_is_the_same(subject: Subject) -> None:
    header = PullMessageHeader(
        consumer_group="g", topic="T", queue_id=3, queue_offset=0, max_msg_nums=1, sys_flag=20,
        commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0,
    )  # fmt: skip
    reply = await subject.ask(RequestCode.LITE_PULL_MESSAGE, header)
    assert bodies_of(reply) == [b"first"]


@pytest.mark.parametrize(
    ("topic", "queue_id", "queue_offset", "code", "next_offset"),
    [
        ("T", 3, 1, ResponseCode.PULL_NOT_FOUND, "1"),
        ("T", 3, 7, ResponseCode.PULL_OFFSET_MOVED, "1"),
        ("T", 3, -1, ResponseCode.PULL_OFFSET_MOVED, "0"),
        ("T", 0, 0, ResponseCode.PULL_NOT_FOUND, "0"),
        ("T", 0, 5, ResponseCode.PULL_OFFSET_MOVED, "0"),
    ],
)
async def test_where_there_is_nothing(
    subject: Subject,
    topic: str,
    queue_id: int,
    queue_offset: int,
    code: ResponseCode,
    next_offset: str,
) -> None:
    reply = await subject.pull(topic, queue_id, queue_offset)
    assert reply.ext_fields is not None
    assert (reply.code, reply.ext_fields["nextBeginOffset"]) == (code, next_offset)


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("Missing", {}, ResponseCode.TOPIC_NOT_EXIST),
        ("T", {"queue_id": 4}, ResponseCode.SYSTEM_ERROR),
        ("T", {"queue_id": -1}, ResponseCode.SYSTEM_ERROR),
        ("T", {"subscription": " || "}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("T", {"sys_flag": IN_REQUEST | 8}, ResponseCode.SYSTEM_ERROR),
        ("T", {"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        (
            "T",
            {"expression_type": "SQL92", "subscription": "a > 1"},
            ResponseCode.SYSTEM_ERROR,
        ),
    ],
)
async def test_refusals(
    subject: Subject, topic: str, fields: dict[str, object], code: ResponseCode
) -> None:
    reply = await subject.pull(topic, **fields)  # type: ignore[arg-type]
    assert reply.code == code, reply.remark


async def test_groups_come_to_be_unless_that_is_switched_off(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, auto_create_subscription_group=False) as subject:
        await subject.send("T")
        reply = await subject.pull("T")
        assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert subject.parts.subscription_groups.get("consumers") is None


async def test_tags_are_filtered_by_the_broker(subject: Subject) -> None:
    for number in range(8):
        await subject.send("T", str(number).encode(), properties={"TAGS": f"Tag{number % 3}"})
    reply = await subject.pull("T", subscription="Tag0 || Tag2")
    assert bodies_of(reply) == [b"0", b"2", b"3", b"5", b"6"]
    none = await subject.pull("T", subscription="TagX")
    assert none.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert none.ext_fields is not None
    assert none.ext_fields["nextBeginOffset"] == "8"


async def test_sql92_where_it_is_allowed(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, enable_property_filter=True) as subject:
        for number in range(6):
            await subject.send("T", str(number).encode(), properties={"n": str(number)})
        reply = await subject.pull("T", expression_type="SQL92", subscription="n > 2 AND n < 5")
        assert bodies_of(reply) == [b"3", b"4"]
        bad = await subject.pull("T", expression_type="SQL92", subscription="n >")
        assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_the_heartbeats_subscription_is_used_where_the_request_has_none(
    subject: Subject,
) -> None:
    one = SubscriptionData(
        topic="T", sub_string="TagB", tags_set=["TagB"], code_set=[2598920], sub_version=5
    )
    await subject.tell(RequestCode.HEART_BEAT, heartbeat("consumers", one))
    await subject.send("T", b"a", properties={"TAGS": "TagA"})
    await subject.send("T", b"b", properties={"TAGS": "TagB"})
    assert bodies_of(await subject.pull("T", sys_flag=0, sub_version=5)) == [b"b"]
    newer = await subject.pull("T", sys_flag=0, sub_version=6)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def heartbeat(group: str, *subscriptions: SubscriptionData) -> HeartbeatData:
    return HeartbeatData(
        client_id="127.0.0.1@1",
        consumer_data_set=[
            ConsumerData(
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                consume_type="CONSUME_PASSIVELY",
                group_name=group,
                message_model="CLUSTERING",
                subscription_data_set=list(subscriptions),
                unit_mode=False,
            )
        ],
        producer_data_set=[],
    )


# --- long polling ---------------------------------------------------------------


async def test_a_pull_waits_until_a_message_arrives(subject: Subject) -> None:
    waiting = asyncio.ensure_future(
        subject.pull("T", sys_flag=SUSPEND | IN_REQUEST, suspend_timeout_millis=15_000)
    )
    await held(subject)
    await subject.send("T", b"at last")
    assert bodies_of(await waiting) == [b"at last"]
    assert len(subject.parts.held_pulls) == 0


async def test_a_pull_that_waits_keeps_what_its_reply_needs(subject: Subject) -> None:
    """It kept its body, of up to 16 MiB, and its fields."""
    header = PullMessageHeader(
        consumer_group="consumers", topic="T", queue_id=0, queue_offset=0, max_msg_nums=32,
        sys_flag=SUSPEND | IN_REQUEST, commit_offset=0, suspend_timeout_millis=15_000,
        subscription="TagA || TagB", sub_version=0, expression_type="TAG",
    )  # fmt: skip
    asked = subject.ask(RequestCode.PULL_MESSAGE, header, b"x" * 1000)
    waiting = asyncio.ensure_future(asked)
    await held(subject)
    (kept,) = subject.parts.held_pulls.held_at("T", 0)
    assert (kept.request.body, kept.request.ext_fields) == (b"", None)
    assert (kept.header.subscription, kept.header.expression_type) == (None, None)
    assert 0 < kept.bytes_about < 1000
    await subject.send("T", b"other tag", properties={"TAGS": "TagC"})
    await subject.send("T", b"it", properties={"TAGS": "TagB"})
    reply = await waiting
    assert (reply.code, bodies_of(reply)) == (ResponseCode.SUCCESS, [b"it"])


async def test_it_does_not_wait_for_other_queues_and_tags(subject: Subject) -> None:
    waiting = asyncio.ensure_future(
        subject.pull(
            "T",
            sys_flag=SUSPEND | IN_REQUEST,
            suspend_timeout_millis=15_000,
            subscription="TagB",
        )
    )
    await held(subject)
    await subject.send("T", b"other queue", queue_id=1, properties={"TAGS": "TagB"})
    await subject.send("T", b"other tag", properties={"TAGS": "TagA"})
    assert len(subject.parts.held_pulls) == 1
    await subject.send("T", b"it", properties={"TAGS": "TagB"})
    assert bodies_of(await waiting) == [b"it"]


async def test_its_time_ends(subject: Subject) -> None:
    reply = await subject.pull(
        "T", sys_flag=SUSPEND | IN_REQUEST, suspend_timeout_millis=20, subscription="TagB"
    )
    assert reply.code == ResponseCode.PULL_NOT_FOUND
    waiting = asyncio.ensure_future(
        subject.pull(
            "T", sys_flag=SUSPEND | IN_REQUEST, suspend_timeout_millis=50, subscription="TagB"
        )
    )
    await held(subject)
    await subject.send("T", b"not wanted")
    reply = await waiting
    # The consumer goes on behind what it does not want, as with Java.
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply.ext_fields is not None
    assert reply.ext_fields["nextBeginOffset"] == "1"


async def test_what_one_look_does_not_reach_is_not_waited_for(tmp_path: Path) -> None:
    """A look takes so many units only: what is wanted may stand behind them."""
    store = {"max_filter_message_size": 20 * 4}
    async with broker_subject.running(tmp_path, store=store) as subject:
        await subject.send("T", queue_id=1)
        waiting = asyncio.ensure_future(
            subject.pull(
                "T",
                sys_flag=SUSPEND | IN_REQUEST,
                suspend_timeout_millis=600_000,
                subscription="TagB",
                max_msg_nums=1,
            )
        )
        await held(subject)
        for _ in range(10):
            subject.broker.store.put(message("T", "TagA"))
        subject.broker.store.put(message("T", "TagB"))
        subject.broker.store.notify()
        reply = await waiting
        assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert reply.ext_fields is not None
        assert 0 < int(reply.ext_fields["nextBeginOffset"]) < 10


async def test_what_is_forbidden_meanwhile_is_refused(subject: Subject) -> None:
    """As in Java, which runs the request again."""
    waiting = asyncio.ensure_future(
        subject.pull("T", sys_flag=SUSPEND | IN_REQUEST, suspend_timeout_millis=600_000)
    )
    await held(subject)
    topic = subject.parts.topics.get("T")
    assert topic is not None
    subject.parts.topics.put(dataclasses.replace(topic, perm=2), 0)
    await subject.send("T", b"not for reading")
    reply = await waiting
    assert reply.code == ResponseCode.NO_PERMISSION
    assert "pulling message is forbidden" in (reply.remark or "")
    assert reply.ext_fields == {"forbiddenType": "3"}


async def test_one_that_fails_is_told_and_the_others_go_on(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [
        asyncio.ensure_future(
            subject.pull(
                "T",
                sys_flag=SUSPEND | IN_REQUEST,
                suspend_timeout_millis=600_000,
                consumer_group=group,
            )
        )
        for group in ("bad", "good")
    ]
    await held(subject, 2)
    real = pull._get

    def get(
        parts: Parts, header: PullMessageHeader, wanted: Selection, queue_offset: int
    ) -> GetResult:
        if header.consumer_group == "bad":
            raise RuntimeError("a bug")
        return real(parts, header, wanted, queue_offset)

    monkeypatch.setattr(pull, "_get", get)
    await subject.send("T", b"it")
    bad, good = [await one for one in waiting]
    assert (bad.code, bad.remark) == (ResponseCode.SYSTEM_ERROR, "RuntimeError: a bug")
    assert bodies_of(good) == [b"it"]


async def test_a_client_that_goes_is_not_waited_for(subject: Subject) -> None:
    header = PullMessageHeader(
        consumer_group="g", topic="T", queue_id=0, queue_offset=0, max_msg_nums=1,
        sys_flag=SUSPEND | IN_REQUEST, commit_offset=0, suspend_timeout_millis=15_000,
        subscription="*", sub_version=0,
    )  # fmt: skip
    async with RemotingClient() as other:
        waiting = asyncio.ensure_future(subject.ask(RequestCode.PULL_MESSAGE, header, client=other))
        await held(subject)
    with pytest.raises(Exception, match="lost"):
        await waiting
    while len(subject.parts.held_pulls):
        await asyncio.sleep(0)


async def test_a_broker_that_stops_answers_those_who_wait(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await subject.send("T", queue_id=1)
        waiting = asyncio.ensure_future(
            subject.pull("T", sys_flag=SUSPEND | IN_REQUEST, suspend_timeout_millis=15_000)
        )
        await held(subject)
        await subject.broker.stop()
        assert (await waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await subject.broker.start()  # for the fixture to stop
        assert (await subject.pull("T", 1)).code == ResponseCode.SUCCESS


async def test_no_more_wait_than_are_allowed(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, pull_hold_max=0) as subject:
        await subject.send("T", queue_id=1)
        reply = await subject.pull(
            "T", sys_flag=SUSPEND | IN_REQUEST, suspend_timeout_millis=15_000
        )
        assert reply.code == ResponseCode.PULL_NOT_FOUND


async def test_pulls_are_refused_on_the_fast_port(subject: Subject) -> None:
    fast = f"127.0.0.1:{subject.broker.identity.port - 2}"
    request = Command(RequestCode.PULL_MESSAGE, ext_fields={})
    reply = await subject.client.invoke(fast, request, 5_000)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- offsets --------------------------------------------------------------------


async def offset_of(subject: Subject, group: str, queue_id: int = 3) -> Command:
    return await subject.ask(
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetHeader(consumer_group=group, topic="T", queue_id=queue_id),
    )


async def test_a_pull_may_commit(subject: Subject) -> None:
    await subject.pull("T", 3, 0, sys_flag=COMMIT | IN_REQUEST, commit_offset=1)
    assert (await offset_of(subject, "consumers")).ext_fields == {"offset": "1"}


async def test_a_new_group_begins_at_the_start_of_a_young_queue(subject: Subject) -> None:
    assert (await offset_of(subject, "new")).ext_fields == {"offset": "0"}


async def test_offsets_survive_a_restart_and_may_go_back(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await subject.send("T")
        for consumer_offset in (9, 4):
            await subject.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateConsumerOffsetHeader(
                    consumer_group="g", topic="T", queue_id=0, commit_offset=consumer_offset
                ),
            )
    async with broker_subject.running(tmp_path) as subject:
        assert (await offset_of(subject, "g", 0)).ext_fields == {"offset": "4"}


async def test_offsets_of_a_deleted_topic_do_not_come_back(subject: Subject) -> None:
    """Anchors D18: a consumer that still runs goes on committing."""
    header = UpdateConsumerOffsetHeader(
        consumer_group="g", topic="Gone", queue_id=0, commit_offset=7
    )
    reply = await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert subject.parts.deliveries.consumer_offsets.get("Gone", "g", 0) is None
