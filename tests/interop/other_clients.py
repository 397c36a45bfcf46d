"""RocketMQ clients in other languages, one process per call: Go's, the C++ one, Node's, Rust's.

    go = GoClient()
    go.produce(namesrv, "T", [b"one", b"two"], tags="a")
    received = go.consume(namesrv, "T", "group", 2)
    assert {message["body"] for message in received} == {b"one", b"two"}

Each is a program of this project around an unmodified client; ``go/main.go``, ``cpp/client.py``,
``node/client.js`` and ``rust/src/main.rs`` document their commands. They read one JSON document,
and print one per line.
"""

import base64
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interop import java_cluster
from interop.java_oracle import HERE, cached

TIMEOUT_S = 120


class ClientUnavailable(Exception):
    """The client is missing and cannot be built; the text states the reason."""


class OtherClientError(Exception):
    """The client failed."""


class OtherClient:
    """A client, as a command that runs one operation and ends. Raises ``ClientUnavailable``."""

    name: str
    ways: Mapping[str, int]
    """Ways to send -> number of results for 8 messages."""
    can_order = True
    can_try_again = True
    """Whether it can request redelivery of a message, and delay a message by level."""
    consumers: Sequence[str] = ("push",)
    """Kinds of its consumers."""
    has_transactions = False
    official = java_cluster.DEFAULT_BROKERS[0]
    """Version of the official broker that it can use."""

    command: Sequence[str | Path]
    environment: Mapping[str, str] = {}
    """More variables: ``ROCKETMQ_ACCESS_KEY`` and ``ROCKETMQ_SECRET_KEY`` let it sign its requests,
    and ``ROCKETMQ_TLS=true`` lets a ``GoTlsClient`` use TLS."""

    def produce(
        self,
        namesrv: str,
        topic: str,
        bodies: Sequence[bytes],
        how: str = "sync",
        *,
        group: str = "other-producer",
        tags: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
    ) -> list[dict[str, Any]]:
        """Send messages in one of ``ways``; return the results.

        Returns:
            ``status msg_id`` of each, and further fields of the client; a batch has one result.

        Raises:
            OtherClientError: A message could not be sent.
        """
        messages = [
            {
                "body": base64.b64encode(body).decode(),
                "tags": tags,
                "keys": list(keys),
                "properties": dict(properties or {}),
                "delay_level": delay_level,
            }
            for body in bodies
        ]
        return self._run(
            do="produce", namesrv=namesrv, topic=topic, group=group, how=how, messages=messages
        )

    def consume(
        self,
        namesrv: str,
        topic: str,
        group: str,
        count: int,
        expression: str = "*",
        *,
        orderly: bool = False,
        how: str = "push",
        again: Sequence[bytes] = (),
        properties: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """Consume until ``count`` messages arrived; return them.

        Args:
            namesrv: Address of the name server.
            topic: Subscribed topic.
            group: Consumer group.
            count: Number of messages.
            expression: Tags.
            orderly: Consume the messages of a queue in order.
            how: One of ``consumers``.
            again: Bodies of messages to be redelivered once.
            properties: Names of the properties to return.

        Returns:
            ``body msg_id queue_id tags keys properties reconsume_times`` of each.

        Raises:
            OtherClientError: They did not arrive within a minute.
        """
        received = self._run(
            do="consume",
            namesrv=namesrv,
            topic=topic,
            group=group,
            count=count,
            expression=expression,
            orderly=orderly,
            how=how,
            again=[base64.b64encode(body).decode() for body in again],
            properties=list(properties),
        )
        return [{**message, "body": base64.b64decode(message["body"])} for message in received]

    def _run(self, **request: Any) -> list[dict[str, Any]]:
        # The clients keep offsets and logs in the home folder.
        with tempfile.TemporaryDirectory(prefix="other-client-") as home:
            result = subprocess.run(
                self.command,
                input=json.dumps(request).encode() + b"\n",
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                env={"HOME": home, "GODEBUG": "", **self.environment},
            )
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith(b"{")]
        if not lines or lines[-1] != {"end": True}:
            raise OtherClientError(f"{lines[-1:]} {result.stderr[-2000:].decode(errors='replace')}")
        return lines[:-1]


