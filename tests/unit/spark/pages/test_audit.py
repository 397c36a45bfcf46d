"""The page of an audit: its content, and the escaping of a store's texts."""

import dataclasses
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import golden
import store_builder
from reput.spark.jobs.audit import run_audit
from reput.spark.jobs.audit.verdicts import AuditResult, GroupAudit
from reput.spark.jobs.running import SequentialRunner
from reput.spark.pages import audit as audit_page


def audited(store: Path, **options: Any) -> AuditResult:
    return run_audit(SequentialRunner(), str(store), now_ms=2_000_000_000_000, **options)


def parse(page: str) -> ET.Element:
    """Parse the page as XML, the strictest check; style and script are removed first."""
    bare = re.sub(r"(?s)<(style|script)>.*?</\1>", "", page.removeprefix("<!doctype html>"))
    return ET.fromstring(bare)


def words(page: str) -> str:
    return " ".join(" ".join(parse(page).itertext()).split())


@pytest.mark.parametrize("name", ["clean", "torn/log-missing"])
def test_each_number_is_on_the_page(name: str) -> None:
    result = audited(golden.unpack("4.9.7", name))
    text = words(audit_page.render(result))
    assert ("Clean" in text) is result.is_clean
    for topic in result.topics:
        assert topic.topic in text
        assert f"{topic.bytes:,}" in text
    for group in result.groups:
        assert group.group in text
        assert f"{group.pending_bytes:,}" in text
    for hole in result.holes:
        assert f"{hole.physical_offset:,}" in text
        assert f"{hole.lost_count:,}" in text
    for message in result.lost:
        assert f"{message.physical_offset:,}" in text


def test_the_page_gives_the_total_of_a_sample() -> None:
    result = audited(golden.unpack("4.9.7", "torn/log-missing"), sample=10)
    assert len(result.lost) == 10
    assert f"and {result.lost_count - 10:,} more messages" in words(audit_page.render(result))


def test_the_page_of_an_empty_store(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", [], has_next_file=True)
    assert "holds no messages" in words(audit_page.render(audited(built.root)))


def test_texts_of_a_store_are_escaped(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    result = audited(store_builder.build(tmp_path / "s", store_builder.messages(3)).root)
    topics = tuple(dataclasses.replace(topic, topic=bad) for topic in result.topics)
    groups = (GroupAudit(bad, bad, pending=1),)
    page = audit_page.render(dataclasses.replace(result, topics=topics, groups=groups, broker=bad))
    assert bad not in page
    assert bad in words(page)
    assert not list(parse(page).iter("script"))
