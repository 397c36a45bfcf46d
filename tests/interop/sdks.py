"""The 5.x SDKs of RocketMQ, which use gRPC: unmodified, from their registries.

    sdk = PythonSdk()
    receipts = sdk.send(endpoint, "T", [Outgoing(b"one", tag="a")])
    with sdk.push(endpoint, "T", "billing") as consumer:
        assert consumer.take(1)[0].body == b"one"

Each folder of ``sdk/`` has a program of this project around one SDK. All have the same protocol:

* stdin: first a request, a line of JSON with ``do`` (``send``, ``simple``, ``push``, ``lite``) and
  the fields that the methods below fill in; then the steps of a simple consumer, each a line
  (``["receive", count, invisible_ms]``, for Java with a fourth value, the number of receives at
  once, ``["ack", index]``, ``["change", index, invisible_ms]``,
  ``["copy", index]``: the message at the index with its present handle becomes a further one).
  The end of the input ends the program.
* stdout: lines of JSON: a receipt, a message, ``{"started": true}``, ``{"done": step}``,
  ``{"checked": resolution, ...}``, ``{"recalled": message_id}``, an error
  ``{"error": class, "code": number, "text": ...}``; at last ``{"end": true}``.
"""

import base64
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from interop import java_oracle
from interop.java_oracle import HERE, cached
from interop.other_clients import make, tool
from reput.grpc.wire.grpc_messages import Code

TIMEOUT_S = 120.0
PROGRAMS = HERE / "sdk"


class SdkFailed(Exception):
    """The program ended early, or said nothing for a long time; the text has its last lines."""


class Refused(Exception):
    """The SDK raised an exception.

    Args:
        line: The line of the program.
    """

    def __init__(self, line: Mapping[str, Any]) -> None:
        super().__init__(line["text"])
        self.kind: str = line["error"]
        """Class of the SDK's exception."""
        code = line["code"]
        self.code: int | None = Code[code].value if isinstance(code, str) else code
        """Status code; None if the SDK does not show it."""


@dataclass(frozen=True)
class Outgoing:
    """A message to send."""

    body: bytes
    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    """Message group of a FIFO message."""
    lite_topic: str = ""
    delay_ms: int = 0
    """Time until the delivery, in milliseconds; SDKs may round it to seconds."""
    priority: int | None = None
    resolution: str = "commit"
    """End of its transaction: ``commit``, ``rollback``, or ``leave`` for the check."""


@dataclass(frozen=True)
class Receipt:
    """What an SDK returns for a sent message."""

    message_id: str
    queue_offset: int | None
    """Position in the queue; None if the SDK does not show it."""
    recall_handle: str
    """Handle to recall a delayed message; empty if there is none."""
    transaction_id: str
    """Id of the transaction, also of a message outside of one."""


@dataclass(frozen=True)
class Incoming:
    """A message, as an SDK gives it to the application."""

    message_id: str
    body: bytes
    tag: str
    keys: Sequence[str]
    properties: Mapping[str, str]
    group: str
    lite_topic: str
    attempt: int
    """Number of the delivery, from 1."""
    at_ms: int
    """Time of the delivery, in milliseconds since 1970."""


def _incoming(line: Mapping[str, Any]) -> Incoming:
    return Incoming(
        line["message_id"],
        base64.b64decode(line["body"]),
        line["tag"],
        line["keys"],
        line["properties"],
        line["group"],
        line.get("lite_topic", ""),
        line["attempt"],
        line["at_ms"],
    )


