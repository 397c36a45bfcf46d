"""RocketMQ's own ``DefaultMessageStore`` on a folder: open and read it, or write messages into it.

``StoreOracle.java`` is compiled against the official jars of one version, once per user, and cached
next to those jars. Each call starts one Java process (about 1 s with 4.x, 2 s with 5.x) that opens
the folder **for writing**, as a broker does: pass a copy.

    view = JavaStore("5.5.0").open(folder, config, keys=[("Orders", "k1")])
    view.queues["Orders", 0].messages[17].body

There is no broker around the store. In 4.x the store itself would deliver delayed messages; that
is disabled. In 5.x the broker maps a ``DELAY`` property to ``SCHEDULE_TOPIC_XXXX`` and checks topic
and body lengths; here a ``Put`` is stored without these steps.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop.java_oracle import HERE, JavaError, jars, tool

SOURCE = HERE / "StoreOracle.java"
LOGBACK = HERE / "rmq.logback.xml"

# RocketMQ uses JDK internals to unmap buffers and to find their addresses.
OPEN_TO_ALL = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
POOLS = "-XX:MaxDirectMemorySize=4g"  # a limit; for transient store pools
QUICK_START = ("-Xmx256m", POOLS, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable")
FULL_SPEED = ("-Xms1g", "-Xmx1g", POOLS, "-XX:+UseG1GC", "-Xlog:disable")

TIMEOUT_SECONDS = 120.0
END = b'{"kind":"end"}'

Config = Mapping[str, str | int | bool]
"""Settings of the store or the broker, by Java's names: ``mappedFileSizeCommitLog``, ..."""

KeyQuery = tuple[str, str] | tuple[str, str, int, int, int]
"""Topic and key; the longer form adds the first and the last store time, and the maximum count."""

TimeQuery = tuple[str, int, int]
"""Topic, queue id and timestamp."""


# --- results of opening a store ---------------------------------------------


