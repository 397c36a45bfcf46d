"""``reput store``: its output for people, pipes and programs, and its errors."""

import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import golden
import reput
import store_builder
from reput.cli import main as cli
from reput.format import message as record
from reput.store.files import paths
from store_builder import message

ROOT = Path(__file__).parents[3]
HOW_TO = (ROOT / "docs" / "how-to" / "inspect-a-store.md").read_text(encoding="utf-8")
STORE = pytest.mark.parametrize(("version", "name"), golden.STORES)
COMMANDS = ("info", "ls", "show", "dump", "verify")
CLEAN = ("4.9.7", "clean")

Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return cli.run(["store", *map(str, arguments)])


def printed(capture: Capture, *arguments: object, code: int = 0) -> str:
    assert run(*arguments) == code, capture.readouterr().err
    return capture.readouterr().out


def document(capture: Capture, *arguments: object, code: int = 0) -> Any:
    return json.loads(printed(capture, *arguments, "--json", code=code))


def complaint(capture: Capture, *arguments: object) -> str:
    """Return the one line on stderr of a command with exit code 2."""
    assert run(*arguments) == 2
    out, err = capture.readouterr()
    assert out == ""
    assert err.startswith("reput: ")
    assert err.count("\n") == 1, err
    return err


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with seven messages, whose fields tests rely on."""
    root = tmp_path_factory.mktemp("small") / "store"
    store_builder.build(
        root,
        [
            message("TopicA", b"one", tags="red", keys="k1 k2", unique_key="A" * 32),
            message("TopicA", b"two", tags="blue", keys="k1", queue_id=1),
            message("TopicB", b'{"n":12345678901234567890}', tags="red"),
            message("TopicB", b"\x00\xff\x1b[31m"),
            message("TopicA", "zwölf\n\tZeilen".encode(), unique_key="B" * 32),
            message("TopicA", b"\x1b[31mred", keys="esc"),
            message("TopicA", b"", tags="red"),
        ],
        log_file_bytes=1024,
        has_next_file=True,
    )
    return root


# --- start ----------------------------------------------------------------


def python(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(["-c", code] if code else []), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    loaded = set(
        json.loads(
            python("import json, sys, reput.cli; print(json.dumps(list(sys.modules)))").stdout
        )
    )
    assert loaded.isdisjoint({"numpy", "typer", "rich", "pyarrow", "pyspark", "numba"})


def test_help_needs_neither_numpy_nor_rich() -> None:
    code = (
        "import sys, reput.cli.main as c; c.run(['store', 'verify', '--help']); print(*sys.modules)"
    )
    loaded = set(python(code).stdout.split())
    assert "typer" in loaded
    assert loaded.isdisjoint({"numpy", "rich", "pyarrow", "pyspark", "numba"})


def test_python_m_reput(small: Path) -> None:
    done = python("", "-m", "reput", "store", "info", str(small), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["location"] == str(small)
    printed = python("", "-m", "reput", "--version").stdout
    assert printed.splitlines()[0] == f"reput {reput.__version__}"
    assert printed.splitlines()[1].startswith("kernels: ")


def test_a_pipe_without_unicode_gets_escapes(small: Path) -> None:
    done = python("", "-m", "reput", "store", "dump", str(small), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "zw\\xf6lf" in done.stdout


# --- help -----------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: Capture, command: str) -> None:
    text = printed(capsys, command, "--help")
    assert f"Usage: reput store {command} [OPTIONS]" in text
    for option in re.findall(r"^  (--[\w-]+).*$", text, re.MULTILINE):
        line = text.split(f"  {option}", 1)[1].split("\n  --", 1)[0]
        assert re.search(r"[A-Z]\w+", line), f"{option} has no help"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_guide_has_every_command_and_option(capsys: Capture, command: str) -> None:
    assert f"reput store {command}" in HOW_TO
    for option in re.findall(r"^  (--[\w-]+)", printed(capsys, command, "--help"), re.MULTILINE):
        assert option == "--help" or f"`{option}" in HOW_TO, f"{command} {option}"


@pytest.mark.parametrize("arguments", [[], ["store"]])
def test_a_group_without_a_command_prints_help(capsys: Capture, arguments: list[str]) -> None:
    assert cli.run(arguments) == 0
    assert "Commands:" in capsys.readouterr().out


# --- info and ls ----------------------------------------------------------


@STORE
@pytest.mark.sampled(5)
def test_info_agrees_with_java(capsys: Capture, version: str, name: str) -> None:
    result = document(capsys, "info", golden.unpack(version, name))
    manifest = golden.manifest(version, name)
    messages = golden.messages(version, name)
    assert result["condition"] == ("crashed" if name == "unclean" else "clean")
    assert result["log"]["end"] == manifest["log"]["endOffset"]
    assert result["log"]["first_store_timestamp"] == messages[0]["storeTimestamp"]
    assert result["log"]["last_store_timestamp"] == messages[-1]["storeTimestamp"]
    assert result["log"]["missing"] == []
    assert result["tables"]["topics"] == len(manifest["topics"])
    if manifest["opened"]:
        counts = [queue["maxOffset"] - queue["minOffset"] for queue in manifest["queues"]]
        # Java keeps the minimum of a queue of which all messages have expired
        # (known-bugs.md#minimum-offsets).
        expected = len(messages) if name == "expired" else sum(counts)
        assert result["queues"]["message_count"] == expected
        assert result["index"]["file_count"] == len(manifest["index"])


def test_info_for_people(capsys: Capture, small: Path) -> None:
    fields = dict(
        re.split(r"\s{2,}", line, maxsplit=1)
        for line in printed(capsys, "info", small, "--utc").splitlines()
    )
    assert fields["condition"] == "clean"
    assert fields["log"].startswith("2 files of 1.0 KiB, physical offset 0 to ")
    assert fields["messages from"] == "2023-11-14T22:13:20.000Z"
    assert fields["queues"] == "3 of 2 topics, 7 messages"


def test_info_is_quick_on_a_thousand_log_files(capsys: Capture, tmp_path: Path) -> None:
    sparse_log(tmp_path, files=1000, file_bytes=1 << 30)
    cpu = os.times()
    result = document(capsys, "info", tmp_path)
    spent = os.times()
    assert result["log"]["file_count"] == 1001
    assert result["log"]["last_store_timestamp"] - result["log"]["first_store_timestamp"] == 999
    assert spent.user - cpu.user + spent.system - cpu.system < 1


def sparse_log(root: Path, files: int, file_bytes: int) -> None:
    """Write a log with one message at the start of each file, and one prepared file."""
    folder = root / paths.COMMIT_LOG
    folder.mkdir()
    for number in range(files + 1):
        start = number * file_bytes
        with (folder / paths.offset_name(start)).open("wb") as file:
            if number < files:
                (entry,) = store_builder.place(
                    [message("T", b"x", store_timestamp=store_builder.START_MS + number)],
                    file_bytes,
                    physical_offset=start,
                )
                data = record.encode(entry)
                blank = record.pack_blank(file_bytes - len(data)) if number < files - 1 else b""
                file.write(data + blank)
            file.truncate(file_bytes)


@pytest.mark.parametrize("what", ["log", "queues", "index", "topics", "groups"])
def test_a_listing_in_a_pipe_is_whole_and_plain(capsys: Capture, what: str) -> None:
    store = golden.unpack(*CLEAN)
    rows = document(capsys, "ls", store, "--what", what)[what]
    text = printed(capsys, "ls", store, "--what", what)
    assert "\x1b" not in text
    assert "…" not in text
    lines = text.splitlines()
    assert len(lines) == len(rows) + 1
    name = {"log": "name", "index": "name", "queues": "topic", "topics": "topic"}.get(what, "group")
    assert [line.split()[0] for line in lines[1:]] == [row[name] for row in rows]


def test_listings_agree_with_java(capsys: Capture) -> None:
    store, manifest = golden.unpack(*CLEAN), golden.manifest(*CLEAN)
    queues = document(capsys, "ls", store, "--what", "queues")["queues"]
    assert [
        (entry["topic"], entry["queue_id"], entry["min_offset"], entry["max_offset"])
        for entry in queues
    ] == sorted(
        (entry["topic"], entry["queueId"], entry["minOffset"], entry["maxOffset"])
        for entry in manifest["queues"]
        if entry["maxOffset"]
    )
    log = document(capsys, "ls", store)["log"]
    assert [(entry["name"], entry["size"]) for entry in log] == [
        (entry["name"], entry["size"]) for entry in manifest["log"]["files"]
    ]
    index = document(capsys, "ls", store, "--what", "index")["index"]
    assert [entry["begin_physical_offset"] for entry in index] == [
        entry["beginPhyOffset"] for entry in manifest["index"]
    ]
    groups = document(capsys, "ls", store, "--what", "groups")["groups"]
    assert len(groups) == sum(map(len, manifest["consumerOffsets"].values()))


def test_a_terminal_gets_a_drawn_table(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, small: Path
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    text = printed(capsys, "ls", small, "--what", "queues")
    assert "TopicA" in text
    assert "─" in text


# --- show -----------------------------------------------------------------


def shown(capture: Capture, *arguments: object) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = document(capture, "show", *arguments)["messages"]
    return result


def test_a_message_by_offset(capsys: Capture, small: Path) -> None:
    (first,) = shown(capsys, small, "--offset", 0)
    assert (first["topic"], first["body"], first["tags"]) == ("TopicA", "one", "red")
    assert first["keys"] == ["k1", "k2"]
    (same,) = shown(capsys, small, "--queue", "TopicA/0/0")
    assert same == first


def test_messages_by_key_and_id(capsys: Capture, small: Path) -> None:
    both = shown(capsys, small, "--key", "TopicA", "k1")
    assert [entry["body"] for entry in both] == ["one", "two"]
    (entry,) = shown(capsys, small, "--id", "A" * 32)
    assert entry == both[0]
    (two,) = shown(capsys, small, "--id", both[1]["offset_id"])
    assert two == both[1]


def test_messages_by_time(capsys: Capture, small: Path) -> None:
    times = [entry["store_timestamp"] for entry in dumped(capsys, small)]
    (third,) = shown(capsys, small, "--time", times[2] - 1)
    assert third["store_timestamp"] == times[2]
    moment = datetime.datetime.fromtimestamp(times[1] / 1000, datetime.UTC)
    (second,) = shown(capsys, small, "--time", moment.isoformat(timespec="milliseconds"))
    assert second["body"] == "two"
    naive = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    assert shown(capsys, small, "--time", naive, "--utc") == [second]
    (later,) = shown(capsys, small, "--queue", "TopicA/0", "--time", times[1])
    assert later["body"] == "zwölf\n\tZeilen"


def test_lookups_by_key_find_all_messages_with_the_key(capsys: Capture) -> None:
    store = golden.unpack(*CLEAN)
    asked = {(query["topic"], query["key"]) for query in golden.manifest(*CLEAN)["queries"]}
    for topic, key in sorted(asked)[::8]:
        expected = [
            entry["commitLogOffset"]
            for entry in golden.messages(*CLEAN)
            if entry["topic"] == topic
            and (key == entry["uniqKey"] or key in (entry["keys"] or "").split(" "))
        ]
        if expected and key:
            result = shown(capsys, store, "--key", topic, key, "--body", "none")
            assert [entry["physical_offset"] for entry in result] == expected
        else:
            assert "no message of" in complaint(capsys, "show", store, "--key", topic, key)


def test_a_message_is_extracted_from_its_batch(capsys: Capture) -> None:
    store = golden.unpack("5.5.0", "v5")
    (entry,) = shown(capsys, store, "--queue", "GoldenBatch-bcq/0/5")
    assert entry["queue_offset"] == 5
    assert len(shown(capsys, store, "--offset", entry["physical_offset"])) == 4


def test_ids_of_a_batch_find_each_message_inside(capsys: Capture) -> None:
    """Producers get the unique key of the batch as the id of their messages."""
    store, topic = golden.unpack("5.5.0", "v5"), "GoldenBatch-bcq"
    java = [entry for entry in golden.messages("5.5.0", "v5") if entry["topic"] == topic][1]
    inner = [(4 + i, f"bk{i}", java["commitLogOffset"]) for i in range(4)]
    for way in (
        ("--id", java["uniqKey"]),
        ("--id", java["offsetMsgId"]),
        ("--key", topic, java["uniqKey"]),
    ):
        hits = shown(capsys, store, *way)
        assert [
            (hit["queue_offset"], *hit["keys"], hit["physical_offset"]) for hit in hits
        ] == inner
        assert {hit["body_encoding"] for hit in hits} == {"text"}
    (first,) = shown(capsys, store, "--time", java["storeTimestamp"])
    assert (first["topic"], first["queue_offset"]) == (topic, 4)


@pytest.mark.parametrize(
    ("queue", "wanted", "encoding", "body"),
    [
        ("TopicB/0/0", "auto", "text", '{"n":12345678901234567890}'),
        ("TopicB/0/0", "json", "json", {"n": 12345678901234567890}),
        ("TopicB/0/0", "hex", "hex", b'{"n":12345678901234567890}'.hex()),
        ("TopicB/0/1", "auto", "hex", "00ff1b5b33316d"),
        ("TopicB/0/1", "json", "hex", "00ff1b5b33316d"),
        ("TopicB/0/1", "text", "text", "\x00\\xff\x1b[31m"),
        ("TopicA/0/3", "auto", "text", ""),
    ],
)
def test_bodies(
    capsys: Capture, small: Path, queue: str, wanted: str, encoding: str, body: object
) -> None:
    (entry,) = shown(capsys, small, "--queue", queue, "--body", wanted)
    assert (entry["body_encoding"], entry["body"]) == (encoding, body)


def test_no_body(capsys: Capture, small: Path) -> None:
    (entry,) = shown(capsys, small, "--offset", 0, "--body", "none")
    assert "body" not in entry
    assert entry["stored_body_size"] == 3


def test_a_message_for_people(capsys: Capture, small: Path) -> None:
    text = printed(capsys, "show", small, "--queue", "TopicA/0/1")
    assert re.search(r"^topic +TopicA$", text, re.MULTILINE)
    assert text.endswith("body\nzwölf\n\tZeilen\n")


def test_escape_sequences_do_not_reach_the_terminal(capsys: Capture, small: Path) -> None:
    for arguments in (["show", small, "--key", "TopicA", "esc"], ["dump", small]):
        text = printed(capsys, *arguments, "--body", "text")
        assert "\x1b" not in text
        assert "\\x1b[31mred" in text


# --- dump -----------------------------------------------------------------


def dumped(capture: Capture, *arguments: object) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in printed(capture, "dump", *arguments, "--json").splitlines()
    ]


@STORE
@pytest.mark.sampled(5)
def test_a_dump_has_the_messages_of_java(capsys: Capture, version: str, name: str) -> None:
    result = dumped(capsys, golden.unpack(version, name), "--body", "none")
    expected = golden.messages(version, name)
    offsets = [entry["physical_offset"] for entry in result]
    assert sorted(set(offsets)) == [entry["commitLogOffset"] for entry in expected]
    by_place = {entry["commitLogOffset"]: entry for entry in expected}
    for entry in result:
        java = by_place[entry["physical_offset"]]
        assert (entry["topic"], entry["queue_id"]) == (java["topic"], java["queueId"])
        assert entry["store_timestamp"] == java["storeTimestamp"]
        assert entry["offset_id"] == java["offsetMsgId"]


def test_a_dump_for_people_is_tab_separated(capsys: Capture, small: Path) -> None:
    lines = printed(capsys, "dump", small, "--utc").splitlines()
    assert len(lines) == 7
    time, offset, location, tags, keys, identity, body = lines[0].split("\t")
    assert (time, offset, location) == ("2023-11-14T22:13:20.000Z", "0", "TopicA/0/0")
    assert (tags, keys, identity, body) == ("red", "k1 k2", "A" * 32, "one")
    assert lines[4].endswith("\tzwölf\\n\\tZeilen")


def test_a_dump_of_some_messages(capsys: Capture, small: Path) -> None:
    everything = dumped(capsys, small)

    def bodies(*arguments: object) -> list[int]:
        return [everything.index(entry) for entry in dumped(capsys, small, *arguments)]

    second, last = everything[1], everything[-1]
    assert bodies("--topic", "TopicB") == [2, 3]
    assert bodies("--topic", "TopicB", "--topic", "TopicA", "--limit", 3) == [0, 1, 2]
    assert bodies("--tags", "red || green") == [0, 2, 6]
    assert bodies("--topic", "TopicA", "--tags", "red") == [0, 6]
    assert bodies("--from", second["physical_offset"]) == [1, 2, 3, 4, 5, 6]
    assert bodies("--from", second["physical_offset"] + 1) == [2, 3, 4, 5, 6]
    assert bodies("--to", second["physical_offset"]) == [0]
    assert bodies("--limit", 0) == []
    assert bodies("--topic", "TopicC") == []
    since = datetime.datetime.fromtimestamp(second["store_timestamp"] / 1000, datetime.UTC)
    until = datetime.datetime.fromtimestamp(last["store_timestamp"] / 1000, datetime.UTC)
    assert bodies("--from", since.isoformat(), "--to", until.isoformat()) == [1, 2, 3, 4, 5]
    assert bodies("--from", "2030-01-01") == []


def test_a_dump_reports_skipped_damage(capsys: Capture) -> None:
    store = golden.unpack("5.5.0", "torn/crc-late")
    assert run("dump", store, "--body", "none") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 767
    assert err.startswith("reput: skipped: ")
    assert "742435" in err
    assert err.count("\n") == 1


# --- verify ---------------------------------------------------------------


def test_a_sound_store(capsys: Capture, small: Path) -> None:
    result = document(capsys, "verify", small)
    assert result["verdict"] == "note"
    assert not result["is_damaged"]
    assert result["record_count"] == result["unit_count"] == 7
    text = printed(capsys, "verify", small)
    assert "waits for its first record" in text
    assert len(printed(capsys, "verify", small, "--all")) > len(text)


def test_a_damaged_store(capsys: Capture) -> None:
    store = golden.unpack("5.5.0", "torn/crc-late")
    result = document(capsys, "verify", store, code=1)
    assert result["is_damaged"]
    (hole,) = result["holes"]
    assert (hole["physical_offset"], hole["kind"]) == (742435, "log_hole")
    text = printed(capsys, "verify", store, code=1)
    assert re.search(r"^ 742435 +573 +00000000000000737280 +damage", text, re.MULTILINE)


# --- refusals -------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["info", "/nowhere"], "/nowhere does not exist"),
        (["info", __file__], "is a file; give the folder that contains commitlog/"),
        (["info", str(Path(__file__).parent)], "is no store: it has no folder commitlog"),
        (["info"], "Missing argument 'DIR'"),
        (["bogus"], "No such command 'bogus'"),
        (["info", "SMALL", "--bogus"], "No such option: --bogus"),
        (["ls", "SMALL", "--what", "moon"], "'moon' is not one of"),
        (["show", "SMALL"], "give one of --offset, --queue, --id, --key and --time"),
        (["show", "SMALL", "--offset", "0", "--id", "x"], "give one of"),
        (["show", "SMALL", "--offset", "-1"], "greater than or equal to 0"),
        (["show", "SMALL", "--offset", "1"], "physical offset 1: not a record"),
        (["show", "SMALL", "--offset", "9999"], "after the end of the log"),
        (["show", "SMALL", "--queue", "TopicA"], "TOPIC/ID/N"),
        (["show", "SMALL", "--queue", "TopicA/0"], "TOPIC/ID/N"),
        (["show", "SMALL", "--queue", "TopicA/x/1"], "TOPIC/ID/N"),
        (["show", "SMALL", "--queue", "TopicA/0/1", "--time", "0"], "TOPIC/ID/N"),
        (["show", "SMALL", "--queue", "TopicX/0/1"], "topic TopicX has no queue"),
        (["show", "SMALL", "--queue", "TopicA/7/1"], "topic TopicA has queues 0, 1"),
        (["show", "SMALL", "--queue", "TopicA/0/99"], "99"),
        (["show", "SMALL", "--queue", "TopicA/0", "--time", "2030-01-01"], "stored then or later"),
        (["show", "SMALL", "--time", "2030-01-01"], "no message was stored then or later"),
        (["show", "SMALL", "--time", "teatime"], "'teatime'; allowed: a time like 2026"),
        (["show", "SMALL", "--id", "nobody"], "no message of"),
        (["show", "SMALL", "--key", "TopicA", "nothing"], "no message of"),
        (["dump", "SMALL", "--from", "teatime"], "a physical offset, or a time"),
        (["dump", "SMALL", "--limit", "-1"], "greater than or equal to 0"),
        (["verify", "s3://"], "s3://"),
    ],
)
def test_refusals_are_one_line(
    capsys: Capture, small: Path, arguments: list[str], text: str
) -> None:
    filled = [str(small) if word == "SMALL" else word for word in arguments]
    assert text in complaint(capsys, *filled)


def test_a_store_in_use_needs_live(
    capsys: Capture, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reput.store.files.files import LocalFolder

    monkeypatch.setattr(LocalFolder, "lock_holder", lambda *_: 4711)
    assert "in use by process 4711" in complaint(capsys, "info", small)
    result = document(capsys, "info", small, "--live")
    assert (result["condition"], result["lock_holder"]) == ("running", 4711)
    assert len(dumped(capsys, small, "--live")) == 7


def test_a_bug_is_one_line_too_unless_debugged(
    capsys: Capture, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reput.store.reader import StoreReader

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a\nbug")

    monkeypatch.setattr(StoreReader, "open", fails)
    assert complaint(capsys, "info", small) == "reput: a bug in reput: RuntimeError: a bug\n"
    monkeypatch.setenv("REPUT_DEBUG", "1")
    with pytest.raises(RuntimeError):
        run("info", small)


def test_an_interrupted_command_prints_nothing(
    capsys: Capture, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reput.store.reader import StoreReader

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StoreReader, "open", interrupted)
    assert run("info", small) == 130
    assert capsys.readouterr() == ("", "")
