"""Verifications of stores, each in a separate process: it reads every byte of a log.

``python -m reput.console.verifying PATH LIVE`` prints JSON lines: the progress, and at the end the
report or the problem. The process ends with the console. What verifies is imported there only.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from reput.clock import Clock, SystemClock
from reput.console.settings import StorePlace
from reput.errors import ReputError

ENTRIES_MAX = 2_000
"""Maximum number each of files, holes and findings in a report; more are counted."""
STEP_MS = 250
_LINE_BYTES_MAX = 64 << 20


class VerificationRuns(ReputError):
    """Refusal of a verification while another is running."""

    retriable = True


@dataclass
class Verification:
    """A verification of a store."""

    begun_ms: int
    part: str = ""
    done: int = 0
    total: int = 0
    ended_ms: int | None = None
    problem: str | None = None
    report: Mapping[str, Any] | None = None


class Verifications:
    """The last verification of each store; one runs at a time.

    Args:
        clock: The time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_store: dict[str, Verification] = {}
        self._task: asyncio.Task[None] | None = None
        self._running = ""

    def of(self, store: str) -> Verification | None:
        """Return the last verification of a store; None if it was never verified."""
        return self._by_store.get(store)

    @property
    def running(self) -> str:
        """Name of the store that is being verified; empty if none is."""
        return self._running if self._task is not None and not self._task.done() else ""

    def start(self, place: StorePlace) -> None:
        """Start to verify a store. Raises ``VerificationRuns``."""
        if self.running:
            raise VerificationRuns(f"store {self.running} is being verified; wait for its end")
        run = self._by_store[place.name] = Verification(self._clock.now_ms())
        self._running = place.name
        self._task = asyncio.create_task(self._run(place, run), name=f"verify {place.name}")

    async def close(self) -> None:
        """End a running verification."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Return when none runs."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self, place: StorePlace, run: Verification) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "reput.console.verifying"),
            *(place.path, "live" if place.may_be_live else ""),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                values = json.loads(line)
                if "report" in values:
                    run.report = values["report"]
                elif "problem" in values:
                    run.problem = values["problem"]
                else:
                    run.part, run.done, run.total = values["part"], values["done"], values["total"]
        except ValueError as error:
            run.problem = f"the report cannot be read: {error}"
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            run.ended_ms = self._clock.now_ms()
            if run.report is None and run.problem is None:
                run.problem = f"the process ended with code {process.returncode}"


def main(path: str, is_live: bool, output: TextIO, clock: Clock) -> None:
    """Verify a store and print the lines."""
    from reput.store import verify
    from reput.store.reader import StoreReader
    from reput.store.verify import documents

    shown_ms = -STEP_MS

    def progress(part: str, done: int, total: int) -> None:
        nonlocal shown_ms
        now_ms = clock.monotonic_ms()
        if now_ms - shown_ms >= STEP_MS:
            shown_ms = now_ms
            print(json.dumps({"part": part, "done": done, "total": total}), file=output, flush=True)

    try:
        result = verify.verify(StoreReader.open(path, allow_live=is_live), progress=progress)
    except ReputError as error:
        print(json.dumps({"problem": str(error)}), file=output, flush=True)
        return
    print(json.dumps({"report": shortened(documents.report(result))}), file=output, flush=True)


def shortened(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without files that are ok, and with the first of the other entries."""
    counts = Counter(file["verdict"] for file in report["files"])
    report["files"] = [file for file in report["files"] if file["verdict"] != "ok"]
    left_out = {}
    for name in ("files", "holes", "findings"):
        left_out[name] = max(0, len(report[name]) - ENTRIES_MAX)
        report[name] = report[name][:ENTRIES_MAX]
    return report | {"file_counts": dict(counts), "left_out": left_out}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "live", sys.stdout, SystemClock())
