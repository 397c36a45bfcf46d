"""Log lines: one line per event, whatever its text."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.cli import log_lines
from reput.errors import InvalidOption


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in {*root.handlers} - {*handlers}:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(*, as_json: bool = False) -> list[str]:
    """Return the lines of three events."""
    stream = io.StringIO()
    log_lines.begin("info", as_json=as_json, stream=stream)
    log = logging.getLogger("a.b")
    log.debug("below the level")
    log.info("started %s", "here", extra={"port": 10911, "path": "/a b", "empty": ""})
    log.warning("two\nlines")
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it failed")
    return stream.getvalue().splitlines()


def test_text() -> None:
    plain, two, failed = logged()
    time, rest = plain.split(" ", 1)
    assert time.endswith("Z")
    assert len(time) == len("2026-11-21T12:21:14.123Z")
    assert rest == 'INFO a.b started here port=10911 path="/a b" empty=""'
    assert two.endswith("WARNING a.b two\\nlines")
    assert " ERROR a.b it failed exception=" in failed
    text = json.loads(failed.partition("exception=")[2])
    assert text.startswith("Traceback")
    assert text.endswith("ValueError: no")


@pytest.mark.parametrize("as_json", [False, True])
def test_text_of_clients_forges_no_line(as_json: bool) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    log_lines.begin("info", as_json=as_json, stream=stream)
    hostile = "a\r\n2026 ERROR b\x1b[2J\x9b\u2028c\x85d\u202ee\ud800f"
    logging.getLogger("a.b").info("name %s", hostile, extra={"name_of": hostile})
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    text = stream.buffer.getvalue().decode()
    assert text.endswith("\n")
    assert text[:-1].isprintable()


def test_json() -> None:
    plain, two, failed = map(json.loads, logged(as_json=True))
    assert plain.pop("time")
    assert plain == {
        "level": "INFO",
        "logger": "a.b",
        "message": "started here",
        "port": 10911,
        "path": "/a b",
        "empty": "",
    }
    assert two["message"] == "two\nlines"
    assert "ValueError: no" in failed["exception"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_long_line_lacks_its_middle(as_json: bool) -> None:
    stream = io.StringIO()
    log_lines.begin("info", as_json=as_json, stream=stream)
    long = "<" + "x" * 4_000_000 + ">"
    try:
        raise ValueError(long)
    except ValueError:
        logging.getLogger("a").exception("group %s", long, extra={"topic": long, "names": [long]})
    text = stream.getvalue()
    assert len(text) < 4 * 10_000
    assert text.count("characters cut out") == 4
    assert "group <xxx" in text
    assert "x>" in text
    assert "Traceback" in text


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidOption, match="debug, info, warning, error, critical"):
        log_lines.begin("loud")


def test_a_file_is_replaced_at_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "FILE_BYTES", 1_000)
    monkeypatch.setattr(log_lines, "FILES_KEPT", 2)
    path = tmp_path / "broker.log"
    log_lines.begin("info", file=str(path))
    for number in range(100):
        logging.getLogger("reput.x").info("event %d", number)
    assert {file.name for file in tmp_path.iterdir()} == {
        "broker.log",
        "broker.log.1",
        "broker.log.2",
    }
    assert all(file.stat().st_size <= 1_000 for file in tmp_path.iterdir())
    newest = [path, tmp_path / "broker.log.1", tmp_path / "broker.log.2"]
    lines = [line for file in reversed(newest) for line in file.read_text().splitlines()]
    assert [int(line.split()[-1]) for line in lines] == list(range(100))[-len(lines) :]


def test_single_loggers_have_their_own_level() -> None:
    stream = io.StringIO()
    log_lines.begin("warning, reput.x=debug,reput.x.loud=error", stream=stream)
    try:
        for name in ("reput", "reput.x", "reput.x.loud"):
            logging.getLogger(name).info("information of %s", name)
            logging.getLogger(name).error("error of %s", name)
    finally:
        for name in ("reput.x", "reput.x.loud"):
            logging.getLogger(name).setLevel(logging.NOTSET)
    texts = [line.split(" ", 3)[3] for line in stream.getvalue().splitlines()]
    assert texts == [
        *("error of reput", "information of reput.x", "error of reput.x"),
        "error of reput.x.loud",
    ]


@pytest.mark.parametrize(
    ("levels", "file", "text"),
    [
        ("info,reput.x", None, "LEVEL,LOGGER=LEVEL"),
        ("info,reput.x=loud", None, "'loud'; allowed: debug, info"),
        ("info", "/no/such/folder/log", "a file that can be written: No such file or directory"),
    ],
)
def test_wrong_options_are_named(levels: str, file: str | None, text: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(text)):
        log_lines.begin(levels, file=file)
