"""Drivers and workers are killed at random, tasks fail, run twice and are slow: no result changes.

The state that each job leaves at any moment is tested without a JVM, in tests/unit/spark.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import golden
import seeds
import store_fixture
from reput.clock import ManualClock
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage, PutStatus
from spark import killed_jobs

pytestmark = [pytest.mark.crash, pytest.mark.filterwarnings("ignore")]

IS_SOAK = "REPUT_SOAK" in os.environ
WAIT_S = 300
KILLS = 50
DRIVERS = 0.12
"""Share of the kills that hit drivers; the others hit one of a driver's Python processes."""
PAUSE_S = 1.0
"""Longest time between a sign of life and a kill, in s."""
KILLS_A_FOLDER = 3
MESSAGES_A_ROUND = 50
ROUNDS_A_SECOND = 4

Place = tuple[str, int, int, bytes]
_NEVER = threading.Event()

FOLLOWER = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

class Teller(StreamingQueryListener):
    def onQueryStarted(self, event): pass
    def onQueryIdle(self, event): pass
    def onQueryProgress(self, event): print("batch", event.progress.batchId, flush=True)
    def onQueryTerminated(self, event): pass

store, folder, how = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
)
spark.streams.addListener(Teller())
frame = (
    spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    .option("allowLive", "true").option("maxOffsetsPerTrigger", 4000).option("minPartitions", 4)
    .load(store).select("topic", "queue_id", "queue_offset", "body")
)
writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
if how == "to the end":
    writer.trigger(availableNow=True).start(f"{folder}/rows").awaitTermination()
    spark.read.parquet(f"{folder}/rows").coalesce(1).write.parquet(f"{folder}/all")
while how == "on and on":
    try:
        writer.start(f"{folder}/rows").awaitTermination()
    except Exception:  # the planner of a query was killed: start the query again
        print("again", flush=True)
"""


class Writer(threading.Thread):
    """A broker's store that grows until ``stop`` is called."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._stop_asked = threading.Event()
        self.places: list[Place] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        clock = ManualClock(store_fixture.START_MS)
        settings = store_fixture.config(
            self._root,
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20 * 3000,
        )
        try:
            store = MessageStore.open(config=settings, clock=clock, disk=store_fixture.RoomyDisk())
            while not self._stop_asked.wait(1 / ROUNDS_A_SECOND):
                self._put(store)
                for pause_ms in (0, 60_000):  # flushConsumeQueueThoroughInterval
                    clock.advance(pause_ms)
                    while store.step():
                        pass
            store.close()
        except BaseException as error:
            self.error = error
            raise

    def _put(self, store: MessageStore) -> None:
        for _ in range(MESSAGES_A_ROUND):
            number = len(self.places)
            topic, body = f"Topic{number % 3}", f"message {number}".encode()
            result = store.put(IncomingMessage(topic, body, queue_id=number % 4))
            assert result.status is PutStatus.PUT_OK
            self.places.append((topic, number % 4, result.queue_offset, body))

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()
        assert self.error is None


class Driver:
    """A driver in a separate process group."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        for stream, kept in ((self.process.stdout, self.lines), (self.process.stderr, self.errors)):
            threading.Thread(target=self._keep, args=(stream, kept), daemon=True).start()

    @staticmethod
    def _keep(stream: Any, kept: list[str]) -> None:
        kept.extend(stream)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true or the driver has ended."""
        deadline = time.monotonic() + WAIT_S
        while self.is_running and not condition():
            assert time.monotonic() < deadline, "".join(self.errors[-50:])
            _NEVER.wait(0.02)

    def wait_for_a_line(self) -> None:
        """Wait until the driver prints another line."""
        seen = len(self.lines)
        self.wait_for(lambda: len(self.lines) > seen)

    def python_workers(self) -> list[int]:
        """Return the Python processes below the JVM: workers, their parent, the planner."""
        children: dict[int, list[int]] = {}
        pythons = set()
        for pid, parent, command in _processes():
            children.setdefault(parent, []).append(pid)
            if b"python" in command.split(b"\0")[0]:
                pythons.add(pid)
        below, rest = [], [self.process.pid]
        while rest:
            pids = children.get(rest.pop(), [])
            below += pids
            rest += pids
        return sorted(pythons.intersection(below))

    def kill(self) -> None:
        """Kill the driver's Python and JVM; their child processes must notice that themselves."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _processes() -> Iterator[tuple[int, int, bytes]]:
    """Yield number, parent and command of all processes."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                yield int(folder.name), int(fields[1]), (folder / "cmdline").read_bytes()
            except OSError:
                continue


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files but the lock, which no process holds after a job has ended."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != paths.LOCK
    }


