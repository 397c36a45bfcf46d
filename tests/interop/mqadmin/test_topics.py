"""Commands of mqadmin for topics."""

import json
import re
from pathlib import Path

import pytest

from interop.mqadmin.sides import Both

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


def test_topics_are_created_changed_shown_and_deleted(both: Both) -> None:
    text = both.prints("updateTopic", "-b", "BROKER", "-t", "Topic", "-r", "3", "-w", "3")
    assert "create topic to ADDRESS success." in text
    assert "success" in both.prints("updateTopic", "-c", "DefaultCluster", "-t", "Topic2")
    assert "conflict with system topic" in both.prints(
        "updateTopic", "-b", "BROKER", "-t", "TBW102"
    )
    assert "update topic perm from 6 to 4" in both.prints(
        "updateTopicPerm", "-t", "Topic", "-p", "4", "-b", "BROKER"
    )
    assert '"perm":4' in both.prints("topicRoute", "-t", "Topic").replace(": ", ":")
    assert "broker-a 2 0 0" in both.prints("topicStatus", "-t", "Topic")
    # 5.x has more system topics. Java creates the topics of transactions some time after its start,
    # and the retry topic of the tools' group only if an earlier tool sent a heartbeat.
    foreign = "RMQ_SYS_TRANS|%RETRY%TOOLS_CONSUMER" if both.is_4 else "^(?!.*(Topic|Messages))"
    text = both.prints("topicList", is_sorted=True, without=foreign)
    assert "Topic2" in text.splitlines()
    both.prints("topicList", "-c", is_sorted=True, without=foreign)
    for topic in ("Topic", "Topic2"):
        text = both.prints("deleteTopic", "-c", "DefaultCluster", "-t", topic)
        assert f"delete topic [{topic}] from cluster [DefaultCluster] success." in text
    assert "CODE: 17" in both.prints("topicRoute", "-t", "Topic")
    assert "CODE: 17" in both.prints("topicStatus", "-t", "Topic")
    text = both.prints("topicList", is_sorted=True, without=foreign)
    assert "Topic2" not in text.splitlines()


def test_unused_topics_and_queues_are_cleaned(both: Both) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert both.prints(command, "-b", "BROKER").strip() == "success"
        assert both.prints(command, "-c", "DefaultCluster").strip() == "success"
    assert "broker-a 0 0 3 TIME" in both.prints("topicStatus", "-t", "Messages")


def test_order_configuration_of_topics(both: Both) -> None:
    order = ("updateOrderConf", "-t", "Steps", "-m")
    assert "success" in both.prints(*order, "put", "-v", "broker-a:4")
    assert "orderConf=[broker-a:4]" in both.prints(*order, "get")
    assert "success" in both.prints(*order, "delete")
    assert "CODE: 22" in both.prints(*order, "get")


def test_queues_are_allocated(both: Both) -> None:
    text = both.prints("allocateMQ", "-t", "Messages", "-i", "10.0.0.1,10.0.0.2")
    assert text.count('"brokerName":"broker-a"') == 2


def test_topics_are_created_from_a_file(both: Both, tmp_path: Path) -> None:
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    file = tmp_path / "topics.json"
    topics = [
        {"topicName": f"Listed{i}", "readQueueNums": 2, "writeQueueNums": i, "perm": 6}
        for i in (1, 2)
    ]
    file.write_text(json.dumps(topics))
    text = both.prints("updateTopicList", "-b", "BROKER", "-f", str(file))
    assert "submit batch of topic config to ADDRESS success" in text
    both.await_text("Listed2", "topicList")
    assert '"writeQueueNums":1' in re.sub(": +", ":", both.prints("topicRoute", "-t", "Listed1"))
