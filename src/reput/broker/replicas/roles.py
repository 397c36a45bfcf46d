"""The roles of a broker under a controller: it enters them, and does what they require.

master of a new epoch -> the store is reopened: all is dispatched, the epoch is durable, then
puts are served, and the in-sync set is kept
slave                 -> the store is reopened if it was a master's; the master is followed
"""

import asyncio
from typing import Protocol

from reput.broker.identity import Identity
from reput.broker.registration import Registration
from reput.broker.replicas.agreement import Agreement
from reput.broker.replicas.epochs import Epochs
from reput.broker.replicas.framing import EpochMasterFraming
from reput.broker.replicas.identity_files import IdentityFiles
from reput.broker.replicas.in_sync_keeper import InSyncKeeper
from reput.broker.replicas.member import LogEnd, Mastership, Member
from reput.broker.settings.live import LiveConfig
from reput.clock import Clock
from reput.format.codes import MASTER_ID
from reput.store.config import BrokerRole
from reput.store.files.disk import Disk
from reput.store.log.in_sync_set import InSyncSet
from reput.store.message_store import MessageStore


class Host(Protocol):
    """The broker, as far as its roles need it."""

    settings: LiveConfig
    identity: Identity
    store: MessageStore

    @property
    def registration(self) -> Registration:
        """The registration with name servers."""

    def settle(self) -> None:
        """Send the replies of puts that are safe or late."""

    def open_slave_port(self) -> None:
        """Open the port for slaves of a slave that becomes master. Raises ``InvalidOption``."""

    async def reopen(self, cut_at: int | None = None) -> None:
        """Reopen the store in the wanted role."""


class GroupRoles:
    """The membership of a broker, and its current role.

    Args:
        host: The broker.
        disk: Writes the files of the membership.
        clock: The clock.

    Raises:
        StoreUnavailable: A file is damaged, or of another broker.
    """

    def __init__(self, host: Host, disk: Disk, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        settings, store = host.settings, host.settings.store
        config, root = settings.broker, store.store_path_root_dir
        self.epochs = Epochs(store.store_path_epoch_file or f"{root}/epochFileCheckpoint", disk)
        self.member = Member(
            config,
            lambda: host.identity.address,
            IdentityFiles(
                store.store_path_broker_identity or f"{root}/brokerIdentity",
                config.broker_cluster_name,
                config.broker_name,
                disk,
            ),
            self.epochs,
            self._log_end,
            self._enter,
            clock,
            settings.request_tls,
            settings.request_signer,
        )
        self.own_epoch = 0
        """The epoch in which this broker is master; 0 if it is not."""
        self._mastership = Mastership()
        self._keeper: InSyncKeeper | None = None
        self._known_end = LogEnd(0, 0)

    def _log_end(self) -> LogEnd:
        """Return the end of the log; while the store is reopened, the one before."""
        store = self._host.store
        if store.is_open:
            end, in_sync = store.max_physical_offset, store.in_sync
            self._known_end = LogEnd(end, end if in_sync is None else in_sync.confirmed(end))
        return self._known_end

    # The store and the parts --------------------------------------------------------------------

    def master_framing(self, store: MessageStore) -> EpochMasterFraming:
        """Return the frames of a master."""
        return EpochMasterFraming(self.epochs, store)

    def agreement(self, store: MessageStore) -> Agreement:
        """Return how a slave agrees with its master on epochs."""
        config = self._host.settings.store
        return Agreement(
            self.member,
            self.epochs,
            store,
            is_learner=config.async_learner,
            is_from_last_file=config.sync_from_last_file,
            obeys_confirmed=config.all_ack_in_sync_state_set,
        )

    def opened(self, store: MessageStore) -> None:
        """Prepare a store that was opened, before it serves anybody.

        Raises:
            WriteFailed: The epoch cannot be written.
        """
        start, end = store.log.min_offset, store.max_physical_offset
        self.epochs.check(start, end)
        if self._host.identity.is_master:
            self._begin_epoch(store)
        elif self._host.settings.store.all_ack_in_sync_state_set:
            store.await_confirmation()

    def _begin_epoch(self, store: MessageStore) -> None:
        """Begin the epoch of this master. Raises ``WriteFailed``."""
        self.epochs.begin(self._mastership.epoch, store.log.min_offset, store.max_physical_offset)
        config, member = self._host.settings.store, self.member
        in_sync = InSyncSet(
            member.broker_id or 0,
            store.replicas,
            needs_all=config.all_ack_in_sync_state_set,
            may_act_alone=lambda: member.lease.is_valid,
        )
        self._keeper = InSyncKeeper(
            member,
            self._mastership,
            in_sync,
            store.replicas,
            lambda: store.max_physical_offset,
            config.ha_max_time_slave_not_catchup,
            self._host.settle,
            self._stand,
            self._clock,
        )
        store.enter_group(in_sync)
        self.own_epoch = self._mastership.epoch

    def _stand(self, can_acknowledge: bool) -> None:
        """Keep a master that may have a successor from registering in its place."""
        registration = self._host.registration
        was_held, registration.is_held = registration.is_held, not can_acknowledge
        if was_held and can_acknowledge:
            registration.begin()

    def begin(self) -> None:
        """Begin the work of the role, when the broker serves requests."""
        registration = self._host.registration
        registration.is_held = self._mastership.master_id is None
        registration.state_version = self.own_epoch
        registration.follow(self.member.master_addresses)
        if self._keeper is not None:
            self._keeper.start()

    async def end(self) -> None:
        """End the work of the role, before the store is closed."""
        keeper, self._keeper = self._keeper, None
        self.own_epoch = 0
        if keeper is not None:
            await keeper.stop()

    # Roles --------------------------------------------------------------------------------------

    async def _enter(self, wanted: Mastership) -> None:
        """Enter the role that a mastership gives. Raises ``ReputError``."""
        if wanted.master_id == self.member.broker_id:
            await self._become_master(wanted)
        else:
            await self._become_slave(wanted)

    async def _become_master(self, wanted: Mastership) -> None:
        host = self._host
        before, self._mastership = self._mastership, wanted
        if not host.identity.is_master:
            host.open_slave_port()
            host.settings.want_role(BrokerRole.SYNC_MASTER, MASTER_ID)
            host.registration.is_brief = True
            await host.reopen()
        elif before.epoch != wanted.epoch:
            await self.end()
            await asyncio.to_thread(self._begin_epoch, host.store)
            self.begin()
        elif self._keeper is not None:
            self._keeper.take(wanted)

    async def _become_slave(self, wanted: Mastership) -> None:
        host = self._host
        self._mastership = wanted
        host.settings.want_role(BrokerRole.SLAVE, self.member.broker_id or 0)
        if host.identity.is_master:
            host.registration.is_brief = True
            await host.reopen()
            return
        host.settings.enter_role()
        host.registration.is_held = False
        host.registration.follow(self.member.master_addresses)
        host.registration.begin()