def source_of(name: str, folder: Path) -> Path:
    """Create the input of a job and return its folder."""
    if name == "salvage":
        return golden.unpack(killed_jobs.VERSION, "torn/log-missing")
    store = golden.unpack(killed_jobs.VERSION, "clean")
    if name != "restore":
        return store
    killed_jobs.run("archive", str(store), str(folder / "archive"))
    return folder / "archive"


@pytest.mark.parametrize("name", killed_jobs.NAMES if IS_SOAK else ("archive", "restore"))
@pytest.mark.sampled(9)
def test_a_killed_job_gives_the_same_files_when_run_again(name: str, tmp_path: Path) -> None:
    """Kill a job at random moments; the last run must leave the files of an undisturbed run."""
    source, chance = source_of(name, tmp_path), seeds.random("killed jobs", name)
    peace = killed_jobs.process(name, source, tmp_path / "peace")
    began = time.monotonic()
    peace.start()
    peace.join(WAIT_S)
    lasts_s = time.monotonic() - began
    assert peace.exitcode == 0
    for number in range(KILLS // 4 if IS_SOAK else 1):
        target = tmp_path / f"killed-{number}"
        for _ in range(KILLS_A_FOLDER):
            killed = killed_jobs.process(name, source, target)
            killed.start()
            killed.join(chance.uniform(0, lasts_s))
            killed.kill()
            killed.join(WAIT_S)
            if killed.exitcode == 0:
                break  # it ended before the kill
        else:
            last = killed_jobs.process(name, source, target)
            last.start()
            last.join(WAIT_S)
            # A process killed just before its end has already written everything.
            is_complete = target.exists() and files_of(target) == files_of(tmp_path / "peace")
            assert last.exitcode == 0 or is_complete
        assert files_of(target) == files_of(tmp_path / "peace")


@pytest.mark.soak
def test_a_stream_is_exactly_once_over_fifty_kills(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    chance = seeds.random("fifty kills")
    store, sink = tmp_path / "store", tmp_path / "sink"
    writer = Writer(store)
    writer.start()
    kills: Counter[str] = Counter()
    starts = 0
    driver: Driver | None = None
    try:
        while kills.total() < KILLS:
            if driver is None or not driver.is_running:
                driver = Driver(FOLLOWER, str(store), str(sink), "on and on")
                starts += 1
            if chance.random() < 0.8:
                driver.wait_for_a_line()
            kind = "driver" if chance.random() < DRIVERS else "worker"
            if kind == "worker":
                driver.wait_for(driver.python_workers)
            _NEVER.wait(chance.uniform(0, PAUSE_S))
            if not driver.is_running:
                continue
            if kind == "driver":
                driver.kill()
            else:
                workers = driver.python_workers()
                if not workers:
                    continue
                os.kill(chance.choice(workers), signal.SIGKILL)
            kills[kind] += 1
    finally:
        writer.stop()
        if driver is not None and driver.is_running:
            driver.kill()
    last = Driver(FOLLOWER, str(store), str(sink), "to the end")
    last.wait_for(lambda: False)
    assert last.process.returncode == 0, "".join(last.errors)
    (file,) = (sink / "all").glob("*.parquet")
    rows = pq.read_table(file).select(["topic", "queue_id", "queue_offset", "body"]).to_pylist()
    read = Counter(tuple(row.values()) for row in rows)
    written = Counter(writer.places)
    batches = 1 + max(int(line.split()[1]) for line in last.lines if "batch" in line)
    measured = {**kills, "starts": starts, "batches": batches, "rows": len(rows)}
    for name, value in measured.items():
        record_property(name, value)
    assert (read - written, written - read) == (Counter(), Counter())
