"""Drivers and workers of a stream are killed at random: no result changes.

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

import seeds
import store_fixture
from reput.clock import ManualClock
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage, PutStatus

pytestmark = [pytest.mark.crash, pytest.mark.filterwarnings("ignore")]

WAIT_S = 300
KILLS = 50
DRIVERS = 0.12
"""Share of the kills that hit drivers; the others hit one of a driver's Python processes."""
PAUSE_S = 1.0
"""Longest time between a sign of life and a kill, in s."""
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
