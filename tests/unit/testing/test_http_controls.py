"""The controls of a test's broker over HTTP, as a test in another language uses them."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reput.client import Message, blocking
from reput.testing.http_controls import CALLS, HttpControls
from reput.testing.local_broker import LocalBroker

Post = Callable[..., tuple[int, dict[str, Any]]]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def port(mq: LocalBroker) -> Iterator[int]:
    listener = mq._call_now(lambda controls: HttpControls(controls, host="127.0.0.1"))
    listener.start()
    yield listener.port
    mq._call(lambda _: listener.stop())


@pytest.fixture
def post(port: int, mq: LocalBroker) -> Iterator[Post]:
    """``post(name, arguments)``: status and document of a call."""

    def call(name: str, body: object = None, headers: dict[str, str] = JSON) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        url = f"http://127.0.0.1:{port}/test/{name}"
        request = urllib.request.Request(url, data, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    yield call
    mq.clear()


def test_a_delayed_message_comes_when_the_time_is_advanced(post: Post, mq: LocalBroker) -> None:
    with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
        producer.send(Message("T", b"\xff later", tags="a", keys=["k"], delay_level=17))
    assert post("messages", {"topic": "T"}) == (200, {"messages": []})
    before_ms = mq.now_ms
    status, answer = post("advance", {"ms": 3_600_000})
    assert status == 200
    assert answer["nowMs"] - before_ms >= 3_600_000
    status, answer = post("messages", {"topic": "T", "atLeast": 1})
    assert status == 200
    (message,) = answer["messages"]
    assert (message["topic"], message["tags"], message["keys"]) == ("T", "a", ["k"])
    assert message["body"] is None, "it is no text"
    assert base64.b64decode(message["bodyBase64"]) == b"\xff later"


def test_faults_connections_and_restarts(post: Post, mq: LocalBroker) -> None:
    assert post("create-topic", {"topic": "F", "queues": 1}) == (200, {})
    assert post("fail-next", {"count": 2, "code": 2}) == (200, {})
    with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
        assert producer.send(Message("F", b"third attempt")).queue.queue_id == 0
        assert post("drop-next", {"stored": True}) == (200, {})
        producer.send(Message("F", b"twice"))
        status, answer = post("drop-connections")
        assert status == 200
        assert answer["closed"] >= 1
        assert post("slow", {"delayMs": 1}) == (200, {})
        assert post("restart") == (200, {})
        producer.send(Message("F", b"after"))
    status, answer = post("messages", {"topic": "F", "atLeast": 4})
    bodies = [message["body"] for message in answer["messages"]]
    assert bodies == ["third attempt", "twice", "twice", "after"]
    assert post("clear") == (200, {})
    assert post("messages", {"topic": "F"}) == (200, {"messages": []})


def test_waits_end_with_a_reason(post: Post) -> None:
    status, answer = post("messages", {"topic": "T", "atLeast": 1, "timeoutMs": 10})
    assert (status, answer["error"]) == (408, "T has 0 messages after 10 ms, not 1")
    status, answer = post("wait-until-consumed", {"group": "G", "timeoutMs": 0})
    assert (status, answer["error"]) == (
        408,
        "group G after 0 ms: it has no members and no offsets",
    )


@pytest.mark.parametrize(
    ("name", "body", "text"),
    [
        ("advance", {}, "missing required field `ms`"),
        ("advance", {"ms": "1h"}, "Expected `int`, got `str`"),
        ("advance", {"ms": -1}, "allowed: 0 to"),
        ("advance", {"seconds": 1}, "unknown field `seconds`; fields of advance: ms"),
        ("advance", b'{"ms": 1', "truncated"),
        ("clear", {"topic": "T"}, "fields of clear: none"),
        ("create-topic", {"topic": "T", "queues": 0}, "'queues' is 0"),
        ("create-topic", {"topic": "a b"}, "a b"),
        ("messages", {"topic": "T", "timeoutMs": 10**9}, "'timeoutMs' is 1000000000"),
        ("fail-next", {"request": "sned"}, "send, pull, pop"),
        ("slow", {"delayMs": 10**9}, "'delay_ms' is 1000000000"),
    ],
)
def test_invalid_arguments_are_named(post: Post, name: str, body: object, text: str) -> None:
    status, answer = post(name, body)
    assert status == 400
    assert text in answer["error"]


def test_pages_in_a_browser_cannot_use_it(post: Post, mq: LocalBroker) -> None:
    """They can send only plain forms to other origins without asking, and always send theirs."""
    before_ms = mq.now_ms
    for headers, expected in (
        ({"Content-Type": "text/plain"}, 415),
        ({}, 415),
        (JSON | {"Origin": "http://example.com"}, 403),
    ):
        status, answer = post("advance", {"ms": 10**9}, headers)
        assert (status, list(answer)) == (expected, ["error"])
    assert mq.now_ms - before_ms < 10**9


def test_an_unknown_path_lists_the_calls(post: Post, port: int) -> None:
    paths = [f"/test/{name}" for name in CALLS]
    assert post("advance-time") == (404, {"post": paths})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/test/") as answer:
        assert json.loads(answer.read()) == {"post": paths}