class Running:
    """A running program, as a context manager: it ends with its input.

    Args:
        command: The program.
        environment: Environment variables.
        request: First line of its input.
        home: Home folder, for logs.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        request: Mapping[str, Any],
        home: Path,
    ) -> None:
        self._home = home
        self._errors = (home / "stderr").open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), **environment},
        )
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.write(request)

    def write(self, value: Any) -> None:
        """Write a line of input."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def close_input(self) -> None:
        """Let the program end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def line(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return the next line.

        Raises:
            SdkFailed: It did not come.
        """
        try:
            return self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise SdkFailed(f"no line in {timeout_s} s\n{self.log()}") from None

    def answer(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return the next line.

        Raises:
            Refused: It is an error.
            SdkFailed: It did not come, or the program has ended.
        """
        line = self.line(timeout_s)
        if "error" in line:
            raise Refused(line)
        if "end" in line:
            raise SdkFailed(f"the program ended\n{self.log()}")
        return line

    def lines(self) -> list[dict[str, Any]]:
        """Return the further lines, until the end."""
        lines = []
        while "end" not in (line := self.line()):
            lines.append(line)
        return lines

    def log(self) -> str:
        """Return the end of its stderr."""
        return (self._home / "stderr").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """Kill the program."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process:
            if kind is not None:
                self._process.kill()
            elif not self._process.stdin.closed:  # type: ignore[union-attr]
                self.close_input()
            try:
                self._process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise SdkFailed(f"it does not end\n{self.log()}") from None
            finally:
                self._reader.join()
                self._errors.close()
                shutil.rmtree(self._home, ignore_errors=True)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self._lines.put(json.loads(line))
        # A program that dies says no end.
        self._lines.put({"end": True})


AnyRunning = TypeVar("AnyRunning", bound=Running)


class Consumer(Running):
    """A push consumer, or a simple consumer that has started."""

    def take(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Incoming]:
        """Return the next deliveries of a push consumer. Raises ``SdkFailed``, ``Refused``."""
        return [_incoming(self.answer(timeout_s)) for _ in range(count)]

    def arrived(self) -> list[Incoming]:
        """Return the deliveries of a push consumer that have come by now. Raises ``Refused``."""
        deliveries = []
        while not self._lines.empty():
            deliveries.append(_incoming(self.answer()))
        return deliveries

    def receive(
        self, count: int = 32, invisible_ms: int = 30_000, at_once: int = 1
    ) -> list[Incoming]:
        """Let a simple consumer receive, once or often at once. Raises ``Refused``."""
        more = [] if at_once == 1 else [at_once]
        self.write(["receive", count, invisible_ms, *more])
        deliveries = []
        while "done" not in (line := self.answer()):
            deliveries.append(_incoming(line))
        return deliveries

    def ack(self, index: int) -> None:
        """Let a simple consumer acknowledge a message. Raises ``Refused``, ``SdkFailed``."""
        self.write(["ack", index])
        self.answer()

    def change(self, index: int, invisible_ms: int) -> None:
        """Let a simple consumer change an invisible time. Raises ``Refused``, ``SdkFailed``."""
        self.write(["change", index, invisible_ms])
        self.answer()

    def copy(self, index: int) -> None:
        """Keep a message with its present handle, as a further message."""
        self.write(["copy", index])
        self.answer()


ONE_SECOND_EACH = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}}


