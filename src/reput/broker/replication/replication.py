"""Replication of a running broker, in its role: a master's port, or a slave's connection."""

import socket

from reput.broker.identity import Identity
from reput.broker.replication.follower import Follower
from reput.broker.replication.metadata import MetadataSync
from reput.broker.replication.slave_port import SlavePort


class Replication:
    """Runs the components that the role requires.

    Args:
        identity: The broker's role.
        slave_port: The port for slaves, of a master.
        follower: The connection to the master, of a slave.
        metadata: The copy of the master's tables, of a slave.
    """

    def __init__(
        self,
        identity: Identity,
        slave_port: SlavePort,
        follower: Follower,
        metadata: MetadataSync,
    ) -> None:
        self._identity = identity
        self.slave_port = slave_port
        self.follower = follower
        self.metadata = metadata

    async def listen(self, listening: socket.socket | None = None) -> None:
        """Open a master's port, before the broker registers.

        Args:
            listening: The socket of the port, if it was opened before.

        Raises:
            OSError: The port is in use.
            InvalidOption: There is no port after the one for requests.
        """
        if self._identity.is_master:
            await self.slave_port.start(listening)

    async def start(self) -> None:
        """Start following as a slave, after the broker has begun to register."""
        if not self._identity.is_master:
            await self.follower.start()
            await self.metadata.start()

    async def stop(self) -> None:
        """Stop all parts."""
        await self.metadata.stop()
        await self.follower.stop()
        await self.slave_port.stop()
