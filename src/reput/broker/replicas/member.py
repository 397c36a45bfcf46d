"""The membership of a broker in a replica group: it takes the role that the controller decides.

    id (once) -> registration (each start) -> heartbeat, question for the master (each second)
                                                      -> a role -> the broker enters it

The controller's notices (1008) only make the broker ask at once: anybody could send them. Answers
of an earlier epoch are ignored. Source: rocketmq 5.5.0 ``ReplicasManager``; unlike there, a master
knows for how long no other one can have been elected (``lease``).
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from reput.broker.registration import MasterAddresses
from reput.broker.replicas import controllers as of_controllers
from reput.broker.replicas.controllers import Controllers, RefusedByController
from reput.broker.replicas.epochs import Epochs
from reput.broker.replicas.identity_files import Application, IdentityFiles
from reput.broker.replicas.lease import Lease
from reput.broker.settings.config import BrokerConfig
from reput.clock import Clock
from reput.errors import ReputError
from reput.format import bodies, headers
from reput.format.bodies import SyncStateSet
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.controller_headers import (
    AlterSyncStateSetHeader,
    AlterSyncStateSetReplyHeader,
    ApplyBrokerIdHeader,
    ApplyBrokerIdReplyHeader,
    ElectMasterHeader,
    HeartbeatHeader,
    MasterHeader,
    NextBrokerIdHeader,
    NextBrokerIdReplyHeader,
    RegisterAtControllerHeader,
    RegisterAtControllerReplyHeader,
)
from reput.format.headers import ExchangeHaInfoReplyHeader
from reput.format.signing import Signer

_HA_ADDRESS_S = 0.1
"""Delay after which a new master is asked again for the address of its port for slaves, in s."""

_log = logging.getLogger(__name__)


class Mastership(NamedTuple):
    """The master of a group, as the leading controller has answered."""

    epoch: int = 0
    set_epoch: int = 0
    master_id: int | None = None
    """None if the group has no master."""
    address: str = ""
    """Address of the master for requests."""
    in_sync: frozenset[int] = frozenset()


class LogEnd(NamedTuple):
    """The end of a broker's log."""

    log_end: int
    """Physical offset after the last byte."""
    confirmed_offset: int


