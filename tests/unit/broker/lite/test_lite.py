"""Lite topics by requests of the remoting protocol: subscriptions, queries, expiry.

Expected codes and bodies are those of rocketmq-broker 5.5.0; tests/unit/grpc has the clients' view.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import world
from reput.clock import ManualClock
from reput.format import headers, names, properties as props
from reput.format.bodies import (
    LiteOffset,
    LiteSubscription,
    LiteSubscriptionsBody,
    SubscriptionGroupConfig,
)
from reput.format.codes import RequestCode as Code, ResponseCode
from reput.format.headers import (
    CreateTopicHeader,
    LiteClientHeader,
    LiteDispatchHeader,
    LiteGroupHeader,
    LiteTopicHeader,
    ParentTopicHeader,
    PopLiteMessageHeader,
    PopLiteMessageReplyHeader,
)
from reput.remoting.time_slices import run_whole
from world import Subject, messages_in

START_MS = 1_790_000_000_000
MINUTE_MS = 60_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
async def subject(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Subject]:
    """Return a broker with the parent P, whose lite topics expire, and the group G."""
    store = {"enable_multi_dispatch": True}
    async with world.broker(tmp_path, clock=clock, store=store) as subject:
        header = CreateTopicHeader(
            topic="P",
            default_topic="TBW102",
            read_queue_nums=1,
            write_queue_nums=1,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
            attributes="+message.type=LITE,+lite.topic.expiration=20",
        )
        assert (await subject.ask(Code.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        config = SubscriptionGroupConfig(group_name="G", attributes={"+lite.bind.topic": "P"})
        assert (await subject.send_body(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)).code == 0
        yield subject


async def change(subject: Subject, action: str, *lite_topics: str, **more: Any) -> tuple[int, str]:
    change = LiteSubscription(
        action=action,
        client_id="c",
        group="G",
        topic="P",
        lite_topic_set=list(lite_topics),
        **more,
    )
    body = LiteSubscriptionsBody(subscription_set=[change])
    reply = await subject.send_body(Code.LITE_SUBSCRIPTION_CTL, body)
    return reply.code, reply.remark or ""


async def send(subject: Subject, lite_topic: str, *bodies: bytes) -> None:
    for body in bodies:
        reply = await subject.send("P", body, properties={props.LITE_TOPIC: lite_topic})
        assert reply.code == 0, reply.remark
    while subject.broker.store.step():
        pass


async def pop(subject: Subject, **fields: Any) -> tuple[list[bytes], str]:
    """Pop messages; return their bodies, and how often they were delivered before."""
    header = PopLiteMessageHeader(
        client_id="c",
        consumer_group="G",
        topic="P",
        max_msg_num=32,
        invisible_time=60_000,
        poll_time=0,
    )
    for name, value in fields.items():
        setattr(header, name, value)
    reply = await subject.ask(Code.POP_LITE_MESSAGE, header)
    assert reply.code in (0, ResponseCode.POLLING_TIMEOUT), reply.remark
    answer = headers.decode(PopLiteMessageReplyHeader, reply.ext_fields)
    return [message.body for message in messages_in(reply.body)], answer.order_count_info or ""


async def info(subject: Subject, code: int, header: headers.Header | None = None) -> dict[str, Any]:
    reply = await subject.ask(code, header)
    assert reply.code == 0, reply.remark
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


async def test_a_batch_of_several_lite_topics_has_a_count_for_each_message(
    subject: Subject,
) -> None:
    await send(subject, "a", b"a1", b"a2")
    await send(subject, "b", b"b1")
    option = LiteOffset(type="POLICY", value=1)
    assert await change(subject, "PARTIAL_ADD", "a", "b", offset_option=option) == (0, "")
    assert await pop(subject) == ([b"a1", b"a2", b"b1"], "0;0;0")
    assert await pop(subject) == ([], "")


async def test_a_pop_with_the_same_attempt_id_gets_the_same_messages(subject: Subject) -> None:
    await send(subject, "a", b"a1")
    option = LiteOffset(type="OFFSET", value=0)
    await change(subject, "PARTIAL_ADD", "a", offset_option=option)
    assert await pop(subject, attempt_id="x") == ([b"a1"], "0")
    await change(subject, "PARTIAL_REMOVE", "a")
    await change(subject, "PARTIAL_ADD", "a")
    assert await pop(subject, attempt_id="y") == ([], "")
    await subject.ask(Code.TRIGGER_LITE_DISPATCH, LiteDispatchHeader(group="G"))
    assert await pop(subject, attempt_id="x") == ([b"a1"], "0")


async def test_the_queries_of_administrators(subject: Subject, clock: ManualClock) -> None:
    await send(subject, "a", b"a1", b"a2", b"a3")
    await send(subject, "b", b"b1")
    await change(subject, "PARTIAL_ADD", "a", "b", offset_option=LiteOffset(type="OFFSET", value=1))
    broker = await info(subject, Code.GET_BROKER_LITE_INFO)
    assert (broker["currentLmqNum"], broker["liteSubscriptionCount"]) == (2, 2)
    assert (broker["topicMeta"], broker["groupMeta"]) == ({"P": 20}, {"P": ["G"]})
    parent = await info(subject, Code.GET_PARENT_TOPIC_INFO, ParentTopicHeader(topic="P"))
    assert parent == {"topic": "P", "ttl": 20, "groups": ["G"], "lmqNum": 2, "liteTopicCount": 2}
    lite = await info(
        subject, Code.GET_LITE_TOPIC_INFO, LiteTopicHeader(parent_topic="P", lite_topic="a")
    )
    assert lite["topicOffset"] == {
        "minOffset": 0,
        "maxOffset": 3,
        "lastUpdateTimestamp": START_MS,
    }
    assert lite["subscriber"] == [{"clientId": "c", "group": "G"}]
    client = await info(
        subject,
        Code.GET_LITE_CLIENT_INFO,
        LiteClientHeader(parent_topic="P", group="G", client_id="c"),
    )
    assert (client["liteTopicCount"], client["liteTopicSet"]) == (2, ["%LMQ%$P$a", "%LMQ%$P$b"])
    group = await info(subject, Code.GET_LITE_GROUP_INFO, LiteGroupHeader(group="G"))
    assert (group["totalLagCount"], group["earliestUnconsumedTimestamp"]) == (2, START_MS)
    assert group["lagCountTopK"] == [
        {"liteTopic": "a", "lagCount": 2, "earliestUnconsumedTimestamp": START_MS}
    ]
    lag = await info(subject, Code.GET_LITE_GROUP_INFO, LiteGroupHeader(group="G", lite_topic="a"))
    assert lag["liteTopicOffsetWrapper"] == {
        "brokerOffset": 3,
        "consumerOffset": 1,
        "pullOffset": 0,
        "lastTimestamp": START_MS,
    }


async def test_lite_topics_expire_after_their_last_message(
    subject: Subject, clock: ManualClock
) -> None:
    first = LiteOffset(type="POLICY", value=1)
    await change(subject, "PARTIAL_ADD", "a", "b", offset_option=first)
    await send(subject, "a", b"a1")
    clock.advance(19 * MINUTE_MS)
    await send(subject, "b", b"b1")
    assert await subject.broker.loops.expire_lite_topics() == 0
    clock.advance(MINUTE_MS + 1)
    assert await subject.broker.loops.expire_lite_topics() == 1
    light = [name for name in subject.broker.store.queues.topics() if names.is_light(name)]
    assert light == ["%LMQ%$P$b"]
    await change(subject, "PARTIAL_ADD", "a", offset_option=first)
    await send(subject, "a", b"a2")
    assert sorted((await pop(subject))[0]) == [b"a2", b"b1"]


async def test_a_client_that_is_silent_loses_its_subscriptions(
    subject: Subject, clock: ManualClock
) -> None:
    await change(subject, "PARTIAL_ADD", "a")
    timeout_ms = subject.parts.settings.broker.lite_subscription_check_timeout_mills
    run_whole(subject.parts.lite.expire(clock.monotonic_ms() - timeout_ms))
    assert subject.parts.lite.subscriptions.count == 1
    clock.advance(timeout_ms + 1)
    run_whole(subject.parts.lite.expire(clock.monotonic_ms() - timeout_ms))
    assert subject.parts.lite.subscriptions.count == 0


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"action": "NONE"}, "allowed: PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD, COMPLETE_REMOVE"),
        ({"group": "Other"}, "Consumer group is not allowed to consume."),
        ({"topic": "Other"}, "bound to P; set its attribute lite.bind.topic to Other"),
        ({"lite_topic_set": ["a b"]}, "allowed: letters, digits, - and _"),
        ({"lite_topic_set": ["x" * 65]}, "name of a lite topic"),
    ],
    ids=["action", "group", "topic", "letters", "length"],
)
async def test_changes_that_are_refused(subject: Subject, more: dict[str, Any], text: str) -> None:
    values = {"action": "PARTIAL_ADD", "group": "G", "topic": "P", "lite_topic_set": ["a"], **more}
    body = LiteSubscriptionsBody(subscription_set=[LiteSubscription(client_id="c", **values)])
    reply = await subject.send_body(Code.LITE_SUBSCRIPTION_CTL, body)
    assert reply.code != 0
    assert text in (reply.remark or "")
    assert subject.parts.lite.subscriptions.count == 0


async def test_a_client_is_a_member_of_one_group(subject: Subject) -> None:
    await change(subject, "PARTIAL_ADD", "a")
    config = SubscriptionGroupConfig(group_name="H", attributes={"+lite.bind.topic": "P"})
    await subject.send_body(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)
    other = LiteSubscription(
        action="PARTIAL_ADD", client_id="c", group="H", topic="P", lite_topic_set=["b"]
    )
    reply = await subject.send_body(
        Code.LITE_SUBSCRIPTION_CTL, LiteSubscriptionsBody(subscription_set=[other])
    )
    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert "as a member of G" in (reply.remark or "")


async def test_a_broker_without_light_queues_has_no_lite_topics(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        reply = await subject.send("T", properties={props.LITE_TOPIC: "a"})
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert "enableMultiDispatch=true" in (reply.remark or "")
