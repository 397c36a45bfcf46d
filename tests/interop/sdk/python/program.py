"""The Python SDK rocketmq-python-client, controlled over stdin and stdout by interop/sdks.py."""

import base64
import copy
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

_lock = threading.Lock()


def report(**line: Any) -> None:
    with _lock:
        print(json.dumps(line), flush=True)


def report_error(error: BaseException) -> None:
    report(error=type(error).__name__, code=getattr(error, "code", None), text=str(error))


def configuration(request: dict[str, Any]) -> ClientConfiguration:
    return ClientConfiguration(request["endpoint"], Credentials(*request.get("user", ())))


def subscription(request: dict[str, Any]) -> dict[str, FilterExpression]:
    kind = FilterType.SQL if request["is_sql"] else FilterType.TAG
    return {request["topic"]: FilterExpression(request["filter"], kind)}


def message_of(topic: str, wanted: dict[str, Any]) -> Message:
    message = Message()
    message.topic = topic
    message.body = base64.b64decode(wanted["body"])
    if wanted["tag"]:
        message.tag = wanted["tag"]
    for key in wanted["keys"]:
        message.keys = key
    for key, value in wanted["properties"].items():
        message.add_property(key, value)
    if wanted["group"]:
        message.message_group = wanted["group"]
    if wanted["lite_topic"]:
        message.lite_topic = wanted["lite_topic"]
    if wanted["delay_ms"]:
        # Whole seconds: later digits are lost.
        message.delivery_timestamp = int((time.time() * 1000 + wanted["delay_ms"]) // 1000)
    if wanted["priority"] is not None:
        message.priority = wanted["priority"]
    return message


def received(message: Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag or "",
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "group": message.message_group or "",
        "lite_topic": message.lite_topic or "",
        "attempt": message.delivery_attempt,
        "at_ms": time.time_ns() // 1_000_000,
    }


class Checker(TransactionChecker):
    def __init__(self, answers: list[str]) -> None:
        self._first = answers
        self._left: dict[str, list[str]] = {}

    def check(self, message: Message) -> TransactionResolution:
        left = self._left.setdefault(message.message_id, list(self._first))
        answer = left.pop(0) if left else "commit"
        report(checked=answer, **received(message))
        return {
            "commit": TransactionResolution.COMMIT,
            "rollback": TransactionResolution.ROLLBACK,
            "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
        }[answer]


def send(request: dict[str, Any], commands: Iterator[str]) -> None:
    topic = request["topic"]
    producer = Producer(configuration(request), [topic], Checker(request["checks"]))
    producer.startup()
    waiting = []
    for wanted in request["messages"]:
        try:
            message = message_of(topic, wanted)
            if request["how"] == "async":
                waiting.append(producer.send_async(message))
                continue
            if request["how"] == "transaction":
                transaction = producer.begin_transaction()
                report_sent(producer.send(message, transaction))
                time.sleep(request["hold_ms"] / 1000)
                if wanted["resolution"] == "commit":
                    transaction.commit()
                elif wanted["resolution"] == "rollback":
                    transaction.rollback()
                continue
            receipt = send_it(producer, message, request["until_sent"])
            report_sent(receipt)
            if request["recall"]:
                report(recalled=producer.recall_message(topic, receipt.recall_handle))
        except Exception as error:
            report_error(error)
        time.sleep(request["pause_ms"] / 1000)
    for future in waiting:
        try:
            report_sent(future.result())
        except Exception as error:
            report_error(error)
    if request["checks"]:
        for _ in commands:
            pass
    producer.shutdown()


def send_it(producer: Producer, message: Message, until_sent: bool) -> Any:
    while True:
        try:
            return producer.send(message)
        except Exception as error:
            if not until_sent:
                raise
            print(error, file=sys.stderr)
            time.sleep(0.1)


def report_sent(receipt: Any) -> None:
    report(
        message_id=receipt.message_id,
        queue_offset=receipt.offset,
        recall_handle=receipt.recall_handle or "",
        transaction_id=receipt.transaction_id,
    )


def subscribe(consumer: LiteSimpleConsumer, name: str) -> None:
    # It does not wait for its settings, and has a quota of 0 before.
    until_s = time.monotonic() + 10
    while True:
        try:
            return consumer.subscribe_lite(name)
        except LiteSubscriptionQuotaExceededException:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)


def simple(request: dict[str, Any], commands: Iterator[str]) -> None:
    wait_s = request["await_ms"] // 1000
    if request.get("lite_topics"):
        consumer = LiteSimpleConsumer(
            request["topic"], configuration(request), request["group"], wait_s
        )
    else:
        consumer = SimpleConsumer(
            configuration(request), request["group"], subscription(request), wait_s
        )
    consumer.startup()
    for name in request.get("lite_topics", ()):
        subscribe(consumer, name)
    report(started=True)
    messages: list[Message] = []
    for line in commands:
        step, *arguments = json.loads(line)
        try:
            if step == "receive":
                count, invisible_ms = arguments
                for message in consumer.receive(count, invisible_ms // 1000):
                    messages.append(message)
                    report(**received(message))
            elif step == "ack":
                consumer.ack(messages[arguments[0]])
            elif step == "change":
                consumer.change_invisible_duration(messages[arguments[0]], arguments[1] // 1000)
            elif step == "copy":
                messages.append(copy.copy(messages[arguments[0]]))
            report(done=step)
        except Exception as error:
            report_error(error)
    consumer.shutdown()


class Listener(MessageListener):
    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request

    def consume(self, message: Message) -> ConsumeResult:
        report(**received(message))
        time.sleep(self._request["work_ms"] / 1000)
        fails = message.delivery_attempt <= self._request["fail"]
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def push(request: dict[str, Any], commands: Iterator[str]) -> None:
    consumer = PushConsumer(
        configuration(request), request["group"], Listener(request), subscription(request)
    )
    consumer.startup()
    report(started=True)
    for _ in commands:
        pass
    consumer.shutdown()


def lite(request: dict[str, Any], commands: Iterator[str]) -> None:
    consumer = LitePushConsumer(
        configuration(request), request["group"], request["topic"], Listener(request)
    )
    consumer.startup()
    for name in request["lite_topics"]:
        consumer.subscribe_lite(name)
    report(started=True)
    for _ in commands:
        pass
    consumer.shutdown()


def main() -> None:
    commands = iter(sys.stdin.readline, "")
    request = json.loads(next(commands))
    try:
        todo = {"send": send, "simple": simple, "push": push, "lite": lite}
        todo[request["do"]](request, commands)
    except Exception as error:
        report_error(error)
    report(end=True)


main()