class Sdk:
    """An SDK, as a program. Raises ``ClientUnavailable``."""

    name: str
    reports_offset = False
    """Whether its receipts have the position in the queue."""
    errors: Mapping[str, tuple[str, int | None]]
    """Class and code of its exceptions. Code None: the SDK refuses it itself, or shows no code."""
    receives_at_once = 1
    """Number of receives that its program starts at once, where a test wants many."""
    reads_large = True
    """Whether it receives a message of 4 MiB."""
    lacks: Mapping[str, str] = {}
    """What it does not have, by the word that tests ask for."""
    retry_policy: Mapping[str, object] = ONE_SECOND_EACH
    """Policy of a group, of one second between attempts, that its push consumers understand."""
    pause_ms = 900
    """Least time between attempts with that policy, in milliseconds."""
    priorities = range(4)
    """Priorities of messages that it can send."""

    command: Sequence[str | Path]
    environment: Mapping[str, str] = {}
    page: tuple[str, str]
    """Language of its example in the documentation, and name of a file with it."""

    def example(self, folder: Path) -> Sequence[str | Path]:
        """Return the command that runs the file ``page[1]`` of a folder."""
        return [*self.command[:-1], self.page[1]]

    def start_send(
        self, endpoint: str, topic: str, messages: Sequence[Outgoing], **more: Any
    ) -> Running:
        """Start a producer; see ``send`` for the arguments."""
        return self._start(
            Running,
            {
                "do": "send",
                "endpoint": endpoint,
                "topic": topic,
                "how": "sync",
                "recall": False,
                "checks": [],
                "hold_ms": 0,
                "pause_ms": 0,
                "until_sent": False,
                "messages": [
                    asdict(message) | {"body": base64.b64encode(message.body).decode()}
                    for message in messages
                ],
                **more,
            },
        )

    def send(
        self, endpoint: str, topic: str, messages: Sequence[Outgoing], **more: Any
    ) -> list[dict[str, Any]]:
        """Send messages; return the lines of the program.

        Args:
            endpoint: Address of the gRPC port.
            topic: The topic.
            messages: The messages.
            more: ``how``: ``sync``, ``async`` or ``transaction``; ``recall``: recall each;
                ``checks``: answers to the checks of each transaction in turn, and the producer
                stays until its input ends; ``hold_ms``: time before a transaction ends;
                ``pause_ms``: time between messages; ``until_sent``: try each until it is sent.
        """
        with self.start_send(endpoint, topic, messages, **more) as running:
            running.close_input()
            return running.lines()

    def sent(
        self, endpoint: str, topic: str, messages: Sequence[Outgoing], **more: Any
    ) -> list[Receipt]:
        """Send messages; return their receipts. Raises ``Refused``: one was not sent."""
        lines = self.send(endpoint, topic, messages, **more)
        for line in lines:
            if "error" in line:
                raise Refused(line)
        return [Receipt(**line) for line in lines if "recall_handle" in line]

    def push(self, endpoint: str, topic: str, group: str, **more: Any) -> Consumer:
        """Start a push consumer.

        Args:
            endpoint: Address of the gRPC port.
            topic: The topic.
            group: The consumer group.
            more: ``filter`` and ``is_sql``; ``fail``: number of attempts that fail;
                ``work_ms``: time that each message takes.

        Raises:
            Refused: It did not start.
        """
        return self._consumer("push", endpoint, topic, group, more)

    def simple(self, endpoint: str, topic: str, group: str, **more: Any) -> Consumer:
        """Start a simple consumer.

        Args:
            endpoint: Address of the gRPC port.
            topic: The topic.
            group: The consumer group.
            more: ``filter`` and ``is_sql``; ``await_ms``: time that a receive waits;
                ``lite_topics``: what it reads of a topic of lite topics.

        Raises:
            Refused: It did not start.
        """
        return self._consumer("simple", endpoint, topic, group, more)

    def lite(
        self, endpoint: str, topic: str, group: str, lite_topics: Sequence[str], **more: Any
    ) -> Consumer:
        """Start a push consumer of lite topics.

        Args:
            endpoint: Address of the gRPC port.
            topic: Their parent.
            group: The consumer group, which is bound to the parent.
            lite_topics: The lite topics; one letter each, as the SDK for Python adds letters.
            more: As for ``push``.

        Raises:
            Refused: It did not start, or may not read one of them.
        """
        return self._consumer("lite", endpoint, topic, group, {"lite_topics": lite_topics, **more})

    def _consumer(
        self, kind: str, endpoint: str, topic: str, group: str, more: Mapping[str, Any]
    ) -> Consumer:
        request = {
            "do": kind,
            "endpoint": endpoint,
            "topic": topic,
            "group": group,
            "filter": "*",
            "is_sql": False,
            "await_ms": 5_000,
            "fail": 0,
            "work_ms": 0,
            **more,
        }
        consumer = self._start(Consumer, request)
        try:
            consumer.answer()
        except BaseException:
            consumer.__exit__(*sys.exc_info())
            raise
        return consumer

    def _start(self, kind: type[AnyRunning], request: Mapping[str, Any]) -> AnyRunning:
        home = Path(tempfile.mkdtemp(prefix=f"sdk-{self.name}-"))
        return kind(self.command, self.environment, request, home)


