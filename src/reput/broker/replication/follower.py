"""A slave's connection to its master: checks the log, receives it, and acknowledges it."""

from reput.broker.identity import Identity
from reput.broker.registration import Registration
from reput.broker.replication.state import SlaveStatus
from reput.broker.settings.live import LiveConfig
from reput.clock import Clock
from reput.store.interface import BrokerStore


class Follower:
    """Follows the master of this broker's name.

    Args:
        settings: The settings in force.
        identity: The broker's addresses.
        store: The store.
        registration: Source of the master's addresses.
        clock: The clock.
    """

    def __init__(
        self,
        settings: LiveConfig,
        identity: Identity,
        store: BrokerStore,
        registration: Registration,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._store = store
        self._registration = registration
        self._clock = clock
        self.status = SlaveStatus()
        """The state, as of now."""

    async def start(self) -> None:
        """Begin to follow."""

    async def stop(self) -> None:
        """Close the connection."""
