"""Logs of a server: one line an event, to stderr.

    2026-11-21T12:21:14.123Z WARNING reput.broker.route cannot register name_server=10.0.0.1:9876

What is given as ``extra`` becomes ``key=value`` behind the message. A traceback is a value, too, in
quotes on the same line, so that what reads lines loses none of it.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from reput.errors import InvalidOption

LEVELS = ("debug", "info", "warning", "error", "critical")

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
        words = [_time(record), record.levelname, record.name, _one_line(record.getMessage())]
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
            "message": record.getMessage(),
            **_values(self, record),
        }
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _values(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, object]:
    values = {key: one for key, one in record.__dict__.items() if key not in _STANDARD}
    if record.exc_info:
        values["exception"] = formatter.formatException(record.exc_info)
    if record.stack_info:
        values["stack"] = record.stack_info
    return values


def _one_line(text: str) -> str:
    return "\\n".join(text.splitlines()) if "\n" in text or "\r" in text else text


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
