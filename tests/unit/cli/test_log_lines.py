"""Log lines: one an event, whatever it says."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from reput.cli import log_lines
from reput.errors import InvalidOption


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(*, as_json: bool = False) -> list[str]:
    """What three events look like."""
    stream = io.StringIO()
    log_lines.begin("info", as_json=as_json, stream=stream)
    log = logging.getLogger("a.b")
    log.debug("nobody sees this")
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


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidOption, match="debug, info, warning, error, critical"):
        log_lines.begin("loud")
