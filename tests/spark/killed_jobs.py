"""Jobs without a JVM, in processes that can be killed: ``process(name, source,
target).start()``."""

import multiprocessing
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from reput.spark.jobs.archive import archive
from reput.spark.jobs.dispatch import dispatch
from reput.spark.jobs.restore import restore
from reput.spark.jobs.salvage import salvage
from spark.in_process import InProcess
from spark.jobs_setting import settings

VERSION = "4.9.7"
NAMES = ("dispatch", "archive", "restore", "salvage")

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])  # or each start imports for a second


def process(name: str, source: Path, target: Path) -> ForkServerProcess:
    """Return a process that will run a job."""
    return _CONTEXT.Process(target=run, args=(name, str(source), str(target)))


def run(name: str, source: str, target: str) -> None:
    """Run a job to its end."""
    session, config = InProcess(), settings(VERSION)
    match name:
        case "dispatch":
            dispatch(session, source, config=config, target=target, range_bytes=100_000)
        case "archive":
            archive(session, source, target, include_last=True)
        case "restore":
            restore(session, source, target)
        case "salvage":
            salvage(session, source, target, config=config, partition_bytes=100_000)
