"""Commands of mqadmin for groups, their members and their consumer offsets."""

import contextlib
import json
import re
from pathlib import Path

import pytest

from interop.java_cluster import JavaMessage
from interop.mqadmin.sides import Both

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


def test_groups_are_created_shown_and_deleted(both: Both) -> None:
    text = both.prints("updateSubGroup", "-b", "BROKER", "-g", "Settings", "-r", "3", "-q", "2")
    assert "create subscription group to ADDRESS success." in text
    assert "retryMaxTimes = 3" in both.prints("getConsumerConfig", "-g", "Settings")
    text = both.prints("deleteSubGroup", "-b", "BROKER", "-g", "Settings", "-r", "true")
    assert "delete subscription group [Settings] from broker [ADDRESS] success." in text
    assert "Settings" not in both.run(both.ours, "getConsumerConfig", "-g", "Settings")


def test_connected_clients_are_shown(both: Both) -> None:
    with contextlib.ExitStack() as stack:
        for side in both.sides:
            stack.enter_context(both.java.push_consumer(side.namesrv, "Online", "Messages")).take(6)
            producer = stack.enter_context(both.java.producer(side.namesrv, "online-producer"))
            producer.send([JavaMessage("Topic3", b"body")])
        both.await_text("CONSUME_PASSIVELY", "consumerConnection", "-g", "Online")
        both.await_text("JAVA", "producerConnection", "-g", "online-producer", "-t", "Messages")
        text = both.prints("consumerConnection", "-g", "Online")
        assert "MessageModel: CLUSTERING" in text
        assert "CLIENT ADDRESS JAVA VERSION" in text
        text = both.prints("producerConnection", "-g", "online-producer", "-t", "Messages")
        assert "CLIENT ADDRESS JAVA VERSION" in text
        text = both.prints("consumerStatus", "-g", "Online")
        assert "Rebalance OK" in text
        text = both.prints(
            "producer", "-b", "BROKER", is_sorted=True, without="CLIENT_INNER_PRODUCER"
        )
        assert "online-producer" in text
    both.await_text("CODE: 206", "consumerConnection", "-g", "Online")
    both.prints("consumerConnection", "-g", "Online")
    assert "not exist" in both.prints(
        "producerConnection", "-g", "online-producer", "-t", "Messages"
    )


def test_progress_is_shown_and_reset(both: Both) -> None:
    with contextlib.ExitStack() as stack:
        consumers = []
        for side in both.sides:
            consumer = stack.enter_context(
                both.java.push_consumer(side.namesrv, "Progress", "Messages")
            )
            consumer.take(6)
            both.await_committed(side, consumer, "Progress")
            consumers.append(consumer)
        text = both.prints("consumerProgress", "-g", "Progress", without="%RETRY%")
        assert re.search("Messages broker-a 1 3 3 0 (0 )?TIME", text)
        assert "Progress 1 VERSION PUSH CLUSTERING" in both.run_masked("consumerProgress")
        # Run this tool once per process: it reuses a connection that it has closed.
        text = both.run_masked("brokerConsumeStats", "-b", "BROKER")
        assert "Messages Progress broker-a 1 3 3 0 TIME" in text
        assert "Messages Progress" in both.run_masked("statsAll", "-t", "Messages")
        text = both.prints("resetOffsetByTime", "-g", "Progress", "-t", "Messages", "-s", "0")
        assert "broker-a 1 0" in text
        for side, consumer in zip(both.sides, consumers, strict=True):
            consumer.take(6)  # all of them again, ten seconds after the reset
            both.await_committed(side, consumer, "Progress")
        text = both.prints("skipAccumulatedMessage", "-g", "Progress", "-t", "Messages")
        assert "broker-a 1 3" in text
    # Without members the tool sets the offsets itself; with 5.x the broker does it.
    reset = ("resetOffsetByTime", "-g", "Progress", "-t", "Messages", "-s")
    both.prints(*reset, "now")
    text = both.prints(*reset, "0")
    assert ("broker-a 1 3 3 0 0" if both.is_4 else "broker-a 1 0") in text
    progress = ("consumerProgress", "-g")  # 5.x has a column for pulled messages, too
    text = both.prints(*progress, "Progress", without="%RETRY%", is_same=both.is_4)
    assert re.search("Messages broker-a 1 3 0 3 (0 )?N/A", text)

    clone = ("cloneGroupOffset", "-s", "Progress", "-d", "Online", "-t", "Messages", "-o", "true")
    assert "clone group offset success" in both.prints(*clone)
    text = both.prints(*progress, "Online", without="%RETRY%", is_same=both.is_4)
    assert re.search("Messages broker-a 1 3 0 3 (0 )?N/A", text)


def test_groups_are_created_from_a_file(both: Both, tmp_path: Path) -> None:
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    file = tmp_path / "groups.json"
    file.write_text(json.dumps([{"groupName": f"Listed{i}", "retryMaxTimes": i} for i in (1, 2)]))
    text = both.prints("updateSubGroupList", "-b", "BROKER", "-f", str(file))
    assert "submit batch of group config to ADDRESS success" in text
    assert "retryMaxTimes = 2" in both.prints("getConsumerConfig", "-g", "Listed2")


def test_consume_mode_is_set(both: Both) -> None:
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    mode = ("setConsumeMode", "-b", "BROKER", "-t", "Messages", "-g", "Progress", "-m")
    for name in ("POP", "PULL"):
        text = both.prints(*mode, name, "-q", "1")
        assert f"consume mode[{name}] popShareQueueNum[1]" in text


def test_groups_are_monitored(both: Both) -> None:
    """``startMonitoring`` runs until it is killed; ``test_console`` covers its requests."""
    if both.is_secured:
        pytest.skip(
            "no such case: this tool's consumer signs nothing, so no broker with users serves it"
        )
    with contextlib.ExitStack() as stack:
        for side in both.sides:
            stack.enter_context(both.running(side, "startMonitoring"))
        both.await_text("CONSUME_PASSIVELY", "consumerConnection", "-g", "__MONITOR_CONSUMER")
        monitor = [(r"\S*MonitorService_-?\d+", "MONITOR")]
        text = both.prints("consumerConnection", "-g", "__MONITOR_CONSUMER", masks=monitor)
        assert "OFFSET_MOVED_EVENT" in text
