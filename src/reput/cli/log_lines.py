"""Logs of a server: one line an event, to stderr.

    2026-11-21T12:21:14.123Z WARNING reput.broker.registration cannot register server=10.0.0.1

What is given as ``extra`` becomes ``key=value`` behind the message. A traceback is a value, too, in
quotes on the same line, so that what reads lines loses none of it. Control characters and what is
no UTF-8 are spelt out: a name that a client chose forges no line. A message or value of more than
8,192 letters lacks its middle: nobody fills the disk with a line.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import TextIO

from reput.errors import InvalidOption

LETTERS_MAX = 8192
"""Of a message or a value; of a longer one the first and the last half of that are written."""
LEVELS = ("debug", "info", "warning", "error", "critical")

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def begin(level: str, *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Send all logs of the process to a stream.

    Args:
        level: The least that is written; one of ``LEVELS``.
        as_json: Write a JSON object a line.
        stream: Where to; stderr.

    Raises:
        InvalidOption: The level is none.
    """
    if level.lower() not in LEVELS:
        raise InvalidOption("--log-level", level, ", ".join(LEVELS))
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class TextLines(logging.Formatter):
    """Lines for people and for ``grep``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        words = [
            _time(record),
            record.levelname,
            record.name,
            _one_line(_shortened(record.getMessage())),
        ]
        words += [f"{key}={_quoted(value)}" for key, value in _values(self, record).items()]
        return " ".join(words)


class JsonLines(logging.Formatter):
    """Lines for what collects logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _shortened(record.getMessage()),
            **_values(self, record),
        }
        return json.dumps(line, default=_text)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _values(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, object]:
    values: dict[str, object] = {
        key: value if isinstance(value, int | float | None) else _text(value)
        for key, value in record.__dict__.items()
        if key not in _STANDARD
    }
    if record.exc_info:
        values["exception"] = _shortened(formatter.formatException(record.exc_info))
    if record.stack_info:
        values["stack"] = _shortened(record.stack_info)
    return values


def _text(value: object) -> str:
    return _shortened(str(value))


def _shortened(text: str) -> str:
    """Return a text without its middle, if it is too long."""
    if len(text) <= LETTERS_MAX:
        return text
    half = LETTERS_MAX // 2
    return f"{text[:half]}...({len(text) - LETTERS_MAX} letters left out)...{text[-half:]}"


def _one_line(text: str) -> str:
    """Return text on one line that no terminal takes for orders: much of it was sent by clients."""
    return _spelt_out("\\n".join(text.splitlines()) if "\n" in text or "\r" in text else text)


def _spelt_out(text: str) -> str:
    return _UNSAFE.sub(lambda match: repr(match[0])[1:-1], text)


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if is_plain else _spelt_out(json.dumps(text, ensure_ascii=False))
