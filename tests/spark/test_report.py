"""The report of a store: its numbers equal those of the store, whether or not keys were indexed."""

import contextlib
import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Iterator
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
def report_of(spark: SparkSession) -> Callable[[str], Report]:
    """Return ``report_of(store)``: the report of an unchanged store, which is collected once."""

    @functools.cache
    def collect_once(store: str) -> Report:
        return collect(spark, store)

    return collect_once


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.sampled(9)
def test_queues_and_index_of_java_agree_with_the_log(
    version: str, spark: SparkSession, report_of: Callable[[str], Report]
) -> None:
    store = golden.unpack(version, "clean")
    report = report_of(str(store))
    messages = golden.messages(version, "clean")
    assert report.messages == len(messages)
    assert report.bytes == sum(topic.bytes for topic in report.topics)
    assert report.damage == []
    assert report.queue_agreement is not None
    assert report.queue_agreement.right > 0
    assert (report.queue_agreement.wrong, report.queue_agreement.missing) == (0, 0)
    assert report.index_agreement is not None
    # 5.5 indexes tags as well.
    entries = spark.read.format("rocketmq").option("view", "index").load(str(store)).count()
    assert report.index_agreement == Agreement(entries, 0, 0)
    assert entries > 0


def test_a_deleted_topic_lacks_no_queues_for_any_of_the_tools(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    table = store / "config" / "topics.json"
    topics = json.loads(table.read_text())
    del topics["topicConfigTable"]["GoldenOne"]
    table.write_text(json.dumps(topics))
    shutil.rmtree(store / "consumequeue" / "GoldenOne")
    # A topic that was deleted and created again has a tombstone, and a queue without files.
    reader = StoreReader.open(str(store))
    (store / paths.TOMBSTONES).write_text(json.dumps({"GoldenKeys": reader.end_offset}))
    shutil.rmtree(store / "consumequeue" / "GoldenKeys")
    report = collect(spark, str(store))
    assert report.queue_agreement is not None
    assert (report.queue_agreement.wrong, report.queue_agreement.missing) == (0, 0)
    assert run_audit(SequentialRunner(), str(store)).lost_count == 0
    findings = verify(StoreReader.open(str(store))).findings
    assert all(finding.severity is Severity.NOTE for finding in findings)


def test_the_command_writes_the_page(
    spark: SparkSession,
    report_of: Callable[[str], Report],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        yield spark

    def collect_once(session: SparkSession, store: Path, *_: object, allow_live: bool) -> Report:
        assert (session, allow_live) == (spark, False)
        return dataclasses.replace(report_of(str(store)))

    monkeypatch.setattr("reput.spark.session.local_session", session)
    monkeypatch.setattr("reput.spark.report.collect", collect_once)
    store, page = str(golden.unpack("4.9.7", "clean")), tmp_path / "page.html"
    arguments = ["pipeline", "report", "--store", store, "--report", str(page)]
    assert cli.run([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["messages"] == len(golden.messages("4.9.7", "clean"))
    assert f"{document['messages']:,}" in page.read_text(encoding="utf-8")
    assert cli.run(arguments) == 0
    text = capsys.readouterr().out
    assert "agree with the log" in text
    assert document["topics"][0]["topic"] in text