class PythonSdk(Sdk):
    """rocketmq-python-client, in a separate folder: it registers protobuf's names."""

    name = "python"
    page = ("python", "page.py")
    reports_offset = True
    errors: ClassVar = {
        "wrong type": ("IllegalArgumentException", None),
        "large body": ("IllegalArgumentException", None),
        "unknown topic": ("Exception", None),
        "system topic": ("Exception", None),
        "properties": ("RequestHeaderFieldsTooLargeException", 43101),
        "late": ("BadRequestException", 40012),
        "lite quota": ("LiteSubscriptionQuotaExceededException", 42902),
        "unknown group": ("BadRequestException", 40003),
    }

    def __init__(self) -> None:
        sources = sorted((PROGRAMS / "python").iterdir())
        folder = cached("sdk-python", sources, self._install)
        # Without site-packages: another package of the tests is called rocketmq, too.
        self.command = [sys.executable, "-S", PROGRAMS / "python" / "program.py"]
        self.environment = {"PYTHONPATH": str(folder)}

    def _install(self, folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        requirements = PROGRAMS / "python" / "requirements.txt"
        make([*command, "--target", folder, "-r", requirements], folder)


class GoSdk(Sdk):
    """golang/v5 of rocketmq-clients, over TLS, as it is by default."""

    name = "go"
    lacks: ClassVar = {
        "ack errors": "defaultSimpleConsumer.Ack returns nil whatever the status of the reply",
        "lite simple": "it has no simple consumer of lite topics",
    }
    page = ("go", "main.go")
    reports_offset = True
    errors: ClassVar = {
        "wrong type": ("errors.errorString", None),
        "large body": ("errors.errorString", None),
        "unknown topic": ("fmt.wrapError", None),
        "system topic": ("fmt.wrapError", None),
        "properties": ("ErrRpcStatus", 43101),
        "late": ("ErrRpcStatus", 40012),
        "unknown group": ("fmt.wrapError", None),
    }

    def __init__(self) -> None:
        sources = sorted((PROGRAMS / "go").iterdir())
        self.command = [cached("sdk-go", sources, self._build) / "program"]

    def example(self, folder: Path) -> Sequence[str | Path]:
        """Return the command that runs the file ``page[1]`` of a folder."""
        for name in ("go.mod", "go.sum"):
            shutil.copy(PROGRAMS / "go" / name, folder)
        return ["go", "run", "."]

    def _build(self, folder: Path) -> None:
        go = tool("go", "install Go 1.25 or later (https://go.dev/dl/)")
        make([go, "build", "-o", folder / "program", "."], PROGRAMS / "go")


class NodeSdk(Sdk):
    """rocketmq-client-nodejs."""

    name = "node"
    lacks: ClassVar = {"lite simple": "it has no simple consumer of lite topics"}
    # PushSubscriptionSettings.sync: "CustomizedBackoffRetryPolicy not yet implemented", so that a
    # message in order is tried once. ExponentialBackoffRetryPolicy counts seconds, and ProcessQueue
    # passes them on as milliseconds: there is no pause.
    retry_policy: ClassVar = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1_000, "max": 1_000, "multiplier": 1},
    }
    pause_ms = 0
    # PublishingMessage asks `!this.priority`: 0 is a message without priority.
    priorities = range(1, 4)
    page = ("js", "page.js")
    reports_offset = True
    reads_large = False
    errors: ClassVar = {
        "wrong type": ("TypeError", None),
        "large body": ("TypeError", None),
        "unknown topic": ("Error", None),
        "system topic": ("Error", None),
        "properties": ("RequestHeaderFieldsTooLargeException", 43101),
        "lite quota": ("ClientException", 429),
        "late": ("BadRequestException", 40012),
    }

    def __init__(self) -> None:
        node = tool("node", "install Node.js 18 or later (https://nodejs.org)")
        sources = sorted((PROGRAMS / "node").iterdir())
        folder = cached("sdk-node", sources, self._install)
        self.command = [node, folder / "program.js"]
        self.environment = {"NODE_PATH": str(folder / "node_modules")}

    def _install(self, folder: Path) -> None:
        npm = tool("npm", "install it with Node.js")
        for path in (PROGRAMS / "node").iterdir():
            shutil.copy(path, folder)
        make([npm, "install", "--no-audit", "--no-fund"], folder)


