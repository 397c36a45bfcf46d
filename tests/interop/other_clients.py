"""Clients of RocketMQ that are not Java's, one process a call: Go's, the C++ one, and Node's.

    go = GoClient()
    go.produce(namesrv, "T", [b"one", b"two"], tags="a")
    assert {one["body"] for one in go.consume(namesrv, "T", "group", 2)} == {b"one", b"two"}

Each is a program of ours around an unmodified client: ``go/main.go``, ``cpp/client.py`` and
``node/client.js`` say what it can. They read one JSON document, and print one a line.
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

from interop.java_oracle import HERE, cached

TIMEOUT_S = 120


class ClientUnavailable(Exception):
    """The client is not here and cannot be made; the text says why."""


class OtherClientError(Exception):
    """The client failed."""


class OtherClient:
    """A client, as a command that does one thing and ends. Raises ``ClientUnavailable``."""

    name: str
    ways: Mapping[str, int]
    """How it can send -> how many results there are of 8 messages."""
    can_order = True
    can_try_again = True
    """Whether it can want a message again, and delay one by level."""

    command: Sequence[str | Path]

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
            ``status msg_id`` of each, and what else the client says; a batch has one.

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
        again: Sequence[bytes] = (),
        properties: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """Consume with a push consumer until there are ``count`` messages; return them.

        Args:
            namesrv: The name server.
            topic: What is subscribed to.
            group: The consumer group.
            count: How many messages.
            expression: Tags.
            orderly: Take the messages of a queue in their order.
            again: Messages that are not taken the first time.
            properties: Those that are returned.

        Returns:
            ``body msg_id queue_id tags keys properties reconsume_times`` of each.

        Raises:
            OtherClientError: They did not come within a minute.
        """
        found = self._run(
            do="consume",
            namesrv=namesrv,
            topic=topic,
            group=group,
            count=count,
            expression=expression,
            orderly=orderly,
            again=[base64.b64encode(one).decode() for one in again],
            properties=list(properties),
        )
        return [{**one, "body": base64.b64decode(one["body"])} for one in found]

    def _run(self, **request: Any) -> list[dict[str, Any]]:
        # They keep offsets and logs in the home folder.
        with tempfile.TemporaryDirectory(prefix="other-client-") as home:
            result = subprocess.run(
                self.command,
                input=json.dumps(request).encode() + b"\n",
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                env={"HOME": home, "GODEBUG": ""},
            )
        lines = [json.loads(one) for one in result.stdout.splitlines() if one.startswith(b"{")]
        if not lines or lines[-1] != {"end": True}:
            raise OtherClientError(f"{lines[-1:]} {result.stderr[-2000:].decode(errors='replace')}")
        return lines[:-1]


class GoClient(OtherClient):
    """rocketmq-client-go v2.1.2, built once a user, next to the jars."""

    name = "go"
    ways = {"sync": 8, "async": 8, "batch": 1, "oneway": 0}
    can_try_again = False

    def __init__(self) -> None:
        sources = sorted((HERE / "go").iterdir())
        self.command = [cached("go-client", sources, self._build) / "go-client"]

    def _build(self, folder: Path) -> None:
        go = _tool("go", "install Go 1.21 or later (https://go.dev/dl/)")
        _make([go, "build", "-o", folder / "go-client", "."], HERE / "go")


class CppClient(OtherClient):
    """rocketmq-client-cpp, as librocketmq in the Python package ``rocketmq`` 0.4.4.

    It also has the way ``batch``, of which Java's brokers make one message.
    """

    name = "cpp"
    ways = {"sync": 8, "async": 8, "oneway": 0}

    def __init__(self) -> None:
        if importlib.util.find_spec("rocketmq") is None:
            raise ClientUnavailable("the package rocketmq has no wheel for this machine")
        self.command = [sys.executable, HERE / "cpp" / "client.py"]


class NodeClient(OtherClient):
    """ali-ons 3.12.0, which speaks the protocol in JavaScript."""

    name = "node"
    ways = {"sync": 8}
    can_order = False

    def __init__(self) -> None:
        node = _tool("node", "install Node.js 18 or later (https://nodejs.org)")
        sources = sorted((HERE / "node").iterdir())
        self.command = [node, cached("node-client", sources, self._install) / "client.js"]

    def _install(self, folder: Path) -> None:
        npm = _tool("npm", "install it with Node.js")
        for one in (HERE / "node").iterdir():
            shutil.copy(one, folder)
        _make([npm, "install", "--no-audit", "--no-fund"], folder)


def _tool(name: str, advice: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ClientUnavailable(f"{name} is missing: {advice}")
    return found


def _make(command: Sequence[str | Path], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ClientUnavailable(f"{command[0]} failed: {result.stderr[-800:]}")
