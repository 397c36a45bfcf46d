"""Jobs without a JVM, in processes that are killed: ``play(name, source, target, seconds)``."""

import multiprocessing
from pathlib import Path

from reput.spark.jobs.archive import archive
from reput.spark.jobs.dispatch import dispatch
from reput.spark.jobs.dispatch.follow import follow
from reput.spark.jobs.restore import restore
from reput.spark.jobs.salvage import salvage
from spark.in_process import InProcess
from spark.jobs_setting import settings

VERSION = "4.9.7"
NAMES = ("follow", "dispatch", "archive", "restore", "salvage")
WAIT_S = 300

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])  # or each start imports for a second


def play(name: str, source: Path, target: Path, lasts_s: float = WAIT_S) -> int | None:
    """Run a job in a process, and kill it if it lasts longer; return its exit code."""
    process = _CONTEXT.Process(target=run, args=(name, str(source), str(target)))
    process.start()
    process.join(lasts_s)
    process.kill()
    process.join(WAIT_S)
    return process.exitcode


def run(name: str, source: str, target: str) -> None:
    """Run a job to its end."""
    session, config = InProcess(), settings(VERSION)
    match name:
        case "archive":
            archive(session, source, target, include_last=True)
        case "restore":
            restore(session, source, target)
        case "dispatch":
            dispatch(session, source, config=config, target=target, range_bytes=20_000)
        case "follow":
            follow(
                session,
                source,
                target,
                config=config,
                range_bytes=20_000,
                until=lambda done: done.is_caught_up,
            )
        case "salvage":
            salvage(session, source, target, config=config, partition_bytes=100_000)
