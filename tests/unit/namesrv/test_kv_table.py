"""Shared settings: what Java's file holds, and never a lost one."""

import json
import logging
import os
from pathlib import Path

import pytest

from reput.errors import InvalidOption, WriteFailed
from reput.namesrv.kv_table import KvTable

OF_JAVA = '{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4"},"empty":{}}}'
"""As ``KVConfigSerializeWrapper.toJson`` of 4.9.7 prints it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def test_without_a_file(path: Path) -> None:
    table = KvTable(str(path))
    assert table.get("n", "k") is None
    assert table.namespace("n") is None
    assert not table.delete("n", "k")
    assert not path.exists()


def test_what_was_put_is_on_disk(path: Path) -> None:
    table = KvTable(str(path))
    table.put("n", "b", "1")
    table.put("n", "a", "ü\U0001f600")
    assert json.loads(path.read_text("ascii")) == {
        "configTable": {"n": {"a": "ü\U0001f600", "b": "1"}}
    }
    assert KvTable(str(path)).namespace("n") == {"a": "ü\U0001f600", "b": "1"}


def test_deleting_leaves_the_namespace(path: Path) -> None:
    """As Java: asked for afterwards, it is empty and not unknown."""
    table = KvTable(str(path))
    table.put("n", "k", "v")
    assert table.delete("n", "k")
    assert not table.delete("n", "k")
    assert table.namespace("n") == {}
    assert KvTable(str(path)).namespace("n") == {}


def test_the_file_of_a_java_name_server(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(OF_JAVA)
    table = KvTable(str(path))
    assert table.get("ORDER_TOPIC_CONFIG", "TopicA") == "broker-a:4"
    assert table.namespace("empty") == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"configTable":{"n":1}}', '{"configTable":{"n":{"k":1}}}', "\xff"],
)
def test_an_unreadable_file_stops_the_start_and_stays(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text, "latin-1")
    with pytest.raises(InvalidOption, match=r"kvConfigPath.*kvConfig\.json.*configTable"):
        KvTable(str(path))
    assert path.read_text("latin-1") == text


def test_a_folder_in_its_place(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(InvalidOption, match="Is a directory"):
        KvTable(str(path))


def test_a_missing_file_with_a_backup_is_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.with_name("kvConfig.json.bak").write_text(OF_JAVA)
    with caplog.at_level(logging.WARNING):
        assert KvTable(str(path)).namespace("ORDER_TOPIC_CONFIG") is None
    assert "kvConfig.json.bak" in caplog.text


def test_what_cannot_be_written_is_not_set(path: Path) -> None:
    table = KvTable(str(path))
    table.put("n", "k", "v")
    path.with_name(f"kvConfig.json.{os.getpid()}.tmp").mkdir()
    with pytest.raises(WriteFailed, match=r"kvConfig\.json"):
        table.put("n", "k", "w")
    with pytest.raises(WriteFailed, match=r"kvConfig\.json"):
        table.delete("n", "k")
    assert table.get("n", "k") == "v"
    table.put("n", "k", "v")  # as it is already
