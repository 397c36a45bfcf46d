"""Unmodified Java clients and mqadmin with a ``LocalBroker``."""

import pytest

from interop.java_cluster import JavaClient, JavaMessage
from reput.testing import LocalBroker

pytestmark = pytest.mark.interop


@pytest.mark.sampled(14)
def test_java_clients_use_a_local_broker(java_client: JavaClient) -> None:
    with LocalBroker(topics={"Orders": 1}) as mq:
        with java_client.producer(mq.namesrv_addr) as producer:
            sent = producer.send([JavaMessage("Orders", b"%d" % i) for i in range(3)])
        stored = mq.messages("Orders")
        assert [message.body for message in stored] == [b"0", b"1", b"2"]
        assert [message.message_id for message in stored] == [message.msg_id for message in sent]


@pytest.mark.sampled(14)
def test_mqadmin_shows_a_local_broker(java_client: JavaClient) -> None:
    with LocalBroker(topics={"Orders": 3}) as mq:
        cluster = java_client.mqadmin("clusterList", namesrv=mq.namesrv_addr)
        assert f"broker-a                0     {mq.broker_addr}" in cluster
        topics = java_client.mqadmin("topicList", namesrv=mq.namesrv_addr).split()
        assert "Orders" in topics
        mq.clear()
        mq.create_topic("Others")
        topics = java_client.mqadmin("topicList", namesrv=mq.namesrv_addr).split()
        assert "Others" in topics
