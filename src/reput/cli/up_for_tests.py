"""What ``reput up`` does for tests: addresses as JSON, a command to run, controls over HTTP."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.cli.server_texts import CannotServe, join_address, own_address

if TYPE_CHECKING:
    from reput.broker.server import Broker
    from reput.grpc.server import FrontServer
    from reput.namesrv.server import NameServer

CONTROLS_VARIABLE = "REPUT_TEST_CONTROLS"
"""Environment variable with the URL of the controls, for commands."""
NAMESRV_VARIABLES = ("NAMESRV_ADDR", "ROCKETMQ_NAMESERVER")
"""Environment variables with the name server, for commands; the second one is rocketmq-spring's."""
_STOP_S = 10
"""Time that a command has to end after a signal, in seconds."""


class Controlled:
    """Clock and faults of a broker that tests control."""

    def __init__(self) -> None:
        from reput.testing.faults import Faults
        from reput.testing.shifted_clock import ShiftedClock

        self._clock = ShiftedClock()
        self._faults = Faults()

    @property
    def broker_arguments(self) -> dict[str, Any]:
        """Arguments of ``Broker``."""
        from reput.testing.faults import FaultyPort

        return {
            "clock": self._clock,
            "wrap_port": lambda port: FaultyPort(port, self._faults),
        }

    async def serve(
        self,
        running: contextlib.AsyncExitStack,
        name_server: "NameServer",
        server: "Broker",
        host: str,
        port: int,
    ) -> str:
        """Serve the controls of a started broker until ``running`` ends; return their URL.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        from reput.testing.controls import Controls
        from reput.testing.http_controls import PREFIX, HttpControls

        controls = Controls(name_server, [server], self._clock, self._faults, {})
        listener = HttpControls(controls, host=host or "0.0.0.0", port=port)
        listener.start()
        running.push_async_callback(listener.stop)
        return f"http://{join_address(own_address(host), listener.port)}{PREFIX}"


def addresses(
    server: "Broker", front: "FrontServer | None", name_server: str, controls: str | None
) -> dict[str, Any]:
    """Return the addresses of ``reput up`` as a JSON document."""
    from reput import __version__

    config, identity = server.settings.broker, server.identity
    metrics = None
    if config.metrics_port:
        host = join_address(config.reput_metrics_address, config.metrics_port)
        metrics = f"http://{host}/metrics"
    return {
        "nameServer": name_server,
        "broker": join_address(config.broker_ip1, identity.port),
        "brokerName": config.broker_name,
        "cluster": config.broker_cluster_name,
        "grpc": None if front is None else join_address(config.broker_ip1, front.port),
        "metrics": metrics,
        "testControls": controls,
        "store": server.store.root,
        "pid": os.getpid(),
        "version": __version__,
    }


def drop_ready_file(path: str) -> None:
    """Delete the file of an earlier run: who waits for it must not read its addresses.

    Raises:
        CannotServe: It cannot be deleted.
    """
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise CannotServe(f"--ready-file {path}: {error.strerror}") from None


def write_ready_file(path: str, document: Mapping[str, Any]) -> Callable[[], None]:
    """Write a document to a file atomically; return a function that deletes it.

    Raises:
        CannotServe: The file cannot be written.
    """
    file = Path(path)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(document) + "\n", encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise CannotServe(f"--ready-file {path}: {error.strerror}") from None
    return lambda: file.unlink(missing_ok=True)


async def run_command(
    command: Sequence[str],
    document: Mapping[str, Any],
    stopped: Callable[[], Coroutine[Any, Any, None]],
) -> int:
    """Run a command; return its exit code, or 128 + N if signal N ended it.

    Args:
        command: Program and arguments.
        document: The addresses, see ``addresses``.
        stopped: Returns once the command has to end: it is asked to, and killed after ten seconds.

    Raises:
        CannotServe: It cannot be run.
    """
    environment = {**os.environ, **dict.fromkeys(NAMESRV_VARIABLES, document["nameServer"])}
    if document["testControls"]:
        environment[CONTROLS_VARIABLE] = document["testControls"]
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment)
    except OSError as error:
        raise CannotServe(f"cannot run {command[0]}: {error.strerror}") from None
    ended, wanted = asyncio.create_task(process.wait()), asyncio.create_task(stopped())
    await asyncio.wait((ended, wanted), return_when="FIRST_COMPLETED")
    wanted.cancel()
    if not ended.done():
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait((ended,), timeout=_STOP_S)
        if not ended.done():
            process.kill()
    code = await ended
    return code if code >= 0 else 128 - code
