"""The Go client of RocketMQ (v2.1.2), one process a call; ``go/main.go`` says what it can.

    go = GoClient()
    go.produce(namesrv, "T", [b"one", b"two"], tags="a")
    assert {one["body"] for one in go.consume(namesrv, "T", "group", 2)} == {b"one", b"two"}

The modules come from the Go proxy and the program is built once a user, next to the jars.
"""

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interop.java_oracle import HERE, cached

SOURCE = HERE / "go"
TIMEOUT_S = 120


class GoUnavailable(Exception):
    """There is no Go, or it cannot build the program; the text says why."""


class GoError(Exception):
    """The Go client failed."""


class GoClient:
    """A built program. Raises ``GoUnavailable``."""

    def __init__(self) -> None:
        self._program = cached("go-client", sorted(SOURCE.iterdir()), _build) / "go-client"

    def produce(
        self,
        namesrv: str,
        topic: str,
        bodies: Sequence[bytes],
        how: str = "sync",
        *,
        group: str = "go-producer",
        tags: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Send messages ``sync``, ``async``, ``oneway`` or as one ``batch``; return the results.

        Returns:
            ``status msg_id offset_msg_id queue_id queue_offset`` of each, a batch has one.

        Raises:
            GoError: A message could not be sent.
        """
        messages = [
            {
                "body": base64.b64encode(body).decode(),
                "tags": tags,
                "keys": list(keys),
                "properties": dict(properties or {}),
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
        broadcasting: bool = False,
    ) -> list[dict[str, Any]]:
        """Consume with a push consumer until there are ``count`` messages; return them.

        Returns:
            ``topic body msg_id offset_msg_id queue_id queue_offset tags keys properties`` of each.

        Raises:
            GoError: They did not come within a minute.
        """
        found = self._run(
            do="consume",
            namesrv=namesrv,
            topic=topic,
            group=group,
            count=count,
            expression=expression,
            orderly=orderly,
            broadcasting=broadcasting,
        )
        return [{**one, "body": base64.b64decode(one["body"])} for one in found]

    def _run(self, **request: Any) -> list[dict[str, Any]]:
        # It keeps offsets of broadcasting in the home folder.
        with tempfile.TemporaryDirectory(prefix="go-client-") as home:
            result = subprocess.run(
                [self._program],
                input=json.dumps(request).encode() + b"\n",
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                env={"HOME": home, "GODEBUG": ""},
            )
        lines = [json.loads(one) for one in result.stdout.splitlines() if one.startswith(b"{")]
        if not lines or lines[-1] != {"end": True}:
            raise GoError(f"{lines[-1:]} {result.stderr[-2000:].decode(errors='replace')}")
        return lines[:-1]


def _build(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise GoUnavailable("go is missing: install Go 1.21 or later (https://go.dev/dl/)")
    result = subprocess.run(
        [go, "build", "-o", folder / "go-client", "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise GoUnavailable(f"go could not build the client: {result.stderr[-800:]}")