class GoClient(OtherClient):
    """rocketmq-client-go v2.1.2, built once per user, and cached next to the jars."""

    name = "go"
    ways = {"sync": 8, "async": 8, "batch": 1, "oneway": 0}
    can_try_again = False

    options: Sequence[str] = ()
    """Options of the build."""

    def __init__(self) -> None:
        sources = sorted((HERE / "go").iterdir())
        self.command = [cached(f"{self.name}-client", sources, self._build) / "go-client"]

    def _build(self, folder: Path) -> None:
        go = tool("go", "install Go 1.21 or later (https://go.dev/dl/)")
        make([go, "build", *self.options, "-o", folder / "go-client", "."], HERE / "go")


class GoTlsClient(GoClient):
    """A later commit of rocketmq-client-go: TLS is newer than its last release."""

    name = "go-tls"
    options = ("-modfile", "tls.mod", "-tags", "tls")


class CppClient(OtherClient):
    """rocketmq-client-cpp, as librocketmq in the Python package ``rocketmq`` 0.4.4, without TLS.

    It has an additional way ``batch``, which Java's brokers store as one message.
    """

    name = "cpp"
    ways = {"sync": 8, "async": 8, "oneway": 0}

    def __init__(self) -> None:
        if importlib.util.find_spec("rocketmq") is None:
            raise ClientUnavailable("the package rocketmq has no wheel for this machine")
        self.command = [sys.executable, HERE / "cpp" / "client.py"]


class NodeClient(OtherClient):
    """ali-ons 3.12.0, which implements the protocol in JavaScript, without TLS."""

    name = "node"
    ways = {"sync": 8}
    can_order = False

    def __init__(self) -> None:
        node = tool("node", "install Node.js 18 or later (https://nodejs.org)")
        sources = sorted((HERE / "node").iterdir())
        self.command = [node, cached("node-client", sources, self._install) / "client.js"]

    def _install(self, folder: Path) -> None:
        npm = tool("npm", "install it with Node.js")
        for path in (HERE / "node").iterdir():
            shutil.copy(path, folder)
        make([npm, "install", "--no-audit", "--no-fund"], folder)


class RustClient(OtherClient):
    """rocketmq-client-rust 1.0.0, the remoting client of rocketmq-rust, built once per user.

    It decodes JSON bodies into typed structs, and refuses those without a field that 5.5.0 writes:
    no broker of 4.9 serves it.
    """

    name = "rust"
    ways = {"sync": 8, "batch": 1, "oneway": 0, "ordered": 8}
    consumers = ("push", "pull", "pop")
    has_transactions = True
    official = "5.5.0"

    def __init__(self) -> None:
        sources = [path for path in sorted((HERE / "rust").rglob("*")) if path.is_file()]
        self.command = [cached("rust-client", sources, self._build) / "rust-client"]

    def _build(self, folder: Path) -> None:
        cargo = tool("cargo", "install Rust 1.95 or later (https://rustup.rs)")
        # In a copy, with only the program kept: cargo writes a lock file and half a gigabyte.
        with tempfile.TemporaryDirectory(dir=folder) as work:
            program = shutil.copytree(HERE / "rust", Path(work, "program"))
            make([cargo, "build", "-q", "--target-dir", Path(work, "target")], program)
            shutil.copy(Path(work, "target/debug/rust-client"), folder)


def tool(name: str, advice: str) -> str:
    """Return the path of a program. Raises ``ClientUnavailable``, with advice."""
    path = shutil.which(name)
    if path is None:
        raise ClientUnavailable(f"{name} is missing: {advice}")
    return path


def make(command: Sequence[str | Path], folder: Path) -> None:
    """Run a build in a folder. Raises ``ClientUnavailable``: it failed."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ClientUnavailable(f"{command[0]} failed: {(result.stdout + result.stderr)[-800:]}")
