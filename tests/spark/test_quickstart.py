"""The Python about Spark in the quickstart and in the README runs unchanged."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reput.client import Message
from reput.client.blocking import Producer
from reput.testing import LocalBroker

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[2] / "docs/quickstart/spark.md"


def test_the_blocks_run(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        # Relative paths are those of Spark's JVM, which runs in another folder.
        source = block.replace('"store"', repr(str(tmp_path / "store")))
        exec(compile(source, PAGE.name, "exec"), names)
    shown = capsys.readouterr().out
    assert "|refunded|  334|" in shown
    assert "wanted: topics in ['Orders']" in shown


def test_the_block_of_the_readme_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (PAGE.parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if "pyspark" in block]
    with LocalBroker(topics={"Orders": 4}, folder=tmp_path) as mq:
        with Producer("shop", namesrv=mq.namesrv_addr) as producer:
            for number in range(8):
                producer.send(Message("Orders", b"order", tags="paid", keys=f"order-{number}"))
        store = str(mq.store_folder)
    exec(compile(block.replace('"reput-data"', repr(store)), "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "order-7" in shown
    assert "|paid|    8|" in shown
