"""``reput export``: files of stores and brokers, and its errors."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import golden
from reput.cli.main import run
from reput.client import blocking
from reput.client.message import Message
from reput.testing import LocalBroker

TOPIC = "GoldenOne"


def sent(topic: str = TOPIC) -> list[dict[str, object]]:
    return [m for m in golden.messages("4.9.7", "clean") if m["topic"] == topic]


def test_a_topic_of_a_store_in_each_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(golden.unpack("4.9.7", "clean"))
    expected = [m["queueOffset"] for m in sent()]
    columns = ("--columns", "topic,queue_offset,body")
    for ending in ("parquet", "arrow", "jsonl", "csv"):
        file = tmp_path / f"orders.{ending}"
        assert run(["export", store, "--topic", TOPIC, "--to", str(file), *columns, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document == {
            "source": store,
            "file": str(file),
            "message_count": len(expected),
            "file_size": file.stat().st_size,
        }
    tables = (
        pq.read_table(tmp_path / "orders.parquet"),
        pa.ipc.open_file(tmp_path / "orders.arrow").read_all(),
    )
    assert [table["queue_offset"].to_pylist() for table in tables] == [expected, expected]
    lines = (tmp_path / "orders.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["queue_offset"] for line in lines] == expected
    assert {*json.loads(lines[0])} == {"topic", "queue_offset", "body", "body_encoding"}


def test_times_tags_and_other_options_select(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(golden.unpack("4.9.7", "clean"))
    times = sorted(int(str(m["storeTimestamp"])) for m in sent())
    file = tmp_path / "some.parquet"
    arguments = ["export", store, "--topic", TOPIC, "--to", str(file)]
    bounds = ["--from", str(times[10]), "--until", str(times[50]), "--tags", "TagA || TagB"]
    assert run([*arguments, *bounds, "--option", "includeBody=false"]) == 0
    chosen = [
        m["queueOffset"]
        for m in sent()
        if times[10] <= int(str(m["storeTimestamp"])) < times[50] and m["tags"] in ("TagA", "TagB")
    ]
    table = pq.read_table(file)
    assert table["queue_offset"].to_pylist() == chosen
    assert "body" not in table.schema.names
    assert f"messages  {len(chosen)}" in capsys.readouterr().out


def test_a_topic_of_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LocalBroker(topics={"T": 1}, folder=tmp_path / "store") as mq:
        with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
            producer.send(Message("T", b"one", keys=["k"]))
        mq.messages("T", at_least=1)
        file = tmp_path / "t.jsonl"
        assert run(["export", mq.namesrv_addr, "--topic", "T", "--to", str(file)]) == 0
    (row,) = map(json.loads, file.read_text().splitlines())
    assert (row["body"], row["keys"]) == ("one", ["k"])
    assert "messages  1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--to", "old.csv"], "option 'to' is 'old.csv'; allowed: the name of a new file, or"),
        (["--to", "a.xls"], "allowed: a file that ends in .parquet, .arrow, .jsonl, .csv"),
        (["--to", "a.csv", "--body", "hex"], "option 'body' is 'hex'; allowed: auto, text, base64"),
        (["--to", "a.csv", "--option", "topc=T"], "did you mean 'topic'?"),
        (["--to", "a.csv", "--option", "x"], "option '--option' is 'x'; allowed: NAME=VALUE"),
        (["--to", "a.csv", "--topic", "Nothing"], "topic 'Nothing' is not in"),
        ([], "Missing option '--to'"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.csv").write_text("mine")
    assert run(["export", str(golden.unpack("4.9.7", "clean")), *arguments]) == 2
    complaint = capsys.readouterr().err
    assert text in complaint
    assert complaint.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]
    assert Path("old.csv").read_text() == "mine"
