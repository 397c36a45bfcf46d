"""The official name server, broker and clients, as processes that tests control.

    with JavaCluster("4.9.7", tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as cluster:
        with JavaClient("5.5.0", tmp_path / "client") as java:
            producer = java.producer(cluster.namesrv)
            results = producer.send([JavaMessage("T", b"one", tags="a")])
            consumer = java.push_consumer(cluster.namesrv, "group", "T")
            assert [message.body for message in consumer.take(1)] == [b"one"]
            print(java.mqadmin("topicList", namesrv=cluster.namesrv))

A ``JavaClient`` works with any name server address, ours or Java's, and with several at the same
time: each producer or consumer is a separate client with separate connections. Its calls block. In
a test whose event loop also serves reput, call them with ``await asyncio.to_thread(...)``.
"""

import base64
import contextlib
import itertools
import json
import os
import re
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from interop import java_oracle
from interop.java_oracle import HERE, JavaError
from interop.java_store import OPEN_TO_ALL
from ports import free_port, free_port_of_broker

DEFAULT_BROKERS = ("4.9.7",)
START_S = 180.0
STOP_S = 60.0
ANSWER_S = 60.0
PATIENCE_MS = 30_000
"""Timeout of a request of Java's clients, in ms, where a test gives none."""
TRIES = 20
CLOSED = re.compile("Remoting(SendRequest|Connect|Timeout)Exception")
"""Errors that a thread of Java's client gets if another thread closes its connection."""
GET_BROKER_CLUSTER_INFO = 106

# Options for a quick start at the cost of speed. Making TLS keys at the start takes seconds.
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xlog:disable")
NO_TLS = "-Dtls.server.mode=disabled"
SERVER_OPENS = (
    *OPEN_TO_ALL,
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)

Settings = Mapping[str, str | int | bool]
"""Settings by Java's names: of ``broker.conf``, or of a client (``sendMsgTimeout``, ...)."""

SMALL_FILES: Settings = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "haSendHeartbeatInterval": 5000,
}


WITHOUT_SPIN: Settings = {"transactionOpMsgMaxSize": 1, "transactionOpBatchInterval": 86_400_000}
"""Settings of 5.x: each op message is written at once. By default, a thread of a broker that has
ended a transaction never sleeps again (``TransactionalOpBatchService``): it takes a core."""


def broker_versions() -> tuple[str, ...]:
    """Return the versions of the official broker that tests run against."""
    return java_oracle.ALL_VERSIONS if java_oracle.wants_all_versions() else DEFAULT_BROKERS


# --- name server and broker ---------------------------------------------------