class JavaSdk(Sdk):
    """rocketmq-client-java, over TLS, as it is by default."""

    name = "java"
    receives_at_once = 5
    lacks: ClassVar = {"lite simple": "it has no simple consumer of lite topics"}
    page = ("java", "Send.java")
    errors: ClassVar = {
        "wrong type": ("IllegalArgumentException", None),
        "large body": ("ClientException", None),
        "unknown topic": ("IllegalStateException", None),
        "system topic": ("IllegalStateException", None),
        "properties": ("RequestHeaderFieldsTooLargeException", 43101),
        "late": ("BadRequestException", 40012),
        "lite quota": ("LiteSubscriptionQuotaExceededException", 42902),
        "unknown group": ("IllegalStateException", None),
    }

    def __init__(self) -> None:
        sources = sorted((PROGRAMS / "java").iterdir())
        folder = cached("sdk-java", sources, self._compile)
        path = java_oracle.class_path(folder / "jars", folder / "classes")
        self.command = [java_oracle.tool("java"), *java_oracle.JVM_OPTIONS, "-cp", path, "Program"]

    def _compile(self, folder: Path) -> None:
        pom = PROGRAMS / "java" / "pom.xml"
        copying = ["-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime"]
        make([java_oracle.tool("mvn"), *copying, f"-DoutputDirectory={folder / 'jars'}"], folder)
        compiling = [
            "-proc:none",
            "-encoding",
            "UTF-8",
            "-cp",
            java_oracle.class_path(folder / "jars"),
        ]
        source = PROGRAMS / "java" / "Program.java"
        make([java_oracle.tool("javac"), *compiling, "-d", folder / "classes", source], folder)


class RustSdk(Sdk):
    """The crate rocketmq; for want of a push consumer, ``push`` receives in a loop."""

    name = "rust"
    page = ("rust", "main.rs")
    lacks: ClassVar = {
        "push": "it has no push consumer: simple_consumer.rs is its only one",
        "change": "SimpleConsumer has no method to change an invisible time",
        "recall": "Producer has no method to recall a message, and MessageBuilder no priority",
        "priority": "MessageBuilder has no priority",
        "lite": "it has no consumer of lite topics, and MessageBuilder no lite topic",
        "lite simple": "it has no consumer of lite topics, and MessageBuilder no lite topic",
    }
    reads_large = False
    errors: ClassVar = {
        "wrong type": ("Server", 40014),
        "large body": ("Server", 41301),
        "unknown topic": ("Server", 40402),
        "system topic": ("Server", 40002),
        "properties": ("Server", 43101),
        "late": ("Server", 40012),
        "unknown group": ("Server", 40003),
    }

    def __init__(self) -> None:
        sources = [path for path in sorted((PROGRAMS / "rust").rglob("*")) if path.is_file()]
        self._folder = cached("sdk-rust", sources, self._build)
        self.command = [self._folder / "debug" / "program"]

    def _build(self, folder: Path) -> None:
        cargo = tool("cargo", "install Rust 1.80 or later (https://rustup.rs)")
        # In a copy: cargo writes a lock file beside the program.
        shutil.copytree(PROGRAMS / "rust", folder / "program")
        make([cargo, "build", "-q", "--target-dir", folder], folder / "program")

    def example(self, folder: Path) -> Sequence[str | Path]:
        """Return the command that runs the file ``page[1]`` of a folder."""
        for name in ("Cargo.toml", "Cargo.lock"):
            text = (self._folder / "program" / name).read_text()
            # With the name of the program it would replace it.
            (folder / name).write_text(text.replace('name = "program"', 'name = "example"'))
        (folder / "src").mkdir()
        shutil.copy(folder / "main.rs", folder / "src")
        return ["cargo", "run", "-q", "--locked", "--target-dir", self._folder]
