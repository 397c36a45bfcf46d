"""Logs of a server: one line an event, to stderr or to a file.

    2026-11-21T12:21:14.123Z WARNING reput.broker.registration cannot register server=10.0.0.1

Entries of ``extra`` follow the message as ``key=value``. A traceback is such a value as well,
quoted on the same line, so that programs that read lines get all of it. Control characters and
invalid UTF-8 are escaped: a client cannot forge a line with a name that it chooses. The middle of a
message or value of more than 8,192 characters is cut out, so that no line fills the disk.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from typing import TextIO

from reput.errors import InvalidOption

LETTERS_MAX = 8192
"""Maximum length of a message or value; a longer one is cut to its first and last 4,096."""
FILE_BYTES = 64 * 1024 * 1024
"""Size at which a log file is replaced, in bytes."""
FILES_KEPT = 10
"""Number of former log files that are kept."""
LEVELS = ("debug", "info", "warning", "error", "critical")

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PASSED_ON = "passed_on"
"""Attribute of a record that is a line of another process."""
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def begin(
    levels: str, *, as_json: bool = False, file: str | None = None, stream: TextIO | None = None
) -> None:
    """Send all logs of the process to a stream, or to a file.

    At ``FILE_BYTES`` the file is renamed to ``FILE.1``, the former ``FILE.1`` to ``FILE.2``, and so
    on; the oldest of more than ``FILES_KEPT`` is deleted.

    Args:
        levels: The lowest level that is written, one of ``LEVELS``; also those of single loggers,
            as ``info,reput.broker.replication=debug``.
        as_json: Write one JSON object a line.
        file: Path of the file; None for the stream.
        stream: The stream; stderr by default.

    Raises:
        InvalidOption: A level is not one of ``LEVELS``, or the file cannot be written.
    """
    level, *others = levels.split(",")
    by_logger = {"": level}
    for other in others:
        name, is_pair, own = other.partition("=")
        if not is_pair or not name.strip():
            raise InvalidOption("--log-level", levels, "LEVEL,LOGGER=LEVEL,...")
        by_logger[name.strip()] = own
    for text in by_logger.values():
        if text.strip().lower() not in LEVELS:
            raise InvalidOption("--log-level", text, ", ".join(LEVELS))
    handler: logging.Handler = logging.StreamHandler(stream or sys.stderr)
    if file is not None:
        try:
            handler = RotatingFileHandler(
                file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8"
            )
        except OSError as error:
            allowed = f"a file that can be written: {error.strerror}"
            raise InvalidOption("--log-file", file, allowed) from None
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for name, text in by_logger.items():
        logging.getLogger(name).setLevel(text.strip().upper())


def pass_on(line: str, **names: str) -> None:
    """Write a line of the log of a child process into the log of this process.

    Args:
        line: The line, as ``TextLines`` or ``JsonLines`` of the child have made it, or any text.
        names: Values that are added to it: ``broker="broker-a-0"``.
    """
    record = logging.LogRecord("", logging.INFO, "", 0, "", (), None)
    record.__dict__[_PASSED_ON] = line, names
    for handler in logging.getLogger().handlers:
        handler.handle(record)


class TextLines(logging.Formatter):
    """Formats lines for people and for ``grep``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        if _PASSED_ON in record.__dict__:
            line, names = record.__dict__[_PASSED_ON]
            words = [_one_line(line), *(f"{key}={_quoted(text)}" for key, text in names.items())]
            return " ".join(words)
        words = [
            _time(record),
            record.levelname,
            record.name,
            _one_line(_shortened(record.getMessage())),
        ]
        words += [f"{key}={_quoted(value)}" for key, value in _values(self, record).items()]
        return " ".join(words)


class JsonLines(logging.Formatter):
    """Formats lines for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        if _PASSED_ON in record.__dict__:
            line, names = record.__dict__[_PASSED_ON]
            return json.dumps({**_parsed(line), **names}, default=_text)
        values = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _shortened(record.getMessage()),
            **_values(self, record),
        }
        return json.dumps(values, default=_text)


def _parsed(line: str) -> dict[str, object]:
    """Return the values of a JSON line; of another line, such as a traceback's, its text."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    return values if isinstance(values, dict) else {"message": _shortened(line)}


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
    """Return a text, without its middle if it is too long."""
    if len(text) <= LETTERS_MAX:
        return text
    half = LETTERS_MAX // 2
    return f"{text[:half]}...({len(text) - LETTERS_MAX} characters cut out)...{text[-half:]}"


def _one_line(text: str) -> str:
    """Return text on one line, without escape sequences: much of it comes from clients."""
    return _escaped("\\n".join(text.splitlines()) if "\n" in text or "\r" in text else text)


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda match: repr(match[0])[1:-1], text)


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if is_plain else _escaped(json.dumps(text, ensure_ascii=False))
