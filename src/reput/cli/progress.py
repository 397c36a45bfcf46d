"""A progress bar on stderr for work that takes longer than a second."""

import sys
import time
from types import TracebackType
from typing import Any, Self

_PATIENCE_S = 1.0


class ProgressBar:
    """A progress bar that appears after a second, and only if stderr is a terminal."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, what: str, done: int, total: int) -> None:
        """Show the progress of a task. May be called from any thread, one at a time."""
        if not sys.stderr.isatty() or time.monotonic() - self._started < _PATIENCE_S:
            return
        if self._bars is None:
            self._bars = _new_bars()
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)


def _new_bars() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
