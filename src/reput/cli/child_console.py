"""The console of ``reput up``: a child process, which ends with the process that has started it.

The child (``console_process``) reads its stdin: the end of the pipe, which comes also if the parent
is killed, stops it. Its stdout has the URL, and its log goes to the stderr of the parent.
"""

import asyncio
import contextlib
import sys

from reput.cli.server_texts import CannotServe

HOST = "127.0.0.1"
START_S = 60.0
_PREFIX = b"console: "
_CODE = "from reput.cli.console_process import main; main()"


async def start(running: contextlib.AsyncExitStack, namesrv: str, port: int) -> str:
    """Start a console, and return its URL.

    Args:
        running: Stops it when it is closed.
        namesrv: The name server.
        port: Port of the console on loopback; 0: any.

    Raises:
        CannotServe: It did not start; the reason is on stderr.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CODE, namesrv, f"{HOST}:{port}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C on a terminal is for the parent
    )
    running.push_async_callback(_stop, process)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
    except TimeoutError:
        raise CannotServe(f"the console has not started in {START_S:g} s") from None
    if not line.startswith(_PREFIX):
        raise CannotServe("the console did not start; its message is above")
    return line.removeprefix(_PREFIX).decode().strip()


async def _stop(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()
