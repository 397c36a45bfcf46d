"""The port for slaves: sends them the log, and takes their acknowledgements."""

from reput.broker.identity import Identity
from reput.broker.pending_replies import PendingReplies
from reput.broker.settings.live import LiveConfig
from reput.clock import Clock
from reput.store.interface import BrokerStore

PORT_DISTANCE = 1
"""Distance of the port for slaves from the port for requests, by default."""


class SlavePort:
    """Listens for slaves, on the event loop.

    Args:
        settings: The settings in force.
        identity: The broker's addresses; ``start`` sets the one for slaves.
        store: The store.
        pending_replies: Replies to sends that wait for slaves.
        clock: The clock.
    """

    def __init__(
        self,
        settings: LiveConfig,
        identity: Identity,
        store: BrokerStore,
        pending_replies: PendingReplies,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._store = store
        self._pending_replies = pending_replies
        self._clock = clock

    async def start(self) -> None:
        """Listen. Raises ``OSError`` if the port is in use."""
        port = self._settings.store.ha_listen_port
        if port < 0:
            port = self._identity.port + PORT_DISTANCE
        self._identity.ha_address = f"{self._settings.broker.broker_ip2}:{port}"

    async def stop(self) -> None:
        """Close the port and all connections."""

    def pump(self) -> None:
        """Send all slaves what the log has; to be called after puts."""
