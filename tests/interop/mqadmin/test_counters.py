"""Statistics of a 5.x broker after use of all its features: ours and the official one."""

import asyncio

import pytest

from interop.clusters import until
from interop.java_cluster import ClientError, JavaClient, JavaMessage
from interop.mqadmin.sides import Both, Side
from interop.mqadmin.test_console import shape
from interop.mqadmin.test_reput_cli import make_dead_letter
from reput.client import Message, ReceivedMessage, SendResult, TransactionState, blocking

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

TOPIC = "Busy"
POPS = "Pops"
DEAD = "Dead"
"""Group with a dead letter."""
COUNTERS = (
    ("TOPIC_PUT_NUMS", TOPIC),
    ("TOPIC_PUT_SIZE", TOPIC),
    ("GROUP_GET_NUMS", f"{TOPIC}@{POPS}"),
    ("GROUP_GET_SIZE", f"{TOPIC}@{POPS}"),
    ("GROUP_ACK_NUMS", f"{TOPIC}@{POPS}"),
    ("GROUP_CK_NUMS", f"{TOPIC}@{POPS}"),
    ("BROKER_ACK_NUMS", "DefaultCluster"),
    ("BROKER_CK_NUMS", "DefaultCluster"),
    ("BROKER_PUT_NUMS", "DefaultCluster"),
    ("BROKER_GET_NUMS", "DefaultCluster"),
    ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster"),
    ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster"),
    ("SNDBCK_PUT_NUMS", f"Messages@{DEAD}"),
    ("SNDBCK2DLQ_TIMES", f"null@Messages@{DEAD}@SEND_BACK_TO_DLQ"),
    ("DLQ_PUT_NUMS", f"null@Messages@{DEAD}@SEND_BACK_TO_DLQ"),
    ("TOPIC_PUT_NUMS", "RMQ_SYS_TRANS_HALF_TOPIC"),
    ("TOPIC_PUT_NUMS", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"),
    ("TOPIC_PUT_NUMS", "rmq_sys_wheel_timer"),
    ("QUEUE_PUT_NUMS", f"{TOPIC}@0"),
    ("QUEUE_GET_NUMS", f"{TOPIC}@0@{POPS}"),
    ("GROUP_GET_FROM_DISK_NUMS", f"{TOPIC}@{POPS}"),
    ("GROUP_GET_FALL_SIZE", f"0@{TOPIC}@{POPS}"),
    ("GROUP_GET_FALL_TIME", f"0@{TOPIC}@{POPS}"),
    ("BROKER_GET_FROM_DISK_NUMS", "DefaultCluster"),
)
"""Counters to compare.

Not TOPIC_PUT_LATENCY by queue: only Java has it. Our GROUP_GET_LATENCY includes pops.
"""


def decide(message: Message, half: SendResult) -> TransactionState:
    return TransactionState[message.body.decode()]


def check(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT


def use(java: JavaClient, side: Side) -> None:
    """Send transactions, delayed and timed messages and a dead letter; pop and acknowledge."""
    with blocking.TransactionProducer("transacts", check=check, namesrv=side.namesrv) as producer:
        for state in ("COMMIT", "ROLLBACK"):
            producer.send_in_transaction(Message(TOPIC, state.encode()), decide)
    with blocking.Producer("delays", namesrv=side.namesrv) as delaying:
        delaying.send(Message(TOPIC, b"level", delay_level=1))
        delaying.send(Message(TOPIC, b"time", delay_ms=1000))
    asyncio.run(make_dead_letter(side, DEAD))
    popping = {"clientRebalance": False, "heartbeatBrokerInterval": 1000}
    with java.push_consumer(side.namesrv, POPS, TOPIC, **popping) as consumer:
        with java.producer(side.namesrv) as producer:
            producer.send([JavaMessage(TOPIC, b"plain")] * 5)
        until(lambda: len({message.body for message in consumer.received}) == 4)


@pytest.fixture(scope="module")
def used(both: Both) -> Both:
    if both.is_4 or both.is_secured:
        pytest.skip("no such case: only in 5.x, and with clients without credentials")
    for side in both.sides:
        both.run(side, "updateTopic", "-b", "BROKER", "-t", TOPIC, "-r", "1", "-w", "1")
        both.run(side, "updateSubGroup", "-b", "BROKER", "-g", POPS)
        mode = ("-b", "BROKER", "-t", TOPIC, "-g", POPS, "-m", "POP", "-q", "1")
        both.run(side, "setConsumeMode", *mode)
        use(both.java, side)
    return both


def test_broker_status_has_all_names(used: Both) -> None:
    ours, official = (used.table(side, "brokerStatus", "-b", "BROKER") for side in used.sides)
    assert {name for name in official.keys() - ours.keys() if "/" not in name} == set()


def test_counters_have_counted(used: Both) -> None:
    """Both brokers have the same counters, and refuse the same ones."""
    counters: list[dict[str, object]] = []
    for side in used.sides:
        with used.java.admin(side.namesrv) as admin:
            shapes: dict[str, object] = {}
            for name, key in COUNTERS:
                try:
                    value = admin.call("viewBrokerStatsData", side.broker, name, key)
                    shapes[f"{name} {key}"] = shape(value)
                except ClientError as error:
                    shapes[f"{name} {key}"] = error.code
            counters.append(shapes)
    assert counters[0] == counters[1]
    assert isinstance(counters[0][f"GROUP_ACK_NUMS {TOPIC}@{POPS}"], dict)
