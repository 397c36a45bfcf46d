"""Identity of a running broker: its addresses, its role, and whether it stops."""

import socket

from reput.broker.settings.live import LiveConfig
from reput.errors import InvalidOption
from reput.format.codes import PERM_READ
from reput.format.message import Host
from reput.store.config import BrokerRole

NOWHERE = Host(b"\x7f\0\0\1", 0)


class Identity:
    """Identity of a broker. The server sets it, all parts read it.

    Args:
        settings: The settings in force.
        started_ms: The time of the start, ms since 1970.
    """

    def __init__(self, settings: LiveConfig, started_ms: int) -> None:
        self._settings = settings
        self.started_ms = started_ms
        """The time of the start, ms since 1970."""
        self.is_stopping = False
        """True once the broker has begun to stop."""
        self.address = ""
        """The address that clients connect to: ``brokerIP1:port``."""
        self.ha_address = ""
        """The address that slaves connect to."""
        self.store_host = NOWHERE
        """The address that records of this broker have as their store host."""
        self.port = 0
        """The port for all requests."""
        self.fast_port = 0
        """The port for all requests but pulls; 0 if there is none."""

    @property
    def is_master(self) -> bool:
        """True if it stores messages and consumer offsets of clients."""
        return self._settings.store.broker_role is not BrokerRole.SLAVE

    @property
    def is_readable(self) -> bool:
        """True if messages may be pulled."""
        return self._settings.broker.broker_permission & PERM_READ != 0


def host_of(address: str, port: int) -> Host:
    """Return an address in the form of records; host names are resolved.

    Raises:
        InvalidOption: A host name cannot be resolved.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return Host(socket.inet_pton(family, address), port)
        except OSError:
            continue
    try:
        return Host(socket.inet_aton(socket.gethostbyname(address)), port)
    except OSError as error:
        allowed = f"an address of this machine, or a name that resolves here: {error.strerror}"
        raise InvalidOption("brokerIP1", address, allowed) from None
