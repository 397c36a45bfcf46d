"""Our blocking clients against the official broker."""

import threading
from queue import SimpleQueue
from random import Random

import pytest

from interop.java_cluster import JavaCluster
from reput.client.blocking import Admin, Producer, PullConsumer, PushConsumer
from reput.client.config import ConsumeFromWhere, ConsumerConfig
from reput.client.listener import ConsumeContext, ConsumeResult
from reput.client.message import Message, ReceivedMessage

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

FROM_FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


def test_blocking_clients_send_and_receive(official: JavaCluster) -> None:
    topic = f"Blocking-{Random().randrange(1 << 48):012x}"
    pushed: SimpleQueue[bytes] = SimpleQueue()
    namesrv = official.namesrv

    with Admin(namesrv) as admin, Producer("ours", namesrv=namesrv) as producer:
        admin.create_topic(topic, queue_count=2)
        expected = {b"%d" % i for i in range(100)}

        def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
            # The listener runs in a separate thread, so it may wait for other clients.
            assert producer.queues(topic)
            for message in messages:
                pushed.put(message.body)
            return ConsumeResult.SUCCESS

        consumer = PushConsumer("push", namesrv=namesrv, listener=listen, config=FROM_FIRST)
        with consumer, PullConsumer("pull", namesrv=namesrv, config=FROM_FIRST) as puller:
            consumer.subscribe(topic)
            puller.assign(producer.queues(topic))
            for queue in puller.assignment():
                puller.seek(queue, 0)
            producer.send_many(Message(topic, body) for body in sorted(expected))

            assert {pushed.get(timeout=60) for _ in expected} == expected
            pulled = set()
            for message in puller:
                pulled.add(message.body)
                if pulled == expected:
                    break
    assert "reput client" not in [thread.name for thread in threading.enumerate()]
