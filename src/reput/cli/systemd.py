"""Reports of a server to systemd: units with ``Type=notify`` and ``WatchdogSec=``.

A report is one datagram to the socket ``NOTIFY_SOCKET``. The watchdog is fed by a task of the event
loop: if the loop hangs, systemd ends the process and starts it again. Without the variables nothing
is done. Child processes do not inherit them, as systemd ignores reports of others.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, MutableMapping

SOCKET, WATCHDOG_US, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
STOPPING = "STOPPING"
"""State that a process reports before it ends."""
FEEDS_PER_TIMEOUT = 3
"""Reports to the watchdog in each of its timeouts."""

_log = logging.getLogger(__name__)


class Systemd:
    """The systemd that has started this process, if there is one.

    Args:
        environment: ``os.environ``; its variables are removed.
        process_id: Id of this process; None: ask the system.
    """

    def __init__(
        self, environment: MutableMapping[str, str], process_id: int | None = None
    ) -> None:
        address = environment.pop(SOCKET, "")
        # "@" is the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        timeout_us = environment.pop(WATCHDOG_US, "")
        owner = environment.pop(WATCHDOG_PID, "")
        is_ours = not owner or owner == str(process_id or os.getpid())
        self.watchdog_s: float | None = None
        """Timeout of the watchdog in seconds; None if there is none."""
        if is_ours and timeout_us.isdecimal() and int(timeout_us):
            self.watchdog_s = int(timeout_us) / 1e6

    def report(self, **values: str | int) -> None:
        """Report values, such as ``READY=1``; failures are logged."""
        if not self._address:
            return
        text = "\n".join(f"{name}={' '.join(str(value).split())}" for name, value in values.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(errors="backslashreplace"), self._address)
        except OSError as error:
            _log.warning("systemd does not get %s: %s", text, error)

    @contextlib.asynccontextmanager
    async def running(self, status: str) -> AsyncIterator[None]:
        """Report that the server is ready, feed the watchdog, and report the end.

        Args:
            status: What ``systemctl status`` shows.
        """
        self.report(READY=1, STATUS=status)
        feeding = asyncio.create_task(self._feed(), name="watchdog")
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.wait((feeding,))
            self.report(STOPPING=1, STATUS="stopping")

    async def _feed(self) -> None:
        while self._address and self.watchdog_s is not None:
            self.report(WATCHDOG=1)
            await asyncio.sleep(self.watchdog_s / FEEDS_PER_TIMEOUT)
