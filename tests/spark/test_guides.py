"""The Python code of the pages about Spark runs unchanged, on stores and a broker of ours.

What jobs do with all kinds of stores is tested without a JVM, in tests/unit/spark.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

import store_builder
from reput.client import Message, blocking
from reput.format import properties
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader
from reput.store.writing.incoming import IncomingMessage
from reput.testing import LocalBroker
from spark import reading
from spark.dispatch_setting import assert_same
from spark.live_traffic import queue

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).parents[2]
COUNT = 480
"""Messages of topic orders, 120 in each of four queues."""


def blocks_of(page: str) -> list[str]:
    """Return the blocks of Python of a page, or of the readme."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(page: str, **replaced: object) -> dict[str, Any]:
    """Run the blocks of a page below docs in order; return their names.

    Args:
        page: Path of the page.
        replaced: New text by the name of an old one: the folder ``/data/``, the ``broker``, ...
    """
    names: dict[str, Any] = {}
    old = {"data": "/data/", "backup": "/backup/", "broker": "10.0.0.5:9876", "store": '"store"'}
    for block in blocks_of(f"docs/{page}"):
        for name, text in {**replaced, "port=9109": "port=0"}.items():
            block = block.replace(old.get(name, name), str(text))
        exec(compile(block, page, "exec"), names)
    return names


def fill(store: Path, count: int, **settings: Any) -> None:
    config = StoreConfig(store_path_root_dir=str(store), **settings)
    with MessageStore.open(config=config) as opened:
        for number in range(count):
            text = properties.encode({"UNIQ_KEY": f"{number:032X}", "KEYS": f"order-{number} all"})
            body = bytes(number % 100)
            opened.put(IncomingMessage("orders", body, number % 2, text, 1_700_000_000_000))
            opened.step()


# --- stores -----------------------------------------------------------------


def test_archive_a_store(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, archived = tmp_path / "data" / "store", tmp_path / "backup" / "archive"
    fill(store, 200, mapped_file_size_commit_log=16 * 1024, max_message_size=8 * 1024)
    names = run(
        "how-to/archive-a-store.md",
        data=f"{store.parent}/",
        backup=f"{archived.parent}/",
    )
    assert names["checked"].is_whole
    assert names["result"].messages > 100
    assert "order-17" in capsys.readouterr().out
    rows = reading.read(store).rows[: names["result"].messages]
    for copy in (archived, tmp_path / "data" / "restored"):
        copied = reading.read(copy).messages
        assert [row["body"] for row in copied] == [row["body"] for row in rows], copy
    by_spark = spark.read.format("rocketmq").load(str(archived)).orderBy("physical_offset")
    assert [row["msg_id"] for row in by_spark.collect()] == [row["msg_id"] for row in rows]
    parquet = spark.read.parquet(str(archived / "messages"))
    assert (parquet.count(), "date" in parquet.columns) == (len(rows), True)


def test_audit_a_store(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store_builder.build(tmp_path / "store", store_builder.messages(5))
    run("how-to/audit-a-store.md")
    assert "No message is lost" in (tmp_path / "audit.html").read_text()


def test_rebuild_queues_and_index(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "store", 50)
    names = run("how-to/rebuild-queues-and-index.md", data=f"{tmp_path}/")
    assert names["done"].records == names["result"].records == 50
    for made in ("rebuilt", "followed"):
        assert_same(tmp_path / made, tmp_path / "store")


def test_quickstart(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Relative paths are those of Spark's JVM, which runs in another folder.
    run("quickstart/spark.md", store=repr(str(tmp_path / "store")))
    shown = capsys.readouterr().out
    assert "|refunded|  334|" in shown
    assert "wanted: topics in ['Orders']" in shown


def test_readme(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in blocks_of("README.md") if "pyspark" in block]
    messages = [
        store_builder.message("Orders", b"order", tags="paid", keys=f"order-{number}")
        for number in range(8)
    ]
    store = str(store_builder.build(tmp_path / "store", messages).root)
    exec(compile(block.replace('"reput-data"', repr(store)), "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "order-7" in shown
    assert "|paid|    8|" in shown


@pytest.mark.soak
def test_import_with_spark(spark: SparkSession, tmp_path: Path) -> None:
    run("how-to/import-with-spark.md", data=f"{tmp_path}/")
    for folder in ("imported", "small", "copy", "followed"):
        messages = [*StoreReader.open(str(tmp_path / folder)).messages()]
        sent = [message for message in messages if message.topic == "orders"]
        assert [message.tags for message in sent].count("new") == 1000


# --- brokers ----------------------------------------------------------------


def test_write_with_spark(spark: SparkSession, tmp_path: Path) -> None:
    topics = {"orders": 3, "orders-daily": 3, "copied": 3, "orders-copy": 3}
    with LocalBroker(topics=dict.fromkeys(topics, 4)) as mq:
        run("how-to/write-with-spark.md", data=f"{tmp_path}/", broker=mq.namesrv_addr)
        sent = {topic: mq.messages(topic, at_least=count) for topic, count in topics.items()}
    assert {topic: len(messages) for topic, messages in sent.items()} == topics
    values = [
        {message.message_id: (message.body, message.keys, message.queue_id) for message in messages}
        for messages in (sent["orders"], sent["orders-copy"])
    ]
    assert values[0] == values[1]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Return a folder that replaces /data, and the address of a name server; both have messages."""
    root = tmp_path_factory.mktemp("data")
    with LocalBroker(topics={"orders": 4}, folder=root / "live") as mq:
        with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
            for i in range(COUNT):
                message = Message("orders", b"%d" % i, tags=f"Tag{i % 3}", keys=f"order-{i}")
                producer.send(message, queue=queue(i % 4, "orders"))
        mq.messages("orders", at_least=COUNT)
        with blocking.Admin(mq.namesrv_addr) as admin:
            admin.create_group("billing")
            for queue_id in range(4):
                admin.update_consumer_offset("billing", queue(queue_id, "orders"), 110)
    shutil.copytree(root / "live", root / "store")
    with LocalBroker(folder=root / "live") as mq:
        yield {"data": f"{root}/", "broker": mq.namesrv_addr}


@pytest.mark.soak
def test_read_with_spark(
    spark: SparkSession, live: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    names = run("how-to/read-with-spark.md", **live)
    assert names["orders"].count() == names["live"].count() == COUNT
    rows = [tuple(row) for row in names["lags"].collect()]
    assert rows == [("billing", "orders", COUNT - 4 * 110)]
    shown = capsys.readouterr().out
    assert "order-17" in shown
    assert f"{COUNT // 4}\n" in shown
    assert "wanted: topics in ['orders'], tags in ['TagA']" in shown


@pytest.mark.soak
def test_stream_a_topic(
    spark: SparkSession, live: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    names = run("how-to/stream-a-topic.md", **live)
    assert capsys.readouterr().out == "0 0 None 0\n"
    listener = names["listener"]
    spark.streams.removeListener(listener)
    with urlopen(f"http://127.0.0.1:{listener.port}/metrics") as page:
        assert "# TYPE reput_stream_lag_messages gauge" in page.read().decode()
    listener.close()
    for folder in ("orders", "copied"):
        assert spark.read.parquet(f"{live['data']}{folder}").count() == COUNT
    assert names["orders"].isStreaming
