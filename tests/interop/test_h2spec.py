"""h2spec, a test of HTTP/2 servers, against the gRPC server: all of its cases pass.

It requests ``/``, which the server refuses with a text: that has headers and data, as it needs.
"""

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from interop.java_oracle import HERE, cached
from remoting_subject import both_loops
from reput.grpc.http2.grpc import Service
from reput.grpc.http2.server import GrpcServer

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


def _build(folder: Path) -> None:
    command = ["go", "build", "-o", str(folder), "github.com/summerwind/h2spec/cmd/h2spec"]
    result = subprocess.run(
        command, cwd=HERE / "h2spec", capture_output=True, text=True, check=False, timeout=300
    )
    if result.returncode:
        pytest.skip(f"missing go: h2spec cannot be built: {result.stderr[-500:]}")


@pytest.fixture(scope="module")
def h2spec() -> Path:
    if shutil.which("go") is None:
        pytest.skip("missing go: install Go 1.21 or later (https://go.dev/dl/)")
    return cached("h2spec", sorted((HERE / "h2spec").iterdir()), _build) / "h2spec"


@both_loops
async def test_h2spec(h2spec: Path) -> None:
    server = GrpcServer(Service({}), host="127.0.0.1")
    await server.start()
    process = await asyncio.create_subprocess_exec(
        h2spec,
        *("--host", "127.0.0.1", "--port", str(server.port), "--timeout", "5"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1"},
    )
    output = (await process.communicate())[0].decode()
    await server.stop()
    summary = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", output)
    assert summary, output
    tests, passed, skipped, failed = map(int, summary.groups())
    assert (tests, passed, skipped, failed) == (145, 145, 0, 0), output
    assert process.returncode == 0
