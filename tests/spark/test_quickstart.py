"""The quickstart for Spark runs unchanged."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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
