"""Log lines about clients' mistakes, limited to a few per second.

A flood of bad requests must not fill the disk with log lines. Lines over the limit are counted, and
the next written line has the number of omitted ones.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any

LINES_PER_S = 5
"""Lines of one kind per second."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
KINDS_MAX = 64
"""Kinds with separate limits; further ones share a limit."""


class ClientFaults:
    """Writes a limited number of lines per second.

    Args:
        log: The logger.
        now_s: Returns the monotonic time in seconds.
    """

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._windows: dict[str, tuple[int, int, int]] = {}  # kind -> second, lines, left out

    def warn(self, kind: str, text: str, *arguments: object) -> None:
        """Write a warning, unless there were too many of its kind in this second.

        Args:
            kind: Key of the limit: a limit's name, a kind of error. Never text from a client.
            text: The line, with ``%s`` for arguments.
            arguments: Values for the line; text from clients belongs here.
        """
        self._write(logging.WARNING, kind, text, arguments)

    def info(self, kind: str, text: str, *arguments: object) -> None:
        """Write about a normal action of a client; arguments are those of ``warn``."""
        self._write(logging.INFO, kind, text, arguments)

    def bug(self, error: Exception, text: str, *arguments: object) -> None:
        """Write an error with its traceback: requests may trigger the same bug very often.

        Args:
            error: The unexpected error.
            text: As of ``warn``.
            arguments: As of ``warn``.
        """
        self._write(logging.ERROR, "bug", text, arguments, error)

    def handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error of an event loop: its ``set_exception_handler`` takes this.

        asyncio reports each attempt to accept a connection without a descriptor, with a traceback,
        hundreds of times in a second.
        """
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            self.warn("accept", "no connection can be accepted: %s", error.strerror)
        else:
            loop.default_exception_handler(context)

    def _write(
        self,
        level: int,
        kind: str,
        text: str,
        arguments: tuple[object, ...],
        error: Exception | None = None,
    ) -> None:
        if kind not in self._windows and len(self._windows) >= KINDS_MAX:
            kind = ""
        second = int(self._now_s())
        started, lines, left_out = self._windows.get(kind, (second, 0, 0))
        if second != started:
            started, lines = second, 0
        if lines >= LINES_PER_S:
            self._windows[kind] = (started, lines, left_out + 1)
            return
        self._windows[kind] = (started, lines + 1, 0)
        if left_out:
            text += " (%d lines of this kind left out)"
            arguments += (left_out,)
        self._log.log(level, text, *arguments, exc_info=error)