@dataclass(frozen=True, slots=True)
class JavaMessage:
    """A record as a consumer gets it. ``body`` as stored: a compressed body stays compressed."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    message_id: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    properties: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class JavaQueue:
    """A queue from its first to its last message.

    Attributes:
        messages: Messages by their place in the queue, in order. The place equals ``queue_offset``
            except in ``%LMQ%`` queues; the place of a batch contains its first message.
        holes: Places at which ``getMessage`` found nothing, and the status that it returned.
    """

    min_queue_offset: int
    max_queue_offset: int
    messages: dict[int, JavaMessage] = field(default_factory=dict)
    holes: dict[int, str] = field(default_factory=dict)

    @property
    def physical_offsets(self) -> list[int]:
        return [message.physical_offset for message in self.messages.values()]


@dataclass(frozen=True, slots=True)
class JavaTime:
    """``getOffsetInQueueByTime``; 4.x has no boundary types, there the last two are None."""

    queue_offset: int
    lower: int | None
    upper: int | None


@dataclass(frozen=True, slots=True)
class OpenCost:
    """Cost of opening a store.

    Attributes:
        wall_ms: Time from the start of the process until the store was open and dispatch had caught
            up, measured from outside.
        load_ms: Part of ``wall_ms`` in ``load()``, which recovers.
        start_ms: Part of ``wall_ms`` in ``start()`` and in waiting for dispatch.
        cpu_ms: CPU time of all threads since the start of the process.
    """

    wall_ms: float
    load_ms: float
    start_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class JavaView:
    """Java's view of a folder.

    Attributes:
        is_loaded: False: Java refused the folder; ``log`` has the reason, and the rest is empty.
        queues: Queues by topic and queue id.
        keys: Physical offsets that ``queryMessage`` found for each key query, at most 64.
        times: Offsets that Java returned for each time query.
        log: Warnings and errors that Java logged before the store was closed.
    """

    is_loaded: bool
    min_physical_offset: int
    max_physical_offset: int
    queues: dict[tuple[str, int], JavaQueue]
    keys: dict[KeyQuery, list[int]]
    times: dict[TimeQuery, JavaTime]
    log: list[str]
    cost: OpenCost


# --- puts and their answers -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Put:
    """A message to store, or with ``is_batch`` the body of a batch of messages.

    Properties are stored in their order. Hosts have the form ``192.0.2.1:10911`` or
    ``[fd00::1]:10911``; Java itself sets the bits of ``sys_flag`` for the latter (since 4.6).
    """

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 1_700_000_000_000
    born_host: str = "192.0.2.1:40000"
    store_host: str = "192.0.2.2:10911"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    is_batch: bool = False


@dataclass(frozen=True, slots=True)
class JavaPut:
    """``PutMessageResult``: its status (``PUT_OK``, ...) and, after an append attempt, more fields.

    ``message_id``: for a batch, the ids of all messages, separated by commas.
    """

    status: str
    append_status: str | None = None
    physical_offset: int | None = None
    size: int | None = None
    queue_offset: int | None = None
    store_timestamp: int | None = None
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class JavaWrite:
    """The answer to each put, and the log as in ``JavaView``."""

    puts: list[JavaPut]
    log: list[str]


@dataclass(frozen=True, slots=True)
class JavaBench:
    """Times of the puts of one thread, after the warm-up.

    Attributes:
        put_ms: Time until the last put returned.
        dispatched_ms: Time until all messages were in queues and index, too.
        cpu_ms: CPU time of all threads of the process during ``dispatched_ms``.
        statuses: Number of answers by status.
    """

    messages: int
    put_ms: float
    dispatched_ms: float
    cpu_ms: float
    statuses: dict[str, int]


# --- the store --------------------------------------------------------------


class JavaStore:
    """The store of one RocketMQ version.

    Raises:
        JavaUnavailable: A tool or the jars are missing.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self._java = tool("java")
        self._class_path = os.pathsep.join((str(_classes(version)), str(jars(version) / "*")))

    def open(
        self,
        folder: Path,
        config: Config | None = None,
        *,
        keys: Sequence[KeyQuery] = (),
        times: Sequence[TimeQuery] = (),
        crash: bool = False,
    ) -> JavaView:
        """Open a folder, which recovers it, and return everything that a client could read.

        Args:
            folder: Root directory of the store; it is changed.
            config: Settings; an unknown setting is an error.
            keys: Key queries.
            times: Time queries.
            crash: End as if killed, instead of shutting the store down.

        Raises:
            JavaError: Java threw an exception, or takes more than two minutes.
        """
        request = {"keys": keys, "times": times, "crash": crash}
        return _view(self._run("open", folder, config, request, QUICK_START), keys, times)

    def open_cost(self, folder: Path, config: Config | None = None) -> OpenCost:
        """Open a folder, close it, and return the cost of opening it. Raises ``JavaError``."""
        view = _view(self._run("open-time", folder, config, {}, FULL_SPEED))
        if not view.is_loaded:
            raise JavaError(f"Java refused {folder}: {view.log}")
        return view.cost

    def write(
        self,
        folder: Path,
        puts: Sequence[Put],
        config: Config | None = None,
        *,
        crash: bool = False,
    ) -> JavaWrite:
        """Put messages in sequence, and wait until they are in queues and index.

        Args:
            folder: Root directory; created if it is missing.
            puts: Messages to store.
            config: As for ``open``.
            crash: As for ``open``.

        Raises:
            JavaError: Java threw an exception, or refused the folder.
        """
        request = {"crash": crash}
        run = self._run("write", folder, config, request, QUICK_START, map(_put_line, puts))
        if not _view(run).is_loaded:
            raise JavaError(f"Java refused {folder}: {run.log}")
        return JavaWrite([JavaPut(**_snake(line)) for line in run.lines("put")], run.log)

    def bench(
        self,
        folder: Path,
        config: Config | None = None,
        *,
        messages: int = 200_000,
        body_bytes: int = 128,
        queues: int = 8,
        warm_up: int = 100_000,
    ) -> JavaBench:
        """Put messages with a unique key and one more key from one thread. Raises ``JavaError``."""
        request = {"messages": messages, "bodyBytes": body_bytes, "queues": queues}
        request["warmUp"] = warm_up
        (answer,) = self._run("bench", folder, config, request, FULL_SPEED).lines("bench")
        return JavaBench(**_snake(answer))

    def _run(
        self,
        command: str,
        folder: Path,
        config: Config | None,
        request: dict[str, Any],
        options: Sequence[str],
        further_lines: Iterator[dict[str, Any]] | Sequence[dict[str, Any]] = (),
    ) -> "_Run":
        request["config"] = {name: _setting(value) for name, value in (config or {}).items()}
        with tempfile.TemporaryDirectory(prefix="java-store-") as work:
            questions, log = Path(work, "questions"), Path(work, "log")
            with questions.open("w", encoding="ascii") as file:
                file.writelines(json.dumps(line) + "\n" for line in (request, *further_lines))
            arguments = [self._java, *options, *OPEN_TO_ALL]
            # 5.x unpacks a library into the former, and logs into the latter.
            arguments += [f"-Djava.io.tmpdir={work}", f"-Duser.home={work}"]
            arguments += ["-cp", self._class_path, "StoreOracle", command, str(folder.absolute())]
            # Folder names are topics, which may use any script.
            environment = os.environ | {"LC_ALL": "C.UTF-8"}
            with questions.open("rb") as stdin, log.open("wb") as stderr:
                start = time.perf_counter()
                with subprocess.Popen(
                    arguments,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    cwd=work,
                    env=environment,
                ) as process:
                    assert process.stdout is not None
                    watchdog = threading.Timer(TIMEOUT_SECONDS, process.kill)
                    watchdog.daemon = True
                    watchdog.start()
                    first = process.stdout.readline()  # is written when the store is open
                    wall_ms = (time.perf_counter() - start) * 1000
                    rest = process.stdout.read()
                    watchdog.cancel()
            lines = (first + rest).splitlines()
            if lines[-1:] != [END]:
                raise JavaError(f"{command} {folder}: {_cause(lines)}\n{_tail(log)}")
            answers = [json.loads(line) for line in lines]
            return _Run(answers, _log_lines(log), wall_ms)


