"""Checks of names and messages: codes and texts of Java's proxy 5.5.0."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest

from reput.grpc import validation
from reput.grpc.statuses import Code, StatusError
from reput.grpc.wire.grpc_messages import MessageType

NOW_MS = 1_700_000_000_000


def _message(**system: Any) -> dict[str, Any]:
    return {
        "topic": {"name": "Orders"},
        "system_properties": {"message_id": "01" + "A" * 32, **system},
        "body": b"x",
    }


def _check_messages(messages: list[dict[str, Any]], now_ms: int) -> None:
    validation.check_topic_of(messages)
    for message in messages:
        validation.check_message(message, now_ms)


def _refusal(check: Callable[[], None]) -> tuple[int, str]:
    with pytest.raises(StatusError) as caught:
        check()
    return caught.value.code, caught.value.message


LEGAL = "^[%|a-zA-Z0-9_-]+$"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "The specified topic is blank"),
        (" \t", "The specified topic is blank"),
        ("a" * 128, "The specified topic is longer than topic max length 127."),
        ("a.b", f"The specified topic[a.b] contains illegal characters, allowing only {LEGAL}"),
        ("a\n", f"The specified topic[a\n] contains illegal characters, allowing only {LEGAL}"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "cannot access system topic"),
        ("rmq_sys_anything", "cannot access system topic"),
    ],
)
def test_topics_are_checked(name: str, text: str) -> None:
    assert _refusal(lambda: validation.check_topic(name)) == (Code.ILLEGAL_TOPIC, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "the specified group is blank"),
        (
            "g" * 121,
            f"the specified group[{'g' * 121}] is longer than group max length: 120.",
        ),
        ("g.h", f"the specified group[g.h] contains illegal characters, allowing only {LEGAL}"),
        ("CID_RMQ_SYS_TRANS", "cannot use system consumer group"),
    ],
)
def test_groups_are_checked(name: str, text: str) -> None:
    assert _refusal(lambda: validation.check_group(name)) == (Code.ILLEGAL_CONSUMER_GROUP, text)


def test_legal_names_pass_and_a_dot_makes_them_illegal() -> None:
    for check, names in {
        validation.check_topic: ("a" * 126, "%RETRY%group", "a|b-c_d"),
        validation.check_group: ("g" * 119, "TOOLS_CONSUMER"),
        validation.check_lite_topic: ("a-B_9" * 12,),
    }.items():
        for name in names:
            check(name)
            _refusal(functools.partial(check, f"{name}."))


def test_the_longest_names_pass_and_longer_ones_do_not() -> None:
    for check, length in ((validation.check_topic, 127), (validation.check_group, 120)):
        check("a" * length)
        _refusal(functools.partial(check, "a" * (length + 1)))


MESSAGES: list[tuple[dict[str, Any], int, str]] = [
    ({"tag": "  "}, 40004, "tag cannot be the char sequence of whitespace"),
    ({"tag": "a|b"}, 40004, "tag cannot contain '|'"),
    ({"tag": "a\x7f"}, 40004, "tag cannot contain control character"),
    ({"keys": ["k", "\t"]}, 40005, "key cannot be the char sequence of whitespace"),
    ({"keys": ["k\x9f"]}, 40005, "key cannot contain control character"),
    ({"message_group": " "}, 40006, "message group cannot be the char sequence of whitespace"),
    ({"message_group": "g" * 64}, 40006, "message group exceed the max size 64"),
    ({"message_group": "订" * 22}, 40006, "message group exceed the max size 64"),
    ({"message_group": "g\0"}, 40006, "message group cannot contain control character"),
    ({"message_id": " "}, 40009, "message id cannot be empty"),
    (
        {"delivery_timestamp": {"seconds": NOW_MS // 1000 + 86_401}},
        40012,
        "the max delay time of message is too large, max is 86400000",
    ),
    (
        {
            "message_type": MessageType.TRANSACTION,
            "orphaned_transaction_recovery_duration": {"seconds": 3601},
        },
        40000,
        "the max transaction recovery time of message is too large, max is 3600",
    ),
    ({"priority": -1}, 40000, "The priority must be greater than or equal to 0"),
    ({"lite_topic": " "}, 40020, "lite topic cannot be the char sequence of whitespace"),
    ({"lite_topic": "a" * 65}, 40020, "lite topic exceed the max size 64"),
    (
        {"lite_topic": "a.b"},
        40020,
        "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)",
    ),
    # Not checked by Java: a separator would add properties.
    ({"message_id": "a\x02b"}, 40009, "message_id cannot contain control character"),
    ({"trace_context": "a\x01b"}, 40000, "trace_context cannot contain control character"),
    ({"born_host": "a\x01b"}, 40000, "born_host cannot contain control character"),
    (
        {"trace_context": "t" * 8192},
        43101,
        "the total size of message_id, born_host and trace_context is too large, max is 8192",
    ),
]


@pytest.mark.parametrize(("system", "number", "text"), MESSAGES)
def test_system_properties_are_checked(system: dict[str, Any], number: int, text: str) -> None:
    message = _message(**system)
    assert _refusal(lambda: _check_messages([message], NOW_MS)) == (number, text)


@pytest.mark.parametrize(
    ("properties", "number", "text"),
    [
        ({"TAGS": "a"}, 40007, "property is used by system: TAGS"),
        ({"k\x00": "a"}, 40007, "the key of property cannot contain control character"),
        ({"k": "\x85"}, 40007, "the value of property cannot contain control character"),
        ({f"k{i}": "" for i in range(129)}, 43101, "too many user properties, max is 128"),
        (
            {"k": "v" * 16384},
            43101,
            "the total size of user property is too large, max is 16384",
        ),
    ],
)
def test_user_properties_are_checked(properties: dict[str, str], number: int, text: str) -> None:
    message = {**_message(), "user_properties": properties}
    assert _refusal(lambda: _check_messages([message], NOW_MS)) == (number, text)


def test_tag_and_keys_count_for_the_size() -> None:
    message = {**_message(tag="t" * 10, keys=["k" * 10]), "user_properties": {"a": "v" * 16363}}
    _check_messages([message], NOW_MS)
    message["user_properties"]["a"] += "v"
    assert _refusal(lambda: _check_messages([message], NOW_MS))[0] == 43101


def test_bodies_are_checked() -> None:
    message = _message()
    message["body"] = b"x" * (4 << 20)
    _check_messages([message], NOW_MS)
    message["body"] += b"x"
    text = "message body cannot exceed the max 4194304"
    assert _refusal(lambda: _check_messages([message], NOW_MS)) == (41301, text)
    del message["body"]
    text = "message body cannot be empty"
    assert _refusal(lambda: _check_messages([message], NOW_MS)) == (41302, text)


def test_messages_are_of_one_topic() -> None:
    text = "no message to send"
    assert _refusal(lambda: _check_messages([], NOW_MS)) == (40016, text)
    other = copy.deepcopy(_message())
    other["topic"]["name"] = "Other"
    text = "topic in message is not same"
    assert _refusal(lambda: _check_messages([_message(), other], NOW_MS)) == (40016, text)


def test_limits_themselves_pass() -> None:
    message = _message(
        tag="",
        keys=["", "k"],
        message_group="g" * 63,
        delivery_timestamp={"seconds": NOW_MS // 1000 + 86_400},
        message_type=MessageType.TRANSACTION,
        orphaned_transaction_recovery_duration={"seconds": 3600},
        priority=0,
        lite_topic="a" * 64,
    )
    message["user_properties"] = {f"k{i}": "v" for i in range(128)}
    _check_messages([message, message], NOW_MS)
    message["user_properties"]["k128"] = "v"
    _refusal(lambda: _check_messages([message, message], NOW_MS))


def test_reserved_properties_are_those_of_java() -> None:
    assert len(validation.RESERVED_PROPERTIES) == 54
    visible = {"INNER_MULTI_DISPATCH", "__SHARDINGKEY", "TRACE_CONTEXT", "TRANSACTION_CHECK_TIMES"}
    assert visible.isdisjoint(validation.RESERVED_PROPERTIES)
