"""A broker in a child process, which ends with the process that has started it.

The child reads its stdin: the end of the pipe, which comes also if the parent is killed, stops it.
Its stdout has the line of a started broker, with its address.
"""

import asyncio
import contextlib
import logging
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_STOP_S = 60.0
_STARTED = re.compile(rb"The broker\[(?P<name>.+), (?P<address>\S+)\] boot success\.")
_GRPC = re.compile(rb"5\.x clients at (?P<address>\S+)$")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ChildBroker:
    """A broker that runs in a child process."""

    name: str
    """Name of the broker in logs."""
    conf: Path
    """The broker's broker.conf."""
    process: asyncio.subprocess.Process | None = None
    address: str = ""
    """Address of its port, after its start."""
    grpc_address: str | None = None
    """Address of its port for 5.x clients, if it has one."""

    @property
    def is_running(self) -> bool:
        """True while there is a process, also before it serves."""
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int | None:
        """Id of the process; None if it has ended."""
        return self.process.pid if self.process is not None and self.is_running else None

    async def launch(
        self,
        *options: str,
        log: IO[bytes] | int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process; ``await_start`` waits until it serves.

        Args:
            options: Further options of ``reput broker``.
            log: Where its log goes: a file, or ``asyncio.subprocess.PIPE``.
            environment: Its environment, by default that of this process.
        """
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "reput", "broker", "-c", str(self.conf), "--stop-with-stdin", *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=environment,
            # Ctrl-C is for this process, which stops the brokers: a second signal would kill them.
            start_new_session=True,
        )

    async def await_start(self) -> bool:
        """Wait until the broker serves; return False if it has ended instead."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).rstrip()
        started = _STARTED.match(line)
        if started is None:
            return False
        self.address = started["address"].decode()
        grpc = _GRPC.search(line)
        self.grpc_address = grpc["address"].decode() if grpc else None
        return True

    async def wait(self) -> str:
        """Wait for the end of the process; return how it has ended."""
        assert self.process is not None
        code = await self.process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def stop(self) -> None:
        """Stop the broker cleanly; kill it after a minute."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            _log.error("%s did not stop in %.0f s, and is killed", self.name, _STOP_S)
            process.kill()
            await process.wait()
