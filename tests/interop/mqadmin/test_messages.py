"""Commands of mqadmin that find and print messages."""

import re
from pathlib import Path

import pytest

from interop.mqadmin.sides import Both

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


def test_messages_are_found_by_key_id_and_offset(both: Both) -> None:
    assert "MESSAGE 1 1" in both.prints("queryMsgByKey", "-t", "Messages", "-k", "key3")
    assert "no message" in both.prints("queryMsgByKey", "-t", "Messages", "-k", "none")

    topic = [] if both.is_4 else ["-t", "Messages"]
    text = both.prints("queryMsgById", *topic, of=lambda side: ["-i", side.sent[4].offset_msg_id])
    assert "Keys: [key4]" in text
    text = both.prints("queryMsgByOffset", "-t", "Messages", "-b", "broker-a", "-i", "1", "-o", "2")
    assert "Keys: [key5]" in text
    # Java fails to find a message if its second began in another index file; ours always finds it.
    text = both.run(
        both.ours, "queryMsgByUniqueKey", "-t", "Messages", "-i", both.ours.sent[2].msg_id
    )
    assert re.search(r"Keys: +\[key2\]", text)


def test_messages_are_printed(both: Both) -> None:
    text = both.prints("printMsg", "-t", "Messages", "-d", "true", is_sorted=True)
    assert text.count("MSGID: MESSAGE") == 6
    assert "body5" in text


def test_units_of_queues_are_shown(both: Both) -> None:
    asked = ("queryCq", "-t", "Messages", "-b", "BROKER", "-c", "2")
    assert "max: 3, min: 0" in both.prints(*asked, "-q", "0", "-i", "1")
    assert "none@Messages is not online!" in both.prints(*asked, "-q", "0", "-i", "0", "-g", "none")
    assert "7@Messages is not exist!" in both.prints(*asked, "-q", "7", "-i", "0")
    # Java answers with success and an empty body, and its tool fails on that.
    text = both.run(both.ours, *asked, "-q", "0", "-i", "9")
    assert "Index 9 of 0@Messages is not exist!" in text


def test_messages_of_a_queue_are_printed_and_counted(both: Both) -> None:
    queue = ("printMsgByQueue", "-t", "Messages", "-a", "broker-a", "-i", "1")
    text = both.prints(*queue, "-p", "true", "-d", "true")
    assert [f"BODY: body{i}" in text for i in range(6)] == [False, True] * 3
    assert "Tag: Tag Count: 3" in both.prints(*queue, "-f", "true")


def test_messages_are_consumed(both: Both) -> None:
    consume = ("consumeMessage", "-t", "Messages")
    text = both.prints(*consume, "-b", "broker-a", "-i", "0", "-o", "1")
    assert text.count("Consume ok") == 1
    assert "BODY: body4" in text
    assert "BODY: body0" not in text
    text = both.prints(*consume, "-b", "broker-a", "-i", "0", "-c", "1")
    assert "message will be provided" in text
    text = both.prints(*consume, is_sorted=True)
    assert text.count("MSGID: MESSAGE") == 6
    assert "no matched msg, offset=9" in both.prints(
        *consume, "-b", "broker-a", "-i", "0", "-o", "9"
    )


def test_records_of_a_file_are_printed(both: Both, tmp_path: Path) -> None:
    """The tool reads logs of compacted topics; our commit log has the same records."""
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    data = min((both.conf.parent / "store/commitlog").iterdir()).read_bytes()
    end = 0
    while size := int.from_bytes(data[end : end + 4], "big"):
        end += size
    file = tmp_path / "log"
    file.write_bytes(data[:end])
    text = both.run(both.ours, "dumpCompactionLog", "-f", str(file))
    # The tool uses the text as a format, and fails on records with a percent sign in their topic.
    assert all(message.offset_msg_id in text for message in both.ours.sent)
