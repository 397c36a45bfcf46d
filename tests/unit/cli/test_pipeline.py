"""``reput pipeline``: arguments become those of jobs, results become text, JSON and exit codes.

tests/unit/spark tests the jobs; here their tasks run in this process.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import golden
from reput.cli import main as cli
from spark.in_process import InProcess
from spark.jobs_setting import flip, log_place

Capture = pytest.CaptureFixture[str]
VERSION = "4.9.7"


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, str]]]:
    """Name, master and settings of each Spark session."""
    asked: list[tuple[str, str, dict[str, str]]] = []

    @contextlib.contextmanager
    def session(
        name: str, log_file: Path, master: str, settings: dict[str, str]
    ) -> Iterator[InProcess]:
        asked.append((name, master, settings))
        yield InProcess()

    monkeypatch.setattr("reput.spark.session.local_session", session)
    return asked


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """The broker.conf of the broker that wrote the golden stores."""
    config = golden.manifest(VERSION, "clean")["config"]
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    return path


def printed(capture: Capture, *arguments: object, code: int = 0) -> str:
    assert cli.run(["pipeline", *map(str, arguments)]) == code, capture.readouterr().err
    return capture.readouterr().out


def document(capture: Capture, *arguments: object, code: int = 0) -> Any:
    return json.loads(printed(capture, *arguments, "--json", code=code))


def complaint(capture: Capture, *arguments: object) -> str:
    assert cli.run(["pipeline", *map(str, arguments)]) == 2
    out, err = capture.readouterr()
    assert out == ""
    return err


def fields(text: str) -> dict[str, str]:
    """Return the fields before the first table, by name."""
    lines = text.split("\n\n")[0].splitlines()
    return {name: value.strip() for name, value in (line.split("  ", 1) for line in lines)}


def count_of_messages(name: str = "clean") -> int:
    return len(golden.messages(VERSION, name))


def test_dispatch_makes_queues_and_index(capsys: Capture, conf: Path, tmp_path: Path) -> None:
    store, target = golden.unpack(VERSION, "clean"), tmp_path / "made"
    text = printed(
        capsys, "dispatch", "--store", store, "--config", conf, "--target", target, "--utc"
    )
    assert fields(text)["messages"] == str(count_of_messages())
    assert fields(text)["written to"] == str(target)
    assert sorted(entry.name for entry in target.iterdir() if entry.is_dir()) == [
        "consumequeue",
        "index",
    ]


def test_a_dry_run_reports_differences(
    capsys: Capture, conf: Path, golden_copy: Callable[[str, str], Path]
) -> None:
    store = golden_copy(VERSION, "clean")
    dry = ("dispatch", "--store", store, "--config", conf, "--dry-run")
    assert "byte-identical  yes" in printed(capsys, *dry)
    queue = min((store / "consumequeue" / "GoldenOne").rglob("0" * 20))
    flip(queue, 7)
    result = document(capsys, *dry, code=1)
    assert [entry["topic"] for entry in result["difference"]["queues"]] == ["GoldenOne"]
    assert "byte-identical  no" in printed(capsys, *dry, code=1)


def test_audit_reports_lost_messages(
    capsys: Capture, tmp_path: Path, golden_copy: Callable[[str, str], Path]
) -> None:
    store, page = golden_copy(VERSION, "clean"), tmp_path / "audit.html"
    clean = printed(capsys, "audit", "--store", store, "--report", page)
    assert fields(clean)["lost"] == "0"
    assert fields(clean)["clean"] == "yes"
    assert page.read_text().startswith("<!doctype html>")
    lost = next(
        entry for entry in golden.messages(VERSION, "clean") if entry["topic"] == "GoldenOne"
    )
    flip(*log_place(store, lost["commitLogOffset"] + 4))
    result = document(capsys, "audit", "--store", store, code=1)
    assert result["lost_count"] == 1
    location = result["lost"][0]
    assert (location["topic"], location["queue_offset"]) == ("GoldenOne", lost["queueOffset"])
    assert "GoldenOne" in printed(capsys, "audit", "--store", store, code=1)


def test_salvage_recovers_every_intact_message(
    capsys: Capture, conf: Path, tmp_path: Path, golden_copy: Callable[[str, str], Path]
) -> None:
    store = golden_copy(VERSION, "clean")
    lost = next(
        entry for entry in golden.messages(VERSION, "clean") if entry["topic"] == "GoldenOne"
    )
    flip(*log_place(store, lost["commitLogOffset"] + 4))
    target = tmp_path / "clean"
    salvage = ("salvage", "--store", store, "--target", target, "--config", conf)
    text = printed(capsys, *salvage, code=1)
    assert f"{count_of_messages() - 1} messages" in fields(text)["recovered"]
    assert fields(text)["lost"].startswith("1 message")
    assert str(lost["commitLogOffset"]) in text
    assert "exists already" in complaint(capsys, *salvage)


def test_compare_reports_differences(
    capsys: Capture, golden_copy: Callable[[str, str], Path]
) -> None:
    left, right = golden.unpack(VERSION, "clean"), golden_copy(VERSION, "clean")
    same = printed(capsys, "compare", "--store", left, "--with", right)
    assert fields(same)["equal"] == "yes"
    (right / "config" / "topics.json").write_text("{}")
    result = document(
        capsys, "compare", "--store", left, "--with", right, "--section", "files", code=1
    )
    assert {entry["file"] for entry in result["findings"]} == {"config/topics.json"}


def test_archives_are_made_checked_and_restored(capsys: Capture, tmp_path: Path) -> None:
    store, kept, back = golden.unpack(VERSION, "clean"), tmp_path / "kept", tmp_path / "back"
    made = document(
        capsys, "archive", "--store", store, "--archive", kept, "--include-last", "--level", 3
    )
    assert made["messages"] == count_of_messages()
    assert fields(printed(capsys, "verify", "--archive", kept))["whole"] == "yes"
    text = printed(capsys, "restore", "--archive", kept, "--target", back)
    assert fields(text)["byte-identical"] == "yes"
    for path in golden.log_files(store):
        assert (back / "commitlog" / path.name).read_bytes() == path.read_bytes()
    part = max(kept.rglob("*.parquet"), key=lambda entry: entry.stat().st_size)
    flip(part, part.stat().st_size // 2)
    result = printed(capsys, "verify", "--archive", kept, "--quick", code=1)
    assert part.name in result


def test_follow_once_stops_at_the_log_end(capsys: Capture, conf: Path, tmp_path: Path) -> None:
    store, target = golden.unpack(VERSION, "clean"), tmp_path / "kept"
    follow = ("follow", "--store", store, "--target", target, "--config", conf, "--once")
    assert fields(printed(capsys, *follow))["caught up"] == "yes"
    again = document(capsys, *follow)
    assert again["records"] == 0
    assert again["log_end"] == again["store_end"]


def test_an_archive_is_compacted_by_topic(capsys: Capture, tmp_path: Path) -> None:
    store, kept = golden.unpack(VERSION, "clean"), tmp_path / "kept"
    printed(capsys, "archive", "--store", store, "--archive", kept)
    compact = ("compact", "--archive", kept, "--keep", "GoldenOne=forever", "--keep", "Golden.*=0s")
    would = document(capsys, *compact, "--dry-run")
    topics = {entry["topic"] for entry in would["topics"]}
    assert "GoldenFour" in topics
    assert "GoldenOne" not in topics
    assert "would remove" in printed(capsys, *compact, "--dry-run")
    assert document(capsys, *compact)["messages_dropped"] == would["messages_dropped"] > 0
    assert document(capsys, *compact)["messages_dropped"] == 0
    for wrong in ("GoldenOne", "GoldenOne=soon", "=7d"):
        assert "TOPICS=TIME" in complaint(capsys, "compact", "--archive", kept, "--keep", wrong)


def test_exclusive_options_are_checked(capsys: Capture, tmp_path: Path) -> None:
    assert "--with-namesrv" in complaint(capsys, "compare", "--store", tmp_path)
    both = ("--store", tmp_path, "--archive", tmp_path, "--keep", "a=1d")
    assert "--archive" in complaint(capsys, "compact", *both)


def test_spark_gets_its_options(capsys: Capture, sessions: list[Any], tmp_path: Path) -> None:
    run = ("archive", "--store", golden.unpack(VERSION, "clean"), "--archive", tmp_path / "kept")
    printed(capsys, *run, "--master", "spark://a:7077", "--conf", "spark.executor.memory=2g")
    assert sessions == [("reput archive", "spark://a:7077", {"spark.executor.memory": "2g"})]
    assert "NAME=VALUE" in complaint(capsys, *run, "--conf", "fast")


@pytest.mark.parametrize("command", ["dispatch", "salvage", "compare", "archive"])
def test_a_folder_without_a_store_is_refused(command: str, capsys: Capture, tmp_path: Path) -> None:
    others = {"compare": ["--with", tmp_path], "archive": ["--archive", tmp_path / "a"]}
    more = others.get(command, ["--target", tmp_path / "t"])
    assert str(tmp_path) in complaint(capsys, command, "--store", tmp_path, *more)


def test_times_are_checked(capsys: Capture, tmp_path: Path) -> None:
    run = ("restore", "--archive", tmp_path, "--target", tmp_path / "t")
    assert "--from" in complaint(capsys, *run, "--from", "yesterday")