@dataclass(frozen=True, slots=True)
class _Run:
    answers: list[dict[str, Any]]
    log: list[str]
    wall_ms: float

    def lines(self, kind: str) -> Iterator[dict[str, Any]]:
        """Return the lines of one kind, without the kind."""
        for answer in self.answers:
            if answer["kind"] == kind:
                yield {name: value for name, value in answer.items() if name != "kind"}


def _classes(version: str) -> Path:
    """Return the folder with ``StoreOracle.class``; compile it if this source is not cached."""
    digest = hashlib.sha256(SOURCE.read_bytes() + LOGBACK.read_bytes()).hexdigest()[:16]
    libraries = jars(version)
    folder = libraries.parent / f"store-oracle-{version}-{digest}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=libraries.parent, prefix=f".{folder.name}-") as work:
        new = Path(work, "classes")
        compiling = [tool("javac"), "-proc:none", "-nowarn", "-encoding", "UTF-8"]
        compiling += ["-cp", str(libraries / "*"), "-d", str(new), str(SOURCE)]
        subprocess.run(compiling, check=True)
        shutil.copy(LOGBACK, new)
        try:
            new.rename(folder)
        except OSError:  # another session was faster
            if not folder.is_dir():
                raise
    return folder


def _view(run: _Run, keys: Sequence[KeyQuery] = (), times: Sequence[TimeQuery] = ()) -> JavaView:
    (opened,) = run.lines("store")
    queues = {
        (line["topic"], line["queueId"]): JavaQueue(line["min"], line["max"])
        for line in run.lines("queue")
    }
    for line in run.lines("message"):
        topic, queue_id = line.pop("queue")
        place = line.pop("at")
        line["body"] = bytes.fromhex(line["body"])
        line["properties"] = line["properties"] or {}  # null: it has none
        # The first message of a batch represents it.
        queues[topic, queue_id].messages.setdefault(place, JavaMessage(**_snake(line)))
    for line in run.lines("hole"):
        topic, queue_id = line["queue"]
        queues[topic, queue_id].holes[line["at"]] = line["status"]
    return JavaView(
        is_loaded=opened["loaded"],
        min_physical_offset=opened.get("minPhysicalOffset", -1),
        max_physical_offset=opened.get("maxPhysicalOffset", -1),
        queues=queues,
        # One answer per question, in order; none if Java refused the store.
        keys={
            query: line["physicalOffsets"]
            for query, line in zip(keys, run.lines("key"), strict=opened["loaded"])
        },
        times={
            query: JavaTime(**_snake(line))
            for query, line in zip(times, run.lines("time"), strict=opened["loaded"])
        },
        log=run.log,
        cost=OpenCost(
            wall_ms=run.wall_ms,
            load_ms=opened["loadMillis"],
            start_ms=opened.get("startMillis", 0.0),
            cpu_ms=opened["cpuMillis"],
        ),
    )


def _put_line(put: Put) -> dict[str, Any]:
    return {
        "topic": put.topic,
        "queueId": put.queue_id,
        "body": put.body.hex(),
        "properties": dict(put.properties),
        "flag": put.flag,
        "sysFlag": put.sys_flag,
        "bornTimestamp": put.born_timestamp,
        "bornHost": put.born_host,
        "storeHost": put.store_host,
        "reconsumeTimes": put.reconsume_times,
        "preparedTransactionOffset": put.prepared_transaction_offset,
        "isBatch": put.is_batch,
    }


def _snake(line: dict[str, Any]) -> dict[str, Any]:
    """Convert ``queueId`` to ``queue_id``, and the duration ``putMillis`` to ``put_ms``."""
    return {
        "".join(f"_{c.lower()}" if c.isupper() else c for c in name.replace("Millis", "Ms")): value
        for name, value in line.items()
    }


def _setting(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cause(lines: list[bytes]) -> str:
    if lines and lines[-1].startswith(b'{"kind":"error"'):
        return str(json.loads(lines[-1])["error"])
    return f"Java died, or was killed after {TIMEOUT_SECONDS:.0f} s"


def _log_lines(log: Path) -> list[str]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[: lines.index("closing")] if "closing" in lines else lines


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]
