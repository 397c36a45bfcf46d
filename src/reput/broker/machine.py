"""What a broker uses of its machine besides time: disks, threads, and sockets for logs.

All other connections, timers and worker threads are those of the event loop. With another loop and
another machine, brokers run in a simulation.
"""

import asyncio
import socket
from collections.abc import Callable

from reput.broker.threads import SyncThread
from reput.store.files.disk import Disk

_BACKLOG = 1024


class Machine:
    """The machine of this process."""

    def disk(self) -> Disk:
        """Return the disk, with its own open descriptors."""
        return Disk()

    def sync_thread(self, name: str, sync: Callable[[], None]) -> SyncThread:
        """Return a thread that makes a log durable, not started yet.

        Args:
            name: The name of the thread.
            sync: Makes the log durable; called in the thread.
        """
        return SyncThread(name, sync)

    def listen(self, host: str, port: int) -> socket.socket:
        """Return a socket that listens for slaves and does not block. Raises ``OSError``."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        listening.setblocking(False)
        return listening

    async def connect(self, host: str, port: int) -> socket.socket:
        """Return a socket to a master's port for slaves that does not block. Raises ``OSError``.

        It is connected to the first address of the host that accepts.
        """
        loop = asyncio.get_running_loop()
        failure = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
            except OSError as error:
                failure = error
                sock.close()
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failure
