"""The C++ client, librocketmq, through its Python package. See ``other_clients``.

It runs in a separate process, because a wrong call of the library crashes the process.
"""

import base64
import json
import os
import sys
import threading
from collections.abc import Callable

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage, SendResult

WAIT_S = 60


def report(document: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def receipt(result: SendResult) -> dict[str, object]:
    return {"status": result.status.name, "msg_id": result.msg_id}


def message_of(topic: str, fields: dict[str, object]) -> Message:
    message = Message(topic)
    message.set_body(base64.b64decode(fields["body"]))
    if fields["tags"]:
        message.set_tags(fields["tags"])
    if fields["keys"]:
        message.set_keys(" ".join(fields["keys"]))
    for name, value in fields["properties"].items():
        message.set_property(name, value)
    if fields["delay_level"]:
        message.set_delay_time_level(fields["delay_level"])
    return message


def sign(client: Producer | PushConsumer) -> None:
    """Let a client sign its requests, if there are keys."""
    access_key = os.environ.get("ROCKETMQ_ACCESS_KEY")
    if access_key:
        client.set_session_credentials(access_key, os.environ["ROCKETMQ_SECRET_KEY"], "")


def produce(request: dict[str, object]) -> None:
    messages = [message_of(request["topic"], message) for message in request["messages"]]
    producer = Producer(request["group"])
    producer.set_namesrv_addr(request["namesrv"])
    sign(producer)
    producer.start()
    if request["how"] == "sync":
        for message in messages:
            report(receipt(producer.send_sync(message)))
    elif request["how"] == "oneway":
        for message in messages:
            producer.send_oneway(message)
        threading.Event().wait(1)  # The library does not report when one-way messages are sent.
    elif request["how"] == "batch":
        report(receipt(producer.send_batch(messages)))
    else:
        send_async(producer, messages)
    producer.shutdown()


def send_async(producer: Producer, messages: list[Message]) -> None:
    answered = threading.Semaphore(0)
    results: list[object] = []

    def take(result: object) -> None:
        results.append(result)
        answered.release()

    for message in messages:
        producer.send_async(message, take, take)
    for _ in messages:
        if not answered.acquire(timeout=WAIT_S):
            raise TimeoutError("not all sends were answered")
    for result in results:
        if isinstance(result, BaseException):
            raise result
        report(receipt(result))


SUCCESS, LATER = 0, 1


class Consumer(PushConsumer):
    """Consumer whose callback returns the result of a message directly.

    If the user's callback raises, the package's callback raises, too. The library then reads
    uninitialized memory as its return value.
    """

    def __init__(self, group: str, take: Callable[[RecvMessage], int], *, orderly: bool) -> None:
        super().__init__(group, orderly)
        self._take = take

    def _register_callback(self, _callback: object) -> None:
        super()._register_callback(lambda _consumer, message: self._take(RecvMessage(message)))


def consume(request: dict[str, object]) -> None:
    again = [base64.b64decode(body) for body in request["again"]]
    received: list[dict[str, object]] = []
    is_all = threading.Event()
    turn = threading.Lock()

    def take(message: RecvMessage) -> int:
        with turn:
            if message.body in again:
                again.remove(message.body)
                return LATER
            received.append(
                {
                    "body": base64.b64encode(message.body).decode(),
                    "msg_id": message.id,
                    "queue_id": message.queue_id,
                    "tags": message.tags.decode(),
                    "keys": message.keys.decode(),
                    "properties": {
                        name: message.get_property(name).decode() for name in request["properties"]
                    },
                    "reconsume_times": message.reconsume_times,
                }
            )
            if len(received) >= request["count"]:
                is_all.set()
            return SUCCESS

    consumer = Consumer(request["group"], take, orderly=request["orderly"])
    consumer.set_namesrv_addr(request["namesrv"])
    sign(consumer)
    consumer.subscribe(request["topic"], take, request["expression"])
    consumer.start()
    if not is_all.wait(WAIT_S):
        raise TimeoutError(f"{len(received)} messages came, not {request['count']}")
    consumer.shutdown()
    for document in received:
        report(document)


if __name__ == "__main__":
    asked = json.loads(sys.stdin.readline())
    {"produce": produce, "consume": consume}[asked["do"]](asked)
    report({"end": True})
