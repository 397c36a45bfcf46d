"""Pulls have the same effect on the fast path and in the processor.

Two brokers get the same bytes, one of them without the fast path. Replies, statistics and consumer
offsets must be equal for all requests.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import broker_pair
import broker_subject
from behaviour.test_both_send_paths import send
from broker_pair import ADDED, NOW_MS, Both, replies_in
from broker_subject import with_fields
from reput.format import bodies, command as commands, cq_unit, headers
from reput.format.bodies import ConsumerData, HeartbeatData, SubscriptionData
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command, Serialization
from reput.format.headers import PullMessageHeader
from reput.store.tables.config_tables import TopicConfig

TEXT = PullFlag.HAS_SUBSCRIPTION
COMMIT = PullFlag.COMMIT_OFFSET
SUSPEND = PullFlag.SUSPEND
MESSAGES = 90


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    for pair in broker_pair.open_both(tmp_path):
        fill(pair, MESSAGES)
        yield pair


def fill(both: Both, count: int) -> None:
    """Send to queue 1 of ``T``; every second message has the tag TagB."""
    data = b""
    for i in range(count):
        data += send(b"body %d" % i, properties=f"TAGS\1Tag{'AB'[i % 2]}")
    both.feed(data)


def pull(
    *,
    code: int = RequestCode.PULL_MESSAGE,
    serialization: Serialization = Serialization.JSON,
    extra: dict[str, str] | None = None,
    remark: str | None = None,
    flag_of_command: int = 0,
    opaque: int = 7,
    body: bytes = b"",
    **fields: Any,
) -> bytes:
    header = with_fields(
        PullMessageHeader(
            consumer_group="readers",
            topic="T",
            queue_id=1,
            queue_offset=40,
            max_msg_nums=8,
            sys_flag=int(TEXT),
            commit_offset=0,
            suspend_timeout_millis=15_000,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        ),
        fields,
    )
    ext_fields = headers.encode(header) | (extra or {})
    return commands.encode(
        Command(
            code,
            opaque,
            flag_of_command,
            remark=remark,
            ext_fields=ext_fields,
            body=body,
            serialization=serialization,
        )
    )


def heartbeat(tags: str, version: int, *topics: str) -> bytes:
    """Subscribe the connection, as a member of the group, to tags of topics."""
    names = [] if tags == "*" else tags.split(" || ")
    wanted = [
        SubscriptionData(
            topic=topic,
            sub_string=tags,
            sub_version=version,
            tags_set=names,
            code_set=[cq_unit.tags_code(tag) for tag in names],
        )
        for topic in topics or ("T",)
    ]
    data = HeartbeatData(
        client_id="me",
        consumer_data_set=[
            ConsumerData(
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                consume_type="CONSUME_PASSIVELY",
                group_name="readers",
                message_model="CLUSTERING",
                subscription_data_set=wanted,
                unit_mode=False,
            )
        ],
        producer_data_set=[],
    )
    return commands.encode(Command(RequestCode.HEART_BEAT, body=bodies.encode(data)))


def members_pull(**fields: Any) -> bytes:
    """Return a pull of a member whose subscription is in its heartbeats."""
    return pull(**{"sys_flag": 0, "subscription": None, "sub_version": 5, **fields})


PLAIN: dict[str, dict[str, Any]] = {
    "as a lite pull consumer sends it": {},
    "from the beginning": {"queue_offset": 0},
    "the last one": {"queue_offset": MESSAGES - 1},
    "one message": {"max_msg_nums": 1},
    "more than the broker gives": {"max_msg_nums": 1000},
    "commit": {"sys_flag": TEXT | COMMIT, "commit_offset": 2},
    "commit of 0": {"sys_flag": TEXT | COMMIT},
    "may wait": {"sys_flag": TEXT | SUSPEND},
    "lite": {"code": RequestCode.LITE_PULL_MESSAGE, "sys_flag": TEXT | PullFlag.LITE},
    "a tag": {"subscription": "TagB"},
    "two tags": {"subscription": "TagA || TagB"},
    "tags that some have": {"subscription": "TagB || TagC", "max_msg_nums": 3},
    "no expression type": {"expression_type": None},
    "signed": {"extra": ADDED},
    "as 5.x sends it": {"extra": {"maxMsgBytes": "2147483647", "bname": "broker-a"}},
    "opaque 0": {"opaque": 0},
    "another group": {"consumer_group": "others"},
    "no text": {"subscription": ""},
}
OTHERS: dict[str, dict[str, Any]] = {
    "an unknown field": {"extra": {"zz": "1"}},
    "a field of sends": {"extra": {"a": "1"}},
    "a remark": {"remark": "hello"},
    "one-way": {"flag_of_command": IS_ONEWAY},
    "a body": {"body": b"body"},
    "the end": {"queue_offset": MESSAGES},
    "the end, and may wait": {"queue_offset": MESSAGES, "sys_flag": TEXT | SUSPEND},
    "beyond the end": {"queue_offset": MESSAGES + 1},
    "beyond the end, and says where it is": {
        "queue_offset": MESSAGES + 1,
        "sys_flag": TEXT | COMMIT,
        "commit_offset": 9,
    },
    "before the beginning": {"queue_offset": -1},
    "no messages": {"max_msg_nums": 0},
    "less than none": {"max_msg_nums": -5},
    "a number with a sign": {"extra": {"queueOffset": "+3"}},
    "no number": {"extra": {"queueOffset": "three"}},
    "a number too long": {"extra": {"commitOffset": "1234567890123456789"}},
    "a queue that is empty": {"queue_id": 2, "queue_offset": 0},
    "a queue beyond the end": {"queue_id": 4},
    "a negative queue": {"queue_id": -1},
    "a missing topic": {"topic": "Nobody"},
    "no topic": {"topic": ""},
    "no group": {"consumer_group": ""},
    "a topic beyond ASCII": {"topic": "grün"},
    "a tag that none has": {"subscription": "TagZ"},
    "a tag beyond ASCII": {"subscription": "grün"},
    "SQL92": {"subscription": "TAGS = 'TagA'", "expression_type": "SQL92"},
    "an unknown expression type": {"expression_type": "tag"},
    "only separators": {"subscription": "||x||".replace("x", "")},
    "filter by class": {"sys_flag": TEXT | PullFlag.CLASS_FILTER},
    "no subscription": {"sys_flag": 0},
    "an unknown flag": {"sys_flag": 32 | TEXT, "queue_offset": MESSAGES},
}


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.sampled(2)
def test_plain_pulls_take_the_fast_path(
    both: Both, name: str, serialization: Serialization
) -> None:
    frame = pull(serialization=serialization, **PLAIN[name])
    assert both.feed(frame) == 0, "the processor answers the first one"
    is_empty = name == "no text" and serialization is Serialization.ROCKETMQ
    assert both.feed(frame) == (not is_empty)
    assert both.feed(frame * 3) == 3 * (not is_empty)


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.sampled(3)
def test_other_pulls_fall_back(both: Both, name: str, serialization: Serialization) -> None:
    frame = pull(serialization=serialization, **OTHERS[name])
    both.feed(frame)
    both.feed(pull())
    # Between plain requests, in one read: replies keep their order.
    both.feed(pull(opaque=1) + frame + pull(opaque=2))
    assert both.feed(frame) == 0


def test_sends_and_pulls_in_one_read(both: Both) -> None:
    both.feed(pull())
    news = pull(queue_offset=MESSAGES)
    assert both.feed(send() + news + send() + send() + pull() + news) == 6


def test_a_buffer_may_be_cut_anywhere(both: Both) -> None:
    both.feed(pull())
    data = pull(opaque=1) + pull(opaque=2, queue_offset=MESSAGES) + pull(opaque=3)
    for cut in range(1, len(data)):
        both.feed(data[:cut])
        both.feed(data[cut:])


def test_members_get_the_messages_of_their_subscription(both: Both) -> None:
    both.feed(members_pull())  # No such group.
    both.feed(heartbeat("TagA", 5))
    assert both.feed(members_pull()) == 0
    assert both.feed(members_pull() * 2) == 2
    # A client whose version is newer than its heartbeat is refused.
    assert both.feed(members_pull(sub_version=6)) == 0
    assert both.feed(members_pull(sub_version=4)) == 1
    # An older heartbeat is ignored, a newer one replaces the subscription.
    both.feed(heartbeat("*", 4))
    assert both.feed(members_pull()) == 1
    both.feed(heartbeat("TagB", 7))
    assert both.feed(members_pull()) == 0
    assert both.feed(members_pull(sub_version=7)) == 1
    # Neither the topic nor the member exists any more.
    both.feed(heartbeat("*", 8, "Narrow"))
    assert both.feed(members_pull()) == 0
    both.feed(heartbeat("*", 9))
    both.feed(members_pull())
    assert both.feed(members_pull()) == 1
    for wire in (both.with_kernel, both.without):
        wire.broker.parts.members.forget(wire.channel)
    assert both.feed(members_pull()) == 0


def changed(both: Both, **changes: Any) -> None:
    for wire in (both.with_kernel, both.without):
        fields = {"name": "T", "read_queue_count": 4, "write_queue_count": 4, "perm": 6, **changes}
        wire.broker.parts.topics.put(TopicConfig(**fields), NOW_MS)


def codes_of(both: Both, frame: bytes) -> list[int]:
    """Feed a frame to the broker with the fast path; return the codes of the replies."""
    return [reply.code for reply in replies_in(both.with_kernel.feed(frame))]


def test_withdrawn_permissions(both: Both) -> None:
    def repeat() -> None:
        both.feed(pull())
        assert both.feed(pull()) == 1

    def refused(code: ResponseCode) -> None:
        assert both.feed(pull()) == 0
        assert codes_of(both, pull()) == [code]
        both.without.feed(pull())

    repeat()
    changed(both, perm=2)
    refused(ResponseCode.NO_PERMISSION)
    changed(both)
    repeat()
    changed(both, read_queue_count=1)
    refused(ResponseCode.SYSTEM_ERROR)
    changed(both)
    repeat()
    for enabled, read_permission in ((False, "6"), (True, "2")):
        for wire in (both.with_kernel, both.without):
            group = wire.broker.parts.subscription_groups.get("readers")
            assert group is not None
            wire.broker.parts.subscription_groups.put(
                type(group)(name="readers", consume_enable=enabled), NOW_MS
            )
            broker_subject.reconfigure(wire.broker, {"brokerPermission": read_permission})
        refused(ResponseCode.NO_PERMISSION)
    for wire in (both.with_kernel, both.without):
        broker_subject.reconfigure(wire.broker, {"brokerPermission": "6"})
    repeat()
    for wire in (both.with_kernel, both.without):
        wire.broker.parts.topics.delete("T", NOW_MS)
    refused(ResponseCode.TOPIC_NOT_EXIST)


def test_the_fast_port_refuses_pulls(both: Both) -> None:
    both.feed(pull())
    frontend = both.with_kernel.broker.frontend
    assert frontend is not None
    channel = both.with_kernel.channel
    frame = pull()
    both.with_kernel.broker._buffer[: len(frame)] = frame
    view = memoryview(both.with_kernel.broker._buffer)
    before = both.with_kernel.fast_count
    assert frontend.on_bytes(channel, view, len(frame), takes_pulls=False) == len(frame)
    assert both.with_kernel.fast_count == before


def test_units_that_are_read_from_files(both: Both) -> None:
    """A tail has only the last units; earlier ones are read ahead from the file."""
    for _ in range(30):
        fill(both, 100)
    total = MESSAGES + 3000
    assert both.feed(pull(queue_offset=0)) == 0
    for subscription in ("*", "TagB"):
        taken = queue_offset = pulls = 0
        while queue_offset < total:
            pulls += 1
            frame = pull(queue_offset=queue_offset, max_msg_nums=32, subscription=subscription)
            taken += both.feed(frame)
            (reply,) = replies_in(both.with_kernel.feed(frame))
            both.without.feed(frame)
            queue_offset = int((reply.ext_fields or {})["nextBeginOffset"])
        assert pulls * 0.8 < taken < pulls, "some read the file"


def test_a_truncated_queue_is_read_again(both: Both) -> None:
    for _ in range(12):
        fill(both, 100)
    both.feed(pull(queue_offset=0))
    assert both.feed(pull(queue_offset=0)) == 1
    for wire in (both.with_kernel, both.without):
        queue = wire.broker.store.queues.find("T", 1)
        assert queue is not None
        middle = queue.unit(20)
        assert middle is not None
        queue.cut(middle.physical_offset)
    assert both.feed(pull(queue_offset=0)) == 0
    assert both.feed(pull(queue_offset=19)) == 1
    assert both.feed(pull(queue_offset=20)) == 0, "where the queue ends now"


def test_the_last_commit_of_a_group_counts(both: Both) -> None:
    """The last commit counts, on the fast path and in the processor."""

    def committing(consumer_offset: int, **fields: Any) -> bytes:
        flag = int(COMMIT) | fields.pop("sys_flag", int(TEXT))
        return pull(sys_flag=flag, commit_offset=consumer_offset, **fields)

    both.feed(heartbeat("*", 5))
    member = {"sys_flag": 0, "subscription": None, "sub_version": 5}
    tags = {"subscription": "TagA"}
    both.feed(committing(1) + committing(2, **tags) + committing(3, **member))
    assert both.feed(committing(5) + committing(10, **tags) + committing(20)) == 3
    assert both.feed(committing(19) + committing(20, **member) + committing(3)) == 3
    assert (
        both.feed(
            committing(7, **tags) + committing(8, queue_offset=MESSAGES) + committing(6, **tags)
        )
        == 2
    )


def test_the_largest_version(both: Both) -> None:
    both.feed(heartbeat("*", (1 << 63) - 1))
    both.feed(members_pull())
    assert both.feed(members_pull()) == 1


def test_many_replies_are_sent_in_parts(both: Both) -> None:
    """One read requests more replies than a buffer holds."""
    for i in range(20):
        both.feed(send(b"%d" % i * 1000))
    both.feed(pull())
    frame = pull(queue_offset=MESSAGES, max_msg_nums=32)
    assert both.feed(frame * 30) == 30


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "queue_offset": st.integers(-1, MESSAGES + 2),
        "max_msg_nums": st.integers(-1, 40),
        "sys_flag": st.integers(0, 31),
        "commit_offset": st.sampled_from([-1, 0, 7, 1 << 40]),
        "subscription": st.sampled_from(["*", "TagA", "TagB", "TagA||TagB", "TagC", ""]),
        "sub_version": st.integers(3, 7),
        "queue_id": st.integers(-1, 4),
        "consumer_group": st.sampled_from(["readers", "others", ""]),
        "topic": st.sampled_from(["T", "Narrow", "ReadOnly", "Nobody"]),
        "serialization": st.sampled_from(list(Serialization)),
        "expression_type": st.sampled_from([None, "TAG", "SQL92"]),
    },
)


def test_random_pulls(tmp_path: Path) -> None:
    pairs = broker_pair.open_both(tmp_path)
    both = next(pairs)
    fill(both, MESSAGES)
    answered = 0

    @hypothesis.settings(max_examples=150)
    @hypothesis.given(st.lists(FIELDS, min_size=1, max_size=6), st.sampled_from("AB*"))
    def check(wanted: list[dict[str, Any]], tag: str) -> None:
        nonlocal answered
        both.feed(heartbeat(tag if tag == "*" else f"Tag{tag}", 5))
        answered += both.feed(b"".join(pull(**fields) for fields in wanted))

    try:
        check()
    finally:
        pairs.close()  # type: ignore[attr-defined]
    assert answered > 20, "else this would test little"
