"""Log lines for what clients do wrong: at most a few a second, however many do it.

A flood of bad requests must not fill the disk with log lines. Lines over the rate are counted, and
the next line that is written says how many were left out.
"""

import logging
from collections.abc import Callable

LINES_PER_S = 5
"""Lines of one kind per second."""
KINDS_MAX = 64
"""Kinds that are told apart; further ones share a rate."""


class ClientFaults:
    """Writes rate-limited lines.

    Args:
        log: Where to.
        now_s: Returns the monotonic time in seconds.
    """

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._windows: dict[str, tuple[int, int, int]] = {}  # kind -> second, lines, left out

    def warn(self, kind: str, text: str, *arguments: object) -> None:
        """Write a warning, unless there were too many of its kind in this second.

        Args:
            kind: What shares a rate: a limit's name, a kind of error. Never text from the wire.
            text: The line, with ``%s`` for arguments.
            arguments: What stands in it; text from the wire belongs here.
        """
        self._write(logging.WARNING, kind, text, arguments)

    def note(self, kind: str, text: str, *arguments: object) -> None:
        """Write what a client did and may do; arguments are those of ``warn``."""
        self._write(logging.INFO, kind, text, arguments)

    def bug(self, error: Exception, text: str, *arguments: object) -> None:
        """Write an error with its traceback: a request may bring about the same bug very often.

        Args:
            error: What was not expected.
            text: As of ``warn``.
            arguments: As of ``warn``.
        """
        self._write(logging.ERROR, "bug", text, arguments, error)

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
