"""The report of a store: its numbers equal those of the store, whether or not keys were indexed."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import golden
from reput.cli import main as cli
from reput.spark.jobs.audit import run_audit
from reput.spark.jobs.running import SequentialRunner
from reput.spark.report import Agreement, Report, collect
from reput.store.files import paths
from reput.store.reader import StoreReader
from reput.store.verify import Severity, verify

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of Java whose broker has deleted two topics, and created one of them again."""
    root = golden.copy_store("4.9.7", "clean", tmp_path_factory.mktemp("report"))
    table = root / "config" / "topics.json"
    topics = json.loads(table.read_text())
    del topics["topicConfigTable"]["GoldenOne"]
    table.write_text(json.dumps(topics))
    # A topic that was created again has a tombstone, and a queue without files.
    end = StoreReader.open(str(root)).end_offset
    (root / paths.TOMBSTONES).write_text(json.dumps({"GoldenKeys": end}))
    for topic in ("GoldenOne", "GoldenKeys"):
        shutil.rmtree(root / "consumequeue" / topic)
    return root


@pytest.fixture(scope="module")
def report(spark: SparkSession, store: Path) -> Report:
    return collect(spark, str(store))


def test_numbers_agree_with_java_and_the_other_tools(store: Path, report: Report) -> None:
    """A deleted topic lacks no queues for any of them."""
    messages = golden.messages("4.9.7", "clean")
    assert report.messages == len(messages)
    assert report.bytes == sum(topic.bytes for topic in report.topics)
    assert report.bytes == sum(message["storeSize"] for message in messages)
    assert report.damage == []
    assert report.queue_agreement is not None
    assert report.queue_agreement.right > 0
    assert (report.queue_agreement.wrong, report.queue_agreement.missing) == (0, 0)
    index = golden.manifest("4.9.7", "clean")["index"]
    entries = sum(file["indexCount"] - 1 for file in index)  # Java counts entry 0, never used
    assert report.index_agreement == Agreement(entries, 0, 0)
    assert run_audit(SequentialRunner(), str(store)).lost_count == 0
    findings = verify(StoreReader.open(str(store))).findings
    assert all(finding.severity is Severity.NOTE for finding in findings)


def test_the_command_writes_the_page(
    spark: SparkSession,
    store: Path,
    report: Report,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        yield spark

    def collected(session: SparkSession, asked: Path, *_: object, allow_live: bool) -> Report:
        assert (session, str(asked), allow_live) == (spark, str(store), False)
        return dataclasses.replace(report)

    monkeypatch.setattr("reput.spark.session.local_session", session)
    monkeypatch.setattr("reput.spark.report.collect", collected)
    page = tmp_path / "page.html"
    arguments = ["pipeline", "report", "--store", str(store), "--report", str(page)]
    assert cli.run([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["messages"] == len(golden.messages("4.9.7", "clean"))
    assert f"{document['messages']:,}" in page.read_text(encoding="utf-8")
    assert cli.run(arguments) == 0
    text = capsys.readouterr().out
    assert "agree with the log" in text
    assert document["topics"][0]["topic"] in text
