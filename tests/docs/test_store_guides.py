"""The Python of the pages on salvage and compare runs unchanged, on golden stores."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import golden
from reput.spark.jobs import compare as compare_job
from reput.spark.jobs.compare import findings
from reput.spark.jobs.salvage import Salvaged
from spark.in_process import InProcess

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def blocks_of(page: str) -> list[str]:
    text = (HOW_TO / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    builder = SimpleNamespace(getOrCreate=InProcess)
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", builder)


def test_salvage_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(golden.unpack("4.9.7", "torn/crc-early"), tmp_path / "damaged")
    first, second = blocks_of("salvage-a-store.md")
    names: dict[str, object] = {}
    exec(compile(first, "salvage-a-store.md", "exec"), names)
    result = names["result"]
    assert isinstance(result, Salvaged)
    output = capsys.readouterr().out
    assert f"{result.record_count} recovered, {result.lost_count} lost" in output
    assert result.holes[0].reason in output
    exec(compile(second, "salvage-a-store.md", "exec"), names)
    assert f"at {result.holes[0].physical_offset} differs" in capsys.readouterr().out


def test_compare_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("left", "right"):
        shutil.copytree(golden.unpack("4.9.7", "clean"), tmp_path / side)
    golden.log_files(tmp_path / "right")[4].unlink()
    page = "compare-stores.md"
    names: dict[str, object] = {}
    stores, other_broker, live = blocks_of(page)
    exec(compile(stores, page, "exec"), names)
    assert "messages only_left" in capsys.readouterr().out
    exec(compile(other_broker, page, "exec"), names)
    result = names["result"]
    assert isinstance(result, compare_job.Comparison)
    assert result.counts["messages"]["only_left"] > 0
    assert result.sections == ("messages",)
    compile(live, page, "exec")  # tests/spark/test_compare.py runs these with other words.


def test_compare_stores_names_every_section_kind_and_field() -> None:
    text = (HOW_TO / "compare-stores.md").read_text()
    for name in (*compare_job.SECTIONS, *findings.KINDS, *compare_job.MATCHES):
        assert f"`{name}`" in text or f'"{name}"' in text, name
    for name in findings.Mismatch.__dataclass_fields__:
        assert f"`{name}`" in text, name


def test_salvage_a_store_names_every_field_of_the_result() -> None:
    text = (HOW_TO / "salvage-a-store.md").read_text()
    names = set(Salvaged.__dataclass_fields__) - {"source", "target", "start_offset", "end_offset"}
    assert all(f"`{name}`" in text for name in names)