class Member:
    """The membership of a broker.

    Args:
        config: The settings of the broker.
        address: Returns the address of this broker for requests.
        files: The files with its id.
        epochs: The epochs of its log.
        log_end: Returns the end of its log.
        enter: Enters the role that the mastership gives it, and returns when that is done.
        clock: The clock.
        tls: Certificates of the requests; None without TLS.
        signer: Signs the requests; None: they are not signed.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: Callable[[], str],
        files: IdentityFiles,
        epochs: Epochs,
        log_end: Callable[[], LogEnd],
        enter: Callable[[Mastership], Awaitable[None]],
        clock: Clock,
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._config = config
        self._own_address = address
        self._files = files
        self.epochs = epochs
        self._log_end = log_end
        self._enter = enter
        self._clock = clock
        timeout_ms = config.controller_heart_beat_timeout_mills
        self.lease = Lease(timeout_ms, clock.monotonic_ms)
        self.controllers = Controllers(
            of_controllers.named(config.controller_addr), self._lost_leader, tls, signer
        )
        self.broker_id: int | None = None
        """The id in the group; None until the controller has given one."""
        self.mastership = Mastership()
        """The latest answer about the master."""
        self.problem = "no controller has answered yet"
        """Reason why the broker has no role, or may lose it; empty if there is none."""
        self.ha_address = ""
        """Address of the master's port for slaves; empty if it is unknown."""
        self.answered_ms = -(1 << 62)
        """Time at which the latest answered question for the master was sent, monotonic ms."""
        self._is_registered = False
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._entering: asyncio.Task[None] | None = None
        self._entered = Mastership()

    @property
    def is_master(self) -> bool:
        """True if the group's master is this broker, according to the latest answer."""
        return self.broker_id is not None and self.mastership.master_id == self.broker_id

    @property
    def has_role(self) -> bool:
        """False until the broker has entered a role."""
        return self._entered.master_id is not None

    @property
    def master_addresses(self) -> MasterAddresses:
        """The addresses of the master to be followed."""
        return MasterAddresses(self.mastership.address, self.ha_address)

    def start(self) -> None:
        """Start to join the group. Raises ``StoreUnavailable``: a file is damaged or foreign."""
        self.broker_id = self._files.broker_id()
        self._task = asyncio.create_task(self._run(), name="member")

    async def stop(self) -> None:
        """Send no more heartbeats; another broker becomes master."""
        self.lease.end()
        for task in (self._task, self._entering):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.controllers.close()

    def _lost_leader(self) -> None:
        self.lease.end()
        self.wake()  # another one may lead already

    def wake(self) -> None:
        """Ask the controller at once: the group may have another master."""
        self._woken.set()

    async def _run(self) -> None:
        pause_ms = self._config.broker_heartbeat_interval
        while True:
            begun_ms = self._clock.monotonic_ms()
            self._woken.clear()
            try:
                if not self._is_registered:
                    await self._join()
                await self._step()
            except ReputError as error:
                self._report(str(error))
            except Exception as error:  # noqa: BLE001 - the outermost edge of a task
                _log.exception("the membership in the replica group failed")
                self._report(f"{type(error).__name__}: {error}")
            rest_ms = begun_ms + pause_ms - self._clock.monotonic_ms()
            try:
                async with asyncio.timeout(max(rest_ms, 1) / 1000):
                    await self._woken.wait()
            except TimeoutError:
                pass

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            _log.warning("replica group of %s: %s", self._config.broker_name, problem)

    # Joining ----------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Get an id, once in the life of the store, and register. Raises ``ReputError``."""
        if self.broker_id is None:
            self.broker_id = await self._new_id()
        config = self._config
        header = RegisterAtControllerHeader(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=self.broker_id,
            broker_address=self._own_address(),
        )
        answer, in_sync_set = await self.controllers.master_of(
            RequestCode.CONTROLLER_REGISTER_BROKER, header, RegisterAtControllerReplyHeader
        )
        self._is_registered = True
        _log.info("registered at %s with id %d", self.controllers.leader, self.broker_id)
        self._beat()
        self._take(answer, in_sync_set)

    async def _new_id(self) -> int:
        config = self._config
        cluster, name = config.broker_cluster_name, config.broker_name
        application = self._files.application()
        if application is None:
            reply, _ = await self.controllers.ask(
                RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
                NextBrokerIdHeader(cluster_name=cluster, broker_name=name),
                NextBrokerIdReplyHeader,
            )
            code = f"{self._own_address()};{self._clock.now_ms()}"
            application = Application(reply.next_broker_id, code)
            await asyncio.to_thread(self._files.write_application, application)
        header = ApplyBrokerIdHeader(
            cluster_name=cluster,
            broker_name=name,
            applied_broker_id=application.broker_id,
            register_check_code=application.check_code,
        )
        try:
            await self.controllers.ask(
                RequestCode.CONTROLLER_APPLY_BROKER_ID, header, ApplyBrokerIdReplyHeader
            )
        except RefusedByController as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                await asyncio.to_thread(self._files.forget_application)  # another broker has it
            raise
        await asyncio.to_thread(self._files.write_id, application.broker_id)
        return application.broker_id

    # Each second ------------------------------------------------------------------------------

    def _beat(self) -> int:
        """Send heartbeats; return the time before that, monotonic ms."""
        sent_ms = self._clock.monotonic_ms()
        config, end = self._config, self._log_end()
        header = HeartbeatHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=self._own_address(),
            broker_name=config.broker_name,
            broker_id=self.broker_id,
            epoch=max(self.epochs.last, 0),
            max_offset=end.log_end,
            confirm_offset=end.confirmed_offset,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
        )
        self.controllers.beat(header)
        return sent_ms

    async def _step(self) -> None:
        """Send heartbeats, and ask for the master. Raises ``ReputError``."""
        sent_ms = self._beat()
        leader = await self.controllers.find_leader()
        # The answer shows that the leader has received what was before it on the connection.
        await self.controllers.await_beat(leader)
        answer, in_sync_set = await self.controllers.replica_info(self._config.broker_name)
        if self.controllers.leader != leader:
            return
        self.answered_ms = sent_ms
        self._take(answer, in_sync_set)
        if self.is_master and self._entered.epoch == self.mastership.epoch:
            self.lease.renew(sent_ms)
        if self.mastership.master_id is None:
            await self._elect()
        elif not self.is_master:
            await self._find_ha_address()

    def _take(self, answer: MasterHeader, in_sync_set: SyncStateSet) -> None:
        """Take an answer of the leading controller, unless a later one was there before."""
        known = self.mastership
        epoch = answer.master_epoch or 0
        set_epoch = in_sync_set.sync_state_set_epoch
        if (epoch, set_epoch) < (known.epoch, known.set_epoch):
            return
        last, master_id = self.epochs.last, answer.master_broker_id
        if last > epoch and master_id not in (None, self.broker_id):
            self.lease.end()
            self._report(
                f"the log of this broker has bytes of epoch {last}, and the master that the "
                f"controller names is of epoch {epoch}: the controller's state is older, or it is "
                "not the controller of this group"
            )
            return
        self.mastership = Mastership(
            epoch,
            set_epoch,
            master_id,
            answer.master_address or "",
            frozenset(in_sync_set.sync_state_set),
        )
        if not self.is_master:
            self.lease.end()
        if master_id is None:
            self._report(f"the group has no master in epoch {epoch}")
        else:
            self.problem = ""
        if (self.mastership.address, epoch) != (known.address, known.epoch):
            self.ha_address = ""  # a master that has started again may have another port
        self._enter_soon()

    def _enter_soon(self) -> None:
        if self._entering is None or self._entering.done():
            self._entering = asyncio.create_task(self._enter_all(), name="entering a role")

    async def _enter_all(self) -> None:
        """Enter the role, and the next one if it has changed meanwhile."""
        while (wanted := self.mastership) != self._entered and wanted.master_id is not None:
            try:
                await self._enter(wanted)
            except ReputError as error:
                self._report(f"cannot become what the controller wants: {error}")
                return  # the next answer tries again
            except Exception as error:  # noqa: BLE001 - the outermost edge of a task
                _log.exception("entering the role failed")
                self._report(f"{type(error).__name__}: {error}")
                return
            self._entered = wanted
            if self.is_master:
                self.wake()  # the lease begins with the next answer

    async def _elect(self) -> None:
        """Ask for an election (1002): a controller without masters does not begin one itself."""
        config = self._config
        header = ElectMasterHeader(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=-1 if self.broker_id is None else self.broker_id,
        )
        code = RequestCode.CONTROLLER_ELECT_MASTER
        try:
            await self.controllers.ask(code, header, MasterHeader)
        except RefusedByController as error:
            if error.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
                raise
        else:
            self.wake()

    async def _find_ha_address(self) -> None:
        """Ask the master for the address of its port for slaves (906)."""
        if self.ha_address:
            return
        address = self.mastership.address
        request = Command(RequestCode.EXCHANGE_BROKER_HA_INFO)
        header = ExchangeHaInfoReplyHeader()
        try:
            reply = await self.controllers.invoke(address, request)
            if reply.code == ResponseCode.SUCCESS:
                header = headers.decode(ExchangeHaInfoReplyHeader, reply.ext_fields)
        except ReputError as error:
            _log.debug("master %s: %s", address, error)
        if not header.master_ha_address:  # it has just been elected, and is opening its port
            asyncio.get_running_loop().call_later(_HA_ADDRESS_S, self.wake)
        elif address == self.mastership.address:
            self.ha_address = header.master_ha_address
            self._entered = self._entered._replace(set_epoch=-1)  # enter it with the port
            self._enter_soon()

    # The in-sync set --------------------------------------------------------------------------

    async def alter_in_sync(self, of: Mastership, wanted: frozenset[int]) -> None:
        """Ask the controller for another in-sync set (1001); ``mastership`` has it afterwards.

        Args:
            of: The mastership of this broker, with the set that is to be replaced.
            wanted: Ids of the members, this broker included.

        Raises:
            RefusedByController: It refuses this request; an earlier one may still be granted.
            NoLeader: The outcome is unknown.
        """
        header = AlterSyncStateSetHeader(
            broker_name=self._config.broker_name,
            master_broker_id=self.broker_id or 0,
            master_epoch=of.epoch,
        )
        body = SyncStateSet(sync_state_set=sorted(wanted), sync_state_set_epoch=of.set_epoch)
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        reply, in_sync_set = await self.controllers.master_of(
            code, header, AlterSyncStateSetReplyHeader, bodies.encode(body)
        )
        known = self.mastership
        if known.epoch == of.epoch and reply.new_sync_state_set_epoch > known.set_epoch:
            self.mastership = known._replace(
                set_epoch=reply.new_sync_state_set_epoch,
                in_sync=frozenset(in_sync_set.sync_state_set) or wanted,
            )
            self._enter_soon()