class JavaCluster:
    """A running name server and a running broker ``broker-a`` of cluster ``DefaultCluster``.

    Args:
        version: Version of RocketMQ.
        folder: Folder of the store (``folder/store``), logs and settings files; created if missing.
            An existing store is continued.
        settings: Further settings of ``broker.conf``.
        heap_megabytes: Heap size of the broker.
        namesrv: Address of a running name server; by default a Java name server is started.
        also: Addresses of further name servers at which the broker registers.
        jvm: JVM options of the broker, instead of those for a quick start.
        files: Content of further files by path below ``folder``, the home of RocketMQ.
        tls: Accept TLS as well, which is Java's default; the start then takes seconds longer.

    Raises:
        JavaUnavailable: A tool or the jars are missing.
        JavaError: It did not start in time; the text contains the end of its logs.
    """

    def __init__(
        self,
        version: str,
        folder: Path,
        settings: Settings | None = None,
        *,
        heap_megabytes: int = 512,
        namesrv: str | None = None,
        also: Sequence[str] = (),
        jvm: Sequence[str] = JVM,
        files: Mapping[str, str] | None = None,
        tls: bool = False,
    ) -> None:
        self.version = version
        self._tls = () if tls else (NO_TLS,)
        self.folder = folder
        self.store = folder / "store"
        self._java = java_oracle.tool("java")
        self._libraries = java_oracle.class_path(java_oracle.cluster_jars(version))
        self._heap_megabytes = heap_megabytes
        self._jvm = jvm
        self._settings = {**(WITHOUT_SPIN if version >= "5" else {}), **(settings or {})}
        self._own_namesrv = namesrv is None
        self._also = also
        self._namesrv_process: subprocess.Popen[bytes] | None = None
        self._broker_process: subprocess.Popen[bytes] | None = None
        self.store.mkdir(parents=True, exist_ok=True)
        configuration = folder / "conf"
        configuration.mkdir(exist_ok=True)
        write_logback(configuration)
        for name, text in (files or {}).items():
            (folder / name).write_text(text, encoding="utf-8")
        self.port = int(self._settings.pop("listenPort", 0)) or free_port_of_broker()
        namesrv_port = 0 if namesrv else free_port()
        self.namesrv = namesrv or f"127.0.0.1:{namesrv_port}"
        self.address = f"127.0.0.1:{self.port}"
        self.start()

    @property
    def broker_pid(self) -> int:
        assert self._broker_process is not None
        return self._broker_process.pid

    @property
    def namesrv_pid(self) -> int:
        assert self._namesrv_process is not None
        return self._namesrv_process.pid

    def start(self) -> None:
        """Start stopped processes on the same ports, and wait until the broker is registered."""
        if self._own_namesrv and self._namesrv_process is None:
            self._namesrv_process = self._launch(
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                {"listenPort": self.namesrv.rpartition(":")[2]},
                "namesrv",
                ("-Xms128m", "-Xmx128m", *JVM),
            )
        if self._broker_process is None:
            settings: Settings = {
                "brokerClusterName": "DefaultCluster",
                "brokerName": "broker-a",
                "brokerId": 0,
                "brokerIP1": "127.0.0.1",
                "listenPort": self.port,
                "namesrvAddr": ";".join((self.namesrv, *self._also)),
                "storePathRootDir": str(self.store),
                "storePathCommitLog": str(self.store / "commitlog"),
                "autoCreateTopicEnable": True,
                # Do not refuse messages because the machine is busy with tests.
                "waitTimeMillsInSendQueue": 60_000,
                **SMALL_FILES,
                **self._settings,
            }
            heap = f"{self._heap_megabytes}m"
            self._broker_process = self._launch(
                "org.apache.rocketmq.broker.BrokerStartup",
                settings,
                "broker",
                (f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=2g", *self._jvm),
            )
        self._await_registration()

    def stop(self) -> None:
        """Stop the broker as an operator would, then the name server. 5.x takes seconds."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """Kill both processes."""
        self._end(subprocess.Popen.kill)

    def kill_broker(self) -> None:
        """Kill only the broker; ``start`` starts it again."""
        self._broker_process = _ended(self._broker_process, subprocess.Popen.kill)

    def stop_broker(self) -> None:
        """Stop only the broker; ``start`` starts it again."""
        self._broker_process = _ended(self._broker_process, subprocess.Popen.terminate)

    def log(self) -> str:
        """Return the output of the processes, and the end of their logged warnings."""
        names = ("namesrv.out", "broker.out", "warnings.log")
        return "\n".join(
            f"--- {name}\n{(self.folder / name).read_text(errors='replace')[-3000:]}"
            for name in names
            if (self.folder / name).exists()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _launch(
        self, main_class: str, settings: Settings, name: str, options: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        lines = [f"{key}={_setting(value)}\n" for key, value in settings.items()]
        (self.folder / f"{name}.conf").write_text("".join(lines), encoding="utf-8")
        command = [self._java, *options, *self._tls, *SERVER_OPENS]
        command += [f"-Drocketmq.home.dir={self.folder}", f"-Duser.home={self.folder}"]
        command += [f"-Drmq.logback.configurationFile={self.folder / 'conf/rmq.logback.xml'}"]
        command += ["-cp", self._libraries, main_class, "-c", f"{name}.conf"]
        with (self.folder / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.folder
            )

    def _await_registration(self) -> None:
        processes = [
            process for process in (self._namesrv_process, self._broker_process) if process
        ]
        deadline = time.monotonic() + START_S
        while self.address not in cluster_text(self.namesrv):
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.05)
                    text = f"ended with {status} while it started\n{self.log()}"
                    self.kill()
                    raise JavaError(f"RocketMQ {self.version} {text}")
            if time.monotonic() > deadline:
                text = self.log()
                self.kill()
                raise JavaError(f"RocketMQ {self.version} took more than {START_S} s\n{text}")

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        self._broker_process = _ended(self._broker_process, how)
        self._namesrv_process = _ended(self._namesrv_process, how)


def write_logback(folder: Path) -> None:
    text = (HERE / "servers.logback.xml").read_text(encoding="utf-8")
    for part in ("namesrv", "broker", "tools"):
        (folder / f"logback_{part}.xml").write_text(text, encoding="utf-8")
    # 5.x reads this path; its logger is in another package.
    text = text.replace('"ch.qos', '"org.apache.rocketmq.logging.ch.qos')
    (folder / "rmq.logback.xml").write_text(text, encoding="utf-8")


def _ended(
    process: subprocess.Popen[bytes] | None, how: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    if process is None:
        return
    how(process)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def cluster_text(namesrv: str) -> str:
    """Return the cluster information of a name server, or "" if it does not answer yet."""
    host, _, port = namesrv.rpartition(":")
    header = json.dumps(
        {
            "code": GET_BROKER_CLUSTER_INFO,
            "language": "JAVA",
            "version": 399,
            "opaque": 1,
            "flag": 0,
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
            with connection.makefile("rb") as answer:
                (length,) = struct.unpack(">i", answer.read(4))
                return answer.read(length).decode(errors="replace")
    except (OSError, struct.error):
        return ""


# --- clients --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queue:
    """Message queue, as Java's clients name it."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class JavaMessage:
    """Message for a Java producer. ``keys``: several are separated by spaces."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int | None = None
    flag: int = 0
    wait: bool | None = None


class ClientError(Exception):
    """Exception of a Java client.

    Attributes:
        type: Class name, without the package.
        code: RocketMQ's response code, if the exception has one.
        text: Message of the exception.
        trace: Stack trace in Java.
    """

    def __init__(self, type: str, code: int | None, text: str, trace: str) -> None:  # noqa: A002
        super().__init__(f"{type} (code {code}): {text}")
        self.type = type
        self.code = code
        self.text = text
        self.trace = trace


@dataclass(frozen=True, slots=True)
class JavaSent:
    """``SendResult``. ``status``: ``SEND_OK``, ...; ids of a batch are joined by commas."""

    status: str
    msg_id: str
    offset_msg_id: str
    queue: Queue
    queue_offset: int
    transaction_id: str | None
    region_id: str | None


@dataclass(frozen=True, slots=True)
class JavaReceived:
    """Message as received by a Java consumer, with its body uncompressed.

    Attributes:
        msg_id: Unique key, if the message has one.
        offset_msg_id: Offset id, made of store address and physical offset.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    msg_id: str
    offset_msg_id: str
    body: bytes
    tags: str | None
    keys: str | None
    properties: dict[str, str]
    flag: int
    sys_flag: int
    reconsume_times: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    prepared_transaction_offset: int


@dataclass(frozen=True, slots=True)
class JavaPulled:
    """``PullResult``. ``status``: ``FOUND``, ``NO_NEW_MSG``, ..."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[JavaReceived]


class JavaClient:
    """Java process with the client jars of a version; its methods create the clients in it.

    Args:
        version: Version of RocketMQ.
        work: Folder for logs, local consumer offsets, and the settings of the admin tools.
        properties: System properties of Java.

    Raises:
        JavaUnavailable: A tool or the jars are missing.
    """

    def __init__(
        self, version: str, work: Path, *, properties: Mapping[str, str] | None = None
    ) -> None:
        self.version = version
        self.has_lite_pull = version != "4.5.2"
        libraries = java_oracle.cluster_jars(version)
        names = ["ClientOracle.java", "FrameOracle.java", "Signing.java"]
        names += ["LitePullOracle.java"] if self.has_lite_pull else []
        sources = [HERE / name for name in names]
        classes = java_oracle.classes(f"client-oracle-{version}", sources, [libraries])
        (work / "conf").mkdir(parents=True, exist_ok=True)
        write_logback(work / "conf")
        self._log = work / "stderr.txt"
        command = [java_oracle.tool("java"), "-Xmx256m", *JVM, *SERVER_OPENS]
        command += [f"-Duser.home={work}", f"-Drocketmq.home.dir={work}"]
        command += [f"-Djava.io.tmpdir={work}"]
        command += [f"-D{key}={value}" for key, value in (properties or {}).items()]
        command += [f"-Drmq.logback.configurationFile={work / 'conf/rmq.logback.xml'}"]
        command += ["-Drocketmq.client.logLevel=WARN", f"-Drocketmq.client.logRoot={work}"]
        command += ["-cp", java_oracle.class_path(classes, libraries), "ClientOracle"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=work,
                env=os.environ | {"LC_ALL": "C.UTF-8"},
            )
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._listeners: dict[str, Callable[[dict[str, Any]], None]] = {}
        self._is_dead = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def producer(self, namesrv: str, group: str = "java-producer", **settings: Any) -> "Producer":
        """Start a ``DefaultMQProducer``; settings are its setters: ``sendMsgTimeout=1000``."""
        return Producer(self, "producer", {"group": group}, self._settings(namesrv, settings))

    def push_consumer(
        self,
        namesrv: str,
        group: str,
        topic: str | None = None,
        expression: str = "*",
        *,
        subscriptions: Mapping[str, str] | None = None,
        sql: bool = False,
        orderly: bool = False,
        broadcasting: bool = False,
        from_where: str = "CONSUME_FROM_FIRST_OFFSET",
        laters: int = 0,
        **settings: Any,
    ) -> "PushConsumer":
        """Start a ``DefaultMQPushConsumer``.

        Args:
            namesrv: Address of a name server, or several separated by semicolons.
            group: Consumer group.
            topic: Subscribed topic.
            expression: Tags, or a SQL92 condition with ``sql``.
            subscriptions: Further topics, each with its tags or condition.
            sql: The expressions are SQL92.
            orderly: One thread per queue, which is locked.
            broadcasting: Each consumer gets every message, and keeps its offsets in a file.
            from_where: First position of a new group: ``CONSUME_FROM_LAST_OFFSET``,
                ``CONSUME_FROM_FIRST_OFFSET``, or ``CONSUME_FROM_TIMESTAMP`` with the setting
                ``consumeTimestamp="20260131235959"``.
            laters: The listener returns ``RECONSUME_LATER`` while a message has fewer attempts.
            settings: Setters of the consumer: ``consumeMessageBatchMaxSize=16``.
        """
        wanted = {**({topic: expression} if topic else {}), **(subscriptions or {})}
        settings["consumeFromWhere"] = from_where
        if broadcasting:
            settings["messageModel"] = "BROADCASTING"
        request = {
            "group": group,
            "orderly": orderly,
            "laters": laters,
            "subscriptions": [
                {"topic": name, "expression": text, "type": "SQL92" if sql else "TAG"}
                for name, text in wanted.items()
            ],
        }
        return PushConsumer(self, "push", request, self._settings(namesrv, settings))

    def pull_consumer(self, namesrv: str, group: str, **settings: Any) -> "PullConsumer":
        """Start a ``DefaultMQPullConsumer``."""
        return PullConsumer(self, "pull", {"group": group}, self._settings(namesrv, settings))

    def lite_pull_consumer(
        self,
        namesrv: str,
        group: str,
        topic: str | None = None,
        expression: str = "*",
        **settings: Any,
    ) -> "LitePullConsumer":
        """Start a ``DefaultLitePullConsumer``; without a topic, for use with ``assign``."""
        request = {"group": group, "topic": topic, "expression": expression}
        settings.setdefault("consumeFromWhere", "CONSUME_FROM_FIRST_OFFSET")
        return LitePullConsumer(self, "lite", request, self._settings(namesrv, settings))

    def admin(self, namesrv: str, **settings: Any) -> "Admin":
        """Start a ``DefaultMQAdminExt``."""
        return Admin(self, "admin", {}, self._settings(namesrv, settings))

    def mqadmin(self, *arguments: str, namesrv: str) -> str:
        """Run the admin tool in this process; return its output, or a stack trace if it failed.

        The tool ends the process if it rejects its arguments. In 4.5.2 two threads that both need a
        connection to a name server close each other's, and lose the requests on it
        (``NettyRemotingClient.createChannel``): the tool is then run again.
        """
        for _ in range(TRIES if self.version == "4.5.2" else 1):
            printed = str(self.ask("mqadmin", arguments=[*arguments, "-n", namesrv]))
            if not CLOSED.search(printed):
                break
        return printed

    def encode_frame(self, **command: Any) -> bytes:
        """Return a frame as Java's encoder writes it; see ``FrameOracle.java``."""
        return base64.b64decode(self.ask("encode", **command))

    def decode_frame(self, frame: bytes, header: str | None = None) -> dict[str, Any]:
        """Return the result of Java's decoder for a frame with its length.

        Returns:
            ``open`` (the connection was not closed) and, if it is a frame, ``code language version
            opaque flag remark serialization extFields body``; with the name of a header class,
            ``fields`` as well.
        """
        answer = self.ask("decode", frame=base64.b64encode(frame).decode(), header=header)
        if "body" in answer:
            answer["body"] = base64.b64decode(answer["body"])
        return dict(answer)

    def ask(self, what: str, **request: Any) -> Any:
        """Return the answer to a request of ``ClientOracle.java``.

        Raises:
            ClientError: Java threw an exception.
            JavaError: Java died, or does not answer within a minute.
        """
        answer = self.start(what, **request)
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            raise JavaError(f"no answer to {what} in {ANSWER_S} s\n{self.log()}") from None

    def start(self, what: str, **request: Any) -> "Future[Any]":
        """Send a request; return the future of its answer. Other requests may overlap."""
        number = next(self._ids)
        future: Future[Any] = Future()
        line = json.dumps({"id": number, "do": what, **request}) + "\n"
        with self._lock:
            if self._is_dead:
                raise JavaError(f"Java died\n{self.log()}")
            self._waiting[number] = future
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        return future

    def listen(self, handle: str, listener: Callable[[dict[str, Any]], None]) -> None:
        """Pass the events of a handle to a function, on the thread that reads."""
        self._listeners[handle] = listener

    def name(self) -> str:
        """Return a client name that is unique in this process."""
        return f"c{next(self._ids)}"

    def log(self) -> str:
        """Return the end of Java's output."""
        return self._log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End the process; running clients do not unregister from the broker."""
        if self._process.poll() is None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        """Kill the process, like a crash of the application."""
        self._process.kill()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settings(self, namesrv: str, settings: dict[str, Any]) -> dict[str, Any]:
        # Requests for routes and to join a group end after 3 s, which a busy machine may need.
        patience = {} if self.version == "4.5.2" else {"mqClientApiTimeout": PATIENCE_MS}
        # Clients with the same name share connections and routes, even with different name servers.
        return {"namesrvAddr": namesrv, "instanceName": self.name(), **patience, **settings}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = json.loads(raw)
            if "on" in line:
                self._listeners[line["on"]](line)
                continue
            future = self._waiting.pop(line["id"])
            if "error" in line:
                future.set_exception(ClientError(**line["error"]))
            else:
                future.set_result(line["value"])
        with self._lock:
            self._is_dead = True
        for future in self._waiting.values():
            future.set_exception(JavaError(f"Java died\n{self.log()}"))


class _Client:
    """Client in the Java process."""

    def __init__(
        self, java: JavaClient, kind: str, request: dict[str, Any], settings: dict[str, Any]
    ) -> None:
        self.java = java
        self.handle = java.name()
        self._open = True
        self._before()
        java.ask(f"new {kind}", on=self.handle, settings=settings, **request)

    def _before(self) -> None:
        """Prepare for events that may arrive before the answer."""

    def ask(self, what: str, **request: Any) -> Any:
        """Return the answer to a request of this client. Raises as ``JavaClient.ask``."""
        return self.java.ask(what, on=self.handle, **request)

    def close(self) -> None:
        """Shut the client down as an application would."""
        if self._open:
            self._open = False
            self.java.ask("close", on=self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer(_Client):
    """Running ``DefaultMQProducer``."""

    def send(
        self,
        messages: Sequence[JavaMessage],
        how: str = "sync",
        *,
        queue: Queue | None = None,
        timeout_ms: int = PATIENCE_MS,
    ) -> list[JavaSent]:
        """Send messages in sequence; use ``results`` to get errors without an exception.

        Args:
            messages: Messages to send.
            how: ``sync``, ``async``, ``oneway`` (no results) or ``batch`` (one result).
            queue: Target queue; by default the producer chooses.
            timeout_ms: Timeout of each message, in ms.

        Raises:
            ClientError: The first failure.
        """
        results = self.results(messages, how, queue=queue, timeout_ms=timeout_ms)
        for result in results:
            if isinstance(result, ClientError):
                raise result
        return [result for result in results if isinstance(result, JavaSent)]

    def results(
        self,
        messages: Sequence[JavaMessage],
        how: str = "sync",
        *,
        queue: Queue | None = None,
        timeout_ms: int = PATIENCE_MS,
        sharding_keys: Sequence[str] = (),
    ) -> list[JavaSent | ClientError | None]:
        """Send messages; return the result or error of each, None for a one-way message."""
        answers = self.ask(
            how,
            messages=[_message_line(message) for message in messages],
            queue=_queue_line(queue),
            timeoutMillis=timeout_ms,
            shardingKeys=list(sharding_keys),
        )
        return [_sent(answer) for answer in answers]

    def send_ordered(
        self, messages: Sequence[JavaMessage], sharding_keys: Sequence[str]
    ) -> list[JavaSent]:
        """Send with a ``MessageQueueSelector`` that hashes each message's sharding key."""
        results = self.results(messages, "ordered", sharding_keys=sharding_keys)
        assert all(isinstance(result, JavaSent) for result in results), results
        return [result for result in results if isinstance(result, JavaSent)]

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic that can be written."""
        return sorted(map(_queue, self.ask("queues", topic=topic)), key=_queue_order)


class PushConsumer(_Client):
    """Running ``DefaultMQPushConsumer``.

    Attributes:
        received: Messages received so far, in the order of arrival.
        batches: Queue and number of messages of each call of the listener.
    """

    def _before(self) -> None:
        self.received: list[JavaReceived] = []
        self.batches: list[tuple[Queue, int]] = []
        self._arrival = threading.Condition()
        self._taken = 0
        self.java.listen(self.handle, self._arrived)

    def _arrived(self, line: dict[str, Any]) -> None:
        messages = list(map(_received, line["messages"]))
        with self._arrival:
            self.received += messages
            self.batches.append((_queue(line["queue"]), len(messages)))
            self._arrival.notify_all()

    def take(self, count: int, timeout_s: float = 60) -> list[JavaReceived]:
        """Wait for the next ``count`` messages and return them. Raises ``JavaError``."""
        self.wait_until(lambda taken: len(taken) >= self._taken + count, timeout_s)
        taken = self.received[self._taken : self._taken + count]
        self._taken += count
        return taken

    def wait_until(
        self, enough: Callable[[list[JavaReceived]], bool], timeout_s: float = 60
    ) -> list[JavaReceived]:
        """Wait for a condition on all received messages; return them. Raises ``JavaError``."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: enough(self.received), timeout_s):
                raise JavaError(
                    f"only {len(self.received)} messages in {timeout_s} s\n{self.java.log()}"
                )
            return list(self.received)

    def assigned(self) -> list[Queue]:
        """Return the queues that rebalancing assigned to the consumer."""
        return sorted(map(_queue, self.ask("assigned")), key=_queue_order)

    def suspend(self) -> None:
        """Stop pulling messages."""
        self.ask("suspend")

    def resume(self) -> None:
        """Continue pulling messages."""
        self.ask("resume")

    def persist(self) -> None:
        """Send the consumer offsets to the broker, or save them, now."""
        self.ask("persist")


class PullConsumer(_Client):
    """Running ``DefaultMQPullConsumer``."""

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic that can be read."""
        return sorted(map(_queue, self.ask("queues", topic=topic)), key=_queue_order)

    def pull(
        self,
        queue: Queue,
        queue_offset: int,
        max_count: int = 32,
        expression: str = "*",
        *,
        block: bool = False,
    ) -> JavaPulled:
        """Pull once; with ``block``, hold the request for up to 20 s at the end of a queue."""
        answer = self.ask(
            "pullBlocking" if block else "pull",
            queue=_queue_line(queue),
            offset=queue_offset,
            max=max_count,
            expression=expression,
        )
        return JavaPulled(
            answer["status"],
            answer["nextOffset"],
            answer["minOffset"],
            answer["maxOffset"],
            list(map(_received, answer["messages"])),
        )

    def read_all(self, topic: str) -> dict[Queue, list[JavaReceived]]:
        """Return all messages of a topic."""
        return {queue: list(self._read(queue)) for queue in self.queues(topic)}

    def _read(self, queue: Queue) -> Iterator[JavaReceived]:
        queue_offset, end = self.min_offset(queue), self.max_offset(queue)
        while queue_offset < end:
            pulled = self.pull(queue, queue_offset)
            yield from pulled.messages
            if pulled.next_offset <= queue_offset:
                raise JavaError(
                    f"{pulled.status} at {queue_offset} of {queue}, which ends at {end}"
                )
            queue_offset = pulled.next_offset

    def min_offset(self, queue: Queue) -> int:
        return int(self.ask("min", queue=_queue_line(queue)))

    def max_offset(self, queue: Queue) -> int:
        return int(self.ask("max", queue=_queue_line(queue)))

    def search_offset(self, queue: Queue, time_ms: int) -> int:
        return int(self.ask("search", queue=_queue_line(queue), time=time_ms))

    def committed(self, queue: Queue) -> int:
        """Return the consumer offset that the broker has; -1: none."""
        return int(self.ask("committed", queue=_queue_line(queue), fromStore=True))

    def commit(self, queue: Queue, consumer_offset: int) -> None:
        self.ask("commit", queue=_queue_line(queue), offset=consumer_offset)

    def view(self, topic: str, msg_id: str) -> JavaReceived:
        """Return a message by its id: unique key, or offset id."""
        return _received(self.ask("view", topic=topic, msgId=msg_id))

    def query(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[JavaReceived]:
        """Return messages by key."""
        return list(
            map(
                _received,
                self.ask("query", topic=topic, key=key, max=max_count, begin=begin_ms, end=end_ms),
            )
        )

    def send_back(self, queue: Queue, queue_offset: int, delay_level: int) -> None:
        """Send a message back, to be consumed again later."""
        self.ask("sendBack", queue=_queue_line(queue), offset=queue_offset, delayLevel=delay_level)


class LitePullConsumer(_Client):
    """Running ``DefaultLitePullConsumer``."""

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic that can be read."""
        return sorted(map(_queue, self.ask("queues", topic=topic)), key=_queue_order)

    def poll(self, timeout_ms: int = 1000) -> list[JavaReceived]:
        return list(map(_received, self.ask("poll", timeoutMillis=timeout_ms)))

    def take(self, count: int, timeout_s: float = 60) -> list[JavaReceived]:
        """Poll until there are ``count`` messages. Raises ``JavaError``."""
        taken: list[JavaReceived] = []
        deadline = time.monotonic() + timeout_s
        while len(taken) < count:
            if time.monotonic() > deadline:
                raise JavaError(f"only {len(taken)} messages in {timeout_s} s\n{self.java.log()}")
            taken += self.poll(500)
        return taken

    def assign(self, queues: Sequence[Queue]) -> None:
        self.ask("assign", queues=list(map(_queue_line, queues)))

    def seek(self, queue: Queue, queue_offset: int) -> None:
        self.ask("seek", queue=_queue_line(queue), offset=queue_offset)

    def seek_to_begin(self, queue: Queue) -> None:
        self.ask("seekToBegin", queue=_queue_line(queue))

    def seek_to_end(self, queue: Queue) -> None:
        self.ask("seekToEnd", queue=_queue_line(queue))

    def search_offset(self, queue: Queue, time_ms: int) -> int:
        return int(self.ask("search", queue=_queue_line(queue), time=time_ms))

    def commit(self) -> None:
        self.ask("commit")

    def committed(self, queue: Queue) -> int:
        return int(self.ask("committed", queue=_queue_line(queue)))

    def pause(self, queue: Queue) -> None:
        self.ask("pause", queue=_queue_line(queue))

    def resume(self, queue: Queue) -> None:
        self.ask("resume", queue=_queue_line(queue))


class Admin(_Client):
    """Running ``DefaultMQAdminExt``."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method by its Java name.

        Arguments are JSON values; a bean is a dictionary of its properties, with Java's names:
        ``call("createAndUpdateTopicConfig", address, {"topicName": "T", "readQueueNums": 4})``.
        The result has the same form: beans as dictionaries, bytes as base64, queues that are map
        keys as ``topic@broker@id``.

        Raises:
            ClientError: Java threw an exception.
        """
        return self.ask("call", method=method, arguments=arguments)


def _message_line(message: JavaMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tags": message.tags,
        "keys": message.keys,
        "properties": dict(message.properties),
        "delayLevel": message.delay_level,
        "flag": message.flag,
        "wait": message.wait,
    }


def _queue_line(queue: Queue | None) -> dict[str, Any] | None:
    if queue is None:
        return None
    return {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}


def _queue(line: dict[str, Any]) -> Queue:
    return Queue(line["topic"], line["brokerName"], line["queueId"])


def _queue_order(queue: Queue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def _sent(line: dict[str, Any] | None) -> JavaSent | ClientError | None:
    if line is None:
        return None
    if "error" in line:
        return ClientError(**line["error"])
    return JavaSent(**{**_snake(line), "queue": _queue(line["queue"])})


def _received(line: dict[str, Any]) -> JavaReceived:
    return JavaReceived(**{**_snake(line), "body": base64.b64decode(line["body"])})


def _snake(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "".join(f"_{c.lower()}" if c.isupper() else c for c in name): value
        for name, value in line.items()
    }


def _setting(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
