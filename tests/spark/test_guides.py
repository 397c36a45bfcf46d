"""The Python code of the how-to pages about Spark runs unchanged, on a store and a broker of
ours."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

from reput.client import blocking
from reput.client.message import Message
from reput.testing import LocalBroker
from spark.live_traffic import queue

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.soak]

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
COUNT = 480
"""Messages of topic orders, 120 in each of four queues."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
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
        yield root, mq.namesrv_addr


def run(page: str, data: tuple[Path, str]) -> dict[str, object]:
    """Run the code blocks of a page in order; return their names."""
    root, address = data
    names: dict[str, object] = {}
    text = (PAGES / page).read_text()
    text = text.replace("/data/", f"{root}/").replace("10.0.0.5:9876", address)
    text = text.replace("port=9109", "port=0")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names


def test_read_with_spark(
    spark: SparkSession, data: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = run("read-with-spark.md", data)
    assert names["orders"].count() == names["live"].count() == COUNT  # type: ignore[attr-defined]
    lags: Any = names["lags"]
    assert [tuple(row) for row in lags.collect()] == [("billing", "orders", COUNT - 4 * 110)]
    shown = capsys.readouterr().out
    assert "order-17" in shown
    assert f"{COUNT // 4}\n" in shown
    assert "wanted: topics in ['orders'], tags in ['TagA']" in shown


def test_stream_a_topic(
    spark: SparkSession, data: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = run("stream-a-topic.md", data)
    assert capsys.readouterr().out == "0 0 None 0\n"
    listener: Any = names["listener"]
    spark.streams.removeListener(listener)
    with urlopen(f"http://127.0.0.1:{listener.port}/metrics") as page:
        assert "# TYPE reput_stream_lag_messages gauge" in page.read().decode()
    listener.close()
    for folder in ("orders", "copied"):
        assert spark.read.parquet(str(data[0] / folder)).count() == COUNT
    assert names["orders"].isStreaming  # type: ignore[attr-defined]


def test_import_with_spark(spark: SparkSession, tmp_path: Path) -> None:
    run("import-with-spark.md", (tmp_path, ""))
    for folder in ("imported", "small", "copy", "followed"):
        frame = spark.read.format("rocketmq").load(str(tmp_path / folder))
        assert frame.where("topic = 'orders' and tags = 'new'").count() == 1000
