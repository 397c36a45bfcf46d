"""Tools of mqadmin that send messages or traces, or measure the time of a send."""

import re
import time

import pytest

from interop.mqadmin.sides import Both, Side, masked

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

TRACE_S = 10
RESULT = re.compile(r"^broker-a +(\d+) +SEND_OK +([0-9A-F]{32,})", re.MULTILINE)


@pytest.fixture
def topic(both: Both) -> str:
    """Provide a topic of one queue in both clusters."""
    name = "Sent"
    for side in both.sides:
        both.run(side, "updateTopic", "-b", "BROKER", "-t", name, "-r", "1", "-w", "1")
    return name


def test_a_message_is_sent(both: Both, topic: str) -> None:
    message = ("sendMessage", "-t", topic, "-p", "hello", "-k", "key", "-c", "Tag")
    assert "broker-a 0 SEND_OK MESSAGE" in both.prints(*message)
    assert "broker-a 0 SEND_OK MESSAGE" in both.prints(*message, "-b", "broker-a", "-i", "0")
    assert "Broker name must be set" in both.prints(*message, "-i", "0")
    text = both.prints("queryMsgByKey", "-t", topic, "-k", "key")
    assert text.count("MESSAGE") >= 2


def test_traces_of_a_message_are_found(both: Both, topic: str) -> None:
    ids = {side.namesrv: _traced(both, side, topic) for side in both.sides}

    def of(side: Side) -> list[str]:
        return ["-i", ids[side.namesrv]]

    text = both.prints("queryMsgTraceById", of=of, masks=[(r"TIME \d+ms", "TIME Nms")])
    assert "Pub TIME 127.0.0.1 TIME Nms success" in text


def _traced(both: Both, side: Side, topic: str) -> str:
    """Send until the trace of a message arrives; return its id. A tool may lose traces at exit."""
    for _ in range(5):
        text = both.run(side, "sendMessage", "-t", topic, "-p", "traced", "-m", "true")
        match = RESULT.search(text)
        assert match is not None, text
        deadline = time.monotonic() + TRACE_S
        while time.monotonic() < deadline:
            if "Pub" in both.run(side, "queryMsgTraceById", "-i", match[2]):
                return match[2]
    raise AssertionError(f"no trace of five messages, each in {TRACE_S} s")


def test_send_times_are_measured(both: Both, topic: str) -> None:
    masks = [(r"(true|false) \d+$", r"\1 N"), (r"(queueId|queueOffset)=\d+", r"\1=N")]
    text = both.prints("checkMsgSendRT", "-t", topic, "-a", "3", "-s", "16", masks=masks)
    assert text.count("broker-a 0 true N") == 3
    assert "Avg RT: N" in text
    text = both.prints("sendMsgStatus", "-b", "broker-a", "-s", "16", "-c", "2", masks=masks)
    assert text.count("sendStatus=SEND_OK") == 2


def test_send_times_of_a_cluster_are_measured_repeatedly(both: Both) -> None:
    """``clusterRT`` runs until it is killed, so it runs in a separate process."""
    rows = []
    for side in both.sides:
        command = ("clusterRT", "-a", "3", "-s", "16", "-i", "1")
        text = both.run_until("^DefaultCluster ", side, *command)
        text = re.sub(r"(?m)^.* \|-[A-Z]+ in .*\n", "", text)  # 5.x prints its log settings
        rows.append(re.sub(r"\d+\.\d\d", "RT", masked(text)))
    assert rows[0] == rows[1]
    assert "DefaultCluster broker-a RT 3 0" in rows[0]
