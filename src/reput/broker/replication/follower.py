"""A slave's connection to its master: finds it, checks the log, receives it, and acknowledges it.

    search -> check -> receive -> the connection ends -> search

A master is refused, and not followed, if it is not the master of this broker, or if its log is not
the continuation of the own one. All attempts are repeated every few seconds: nothing but the
reason in ``status`` depends on the last one.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from reput.broker.identity import Identity
from reput.broker.machine import Machine
from reput.broker.registration import MasterAddresses, Registration
from reput.broker.replication import tail_check
from reput.broker.replication.framing import SlaveFraming
from reput.broker.replication.log_receiver import (
    ByteStream,
    Disconnected,
    EncryptedConnection,
    LogReceiver,
    PlainConnection,
)
from reput.broker.replication.master_requests import MasterRange, MasterRequests, Unanswered
from reput.broker.replication.state import SlaveState, SlaveStatus
from reput.broker.replication.topic_check import TopicCheck
from reput.broker.settings.config import HA_PORT_DISTANCE
from reput.broker.settings.live import LiveConfig
from reput.broker.topic.topics import Topics
from reput.clock import Clock
from reput.errors import InvalidOption, NotAFrame, ReputError, WriteFailed
from reput.format import message as record
from reput.remoting.client import RemotingClient, split_address
from reput.remoting.polled_socket import TlsSocket
from reput.remoting.tls_settings import reason_of
from reput.store.config import BrokerRole, DivergedPolicy, DurableIn
from reput.store.message_store import MessageStore

RETRY_MS = 5_000
"""Delay between two attempts, in ms."""
LED_RETRY_MS = 500
"""Delay under a controller, where a new master waits for its slaves, in ms."""
DIVERGED_RETRY_MS = 30_000
"""Delay after a comparison of diverged logs, which takes many requests, in ms."""
CONNECT_TIMEOUT_MS = 3_000
UNCHECKED_AFTER = 3
"""Consecutive attempts in which the master accepts slaves, but does not answer requests, after
which it is followed unchecked: a master that starts opens its port for slaves first."""
_DISPATCH_PAUSE_MS = 1
"""Delay of the dispatch after an acknowledgement, so that several frames share a step."""
_RANGE_INTERVAL_MS = 5_000
"""Interval between requests for the end of the master's log, in ms."""

_log = logging.getLogger(__name__)


class MayNotFollow(ReputError):
    """The master must not be followed.

    Args:
        state: The kind of the problem.
        reason: Details, with the values of both sides.
        diverged_offset: Physical offset up to which the logs are equal, if known.
    """

    def __init__(self, state: SlaveState, reason: str, diverged_offset: int | None = None) -> None:
        super().__init__(reason)
        self.state = state
        self.diverged_offset = diverged_offset


class EpochAgreement(Protocol):
    """The agreement on epochs with a master under a controller."""

    @property
    def framing(self) -> SlaveFraming:
        """The frames of connections to masters."""

    async def find_cut(self, connection: ByteStream, *, is_compared: bool) -> int | None:
        """Shake hands; return where the own log must be cut, None if the master continues it."""


class OwnLog:
    """The slave's log, for the comparison with the master's.

    Args:
        store: The store.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._log = store.replica_log

    @property
    def end(self) -> int:
        """Physical offset after the last byte."""
        return self._log.end

    def last_record(self) -> tuple[int, bytes] | None:
        """Return physical offset and bytes of the last whole record; None if there is none."""
        return self._log.last_record()

    def records_before(self, physical_offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield physical offset and bytes of the records before an offset, newest first."""
        return self._log.records_before(physical_offset)

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if there is none."""
        return self._store.record_at(physical_offset)

    def rest(self) -> tuple[int, bytes]:
        """Return physical offset and bytes of the incomplete last record, which may be empty.

        Of a blank only the first bytes are returned, which show what it is.
        """
        log = self._store.log
        end, last = self._log.end, self._log.last_record()
        begin = log.min_offset if last is None else last[0] + len(last[1])
        begin = max(begin, end - end % self._store.config.mapped_file_size_commit_log)
        head_bytes = min(end - begin, record.SIZE_AND_MAGIC.size)
        (data,) = log.read_all([(begin, head_bytes)])
        if data and not tail_check.may_be_blank(data):
            (data,) = log.read_all([(begin, end - begin)])
        return begin, data or b""


class Follower:
    """Follows the master of this broker's name.

    Args:
        settings: The settings in force.
        identity: The broker's addresses.
        store: The store.
        topics: The topics of this broker.
        registration: Source of the master's addresses.
        clock: The clock.
        status: Takes the current state.
        copy_topics: Copies the topics of the master; raises ``ReputError``.
        on_cut: Called with the physical offset at which the log must be cut before the slave can
            follow; the follower has ended then.
        machine: Connects to the master, and syncs the log.
        agreement: The agreement with masters under a controller, which decides that this log is
            cut where it differs; None in the classic mode.
    """

    def __init__(
        self,
        settings: LiveConfig,
        identity: Identity,
        store: MessageStore,
        topics: Topics,
        registration: Registration,
        clock: Clock,
        status: SlaveStatus,
        copy_topics: Callable[[MasterRequests], Awaitable[None]],
        on_cut: Callable[[int], object],
        machine: Machine,
        agreement: EpochAgreement | None = None,
    ) -> None:
        self._agreement = agreement
        self._settings = settings
        self._identity = identity
        self._store = store
        self._topics = topics
        self._registration = registration
        self._clock = clock
        self.status = status
        self._copy_all_topics = copy_topics
        self._on_cut = on_cut
        self._machine = machine
        self._client: RemotingClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._range_task: asyncio.Task[None] | None = None
        self._topics_task: asyncio.Task[None] | None = None
        self._receiver: LogReceiver | None = None
        self._dispatching: asyncio.TimerHandle | None = None
        self._sync_thread = machine.sync_thread("reput-acks", store.sync)
        self._has_new_master = asyncio.Event()
        self._followed = MasterAddresses()  # of the current attempt
        self._topics_problem = ""  # why the last copy of the topics failed
        self._unanswered_count = 0
        self._is_unchecked = False  # whether the log says that the master is followed unchecked

    # Starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        """Start following."""
        self._client = RemotingClient(
            tls=self._settings.request_tls, signer=self._settings.request_signer
        )
        self._sync_thread.start(self._synced)
        self._registration.on_master = self._master_changed
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Close the connection."""
        task, self._task = self._task, None
        if task is None:
            return
        self._registration.on_master = lambda: None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._sync_thread.stop()
        if self._client is not None:
            await self._client.close()

    async def _run(self) -> None:
        while True:
            began_ms = self._clock.monotonic_ms()
            self._has_new_master.clear()
            try:
                if await self._attempt():
                    return
            except Exception as error:  # noqa: BLE001 - the outermost edge of a task
                _log.exception("following the master failed")
                self._set_state(SlaveState.FAILED, f"{type(error).__name__}: {error}")
            has_compared = self.status.state in (SlaveState.DIVERGED, SlaveState.AHEAD)
            pause_ms = DIVERGED_RETRY_MS if has_compared else self._retry_ms
            await self._pause(began_ms + pause_ms - self._clock.monotonic_ms())

    @property
    def _retry_ms(self) -> int:
        return RETRY_MS if self._agreement is None else LED_RETRY_MS

    async def _pause(self, duration_ms: int) -> None:
        """Wait, or return early when another master becomes known."""
        if duration_ms > 0:
            try:
                async with asyncio.timeout(duration_ms / 1000):
                    await self._has_new_master.wait()
            except TimeoutError:
                pass

    def _master_changed(self) -> None:
        """Disconnect from a master that is no longer registered."""
        if self._addresses() == self._followed:
            return
        self._has_new_master.set()
        if self._receiver is not None:
            address = self._addresses().ha_address
            self._receiver.disconnect(Disconnected(f"the master is {address} now"))

    def _addresses(self) -> MasterAddresses:
        """Return the addresses of the master; the address for slaves is empty if it is unknown."""
        known, configured = self._registration.master, self._settings.store.ha_master_address
        if not configured:
            return known
        if known.address:
            return MasterAddresses(known.address, configured)
        host, port = split_address(configured)
        host = f"[{host}]" if ":" in host else host
        return MasterAddresses(f"{host}:{port - HA_PORT_DISTANCE}", configured)

    # An attempt -------------------------------------------------------------------------------

    async def _attempt(self) -> bool:
        """Follow the master until the connection ends.

        Returns:
            True if the log must be cut, so that this follower ends.
        """
        assert self._client is not None
        if self._store.flusher.problem:
            self._set_state(SlaveState.FAILED, self._store.flusher.problem)
            return False
        if self._store.replica_log.problem:
            self._set_state(SlaveState.DIVERGED, self._store.replica_log.problem)
            return False
        try:
            addresses = self._followed = self._addresses()
        except InvalidOption as error:
            self._set_state(SlaveState.REFUSED, f"haMasterAddress: {error}")
            return False
        status = self.status
        status.master_address, status.master_ha_address = addresses
        if not addresses.ha_address:
            name = self._settings.broker.broker_name
            self._set_state(SlaveState.SEARCHING, f"no name server has a master of {name!r}")
            self._registration.begin()
            return False
        if status.state is SlaveState.SEARCHING:
            status.state = SlaveState.CHECKING
        master = MasterRequests(self._client, addresses.address)
        try:
            problem = await self._check(master)
            if not problem:
                await self._copy_topics(master)
            await self._receive(master, problem)
        except MayNotFollow as error:
            self._set_state(error.state, str(error), error.diverged_offset)
            return self._has_cut(error)
        except WriteFailed as error:
            self._set_state(SlaveState.FAILED, str(error))
        except Disconnected as error:
            self._set_state(error.state, f"not connected to {addresses.ha_address}: {error}")
            self._registration.begin()
        return False

    def _has_cut(self, refused: MayNotFollow) -> bool:
        """Request a cut of the log where it diverges, if the policy allows it."""
        policy, physical_offset = self._settings.store.ha_diverged_policy, refused.diverged_offset
        if physical_offset is None:
            return False
        if self._agreement is None and policy is not DivergedPolicy.TRUNCATE:
            return False
        _log.warning(
            "%s: this log is cut at physical offset %d, its end is %d",
            "haDivergedPolicy is truncate"
            if self._agreement is None
            else "the controller has elected another log",
            physical_offset,
            self._store.replica_log.end,
        )
        self._on_cut(physical_offset)
        return True

    def _set_state(
        self, state: SlaveState, reason: str, diverged_offset: int | None = None
    ) -> None:
        status = self.status
        if reason != status.reason:
            _log.warning("this slave does not follow, %s: %s", state, reason)
        status.state, status.reason, status.diverged_offset = state, reason, diverged_offset

    # Checking ---------------------------------------------------------------------------------

    async def _check(self, master: MasterRequests) -> str:
        """Check that this broker may follow, and prepare an empty log for the first bytes.

        Returns:
            Reason why the master could not be checked; empty if it was.

        Raises:
            MayNotFollow: It may not follow.
            WriteFailed: The disk failed.
        """
        try:
            await self._check_identity(master)
            master_log = await master.log_range()
            self.status.master_max_offset = master_log.max_offset
            if self._store.replica_log.end:
                await self._check_log(master, master_log)
            else:
                await self._begin_log(master, master_log)
        except Unanswered as error:
            return f"{error}{self._origin_of_address()}"
        return ""

    def _origin_of_address(self) -> str:
        """Return why requests go to their address, if no name server has given it."""
        if self._registration.master.address:
            return ""
        return (
            "; no name server names the master, so that this is the port before that of"
            " haMasterAddress: set namesrvAddr if the master has another haListenPort"
        )

    def _accept_unchecked(self, problem: str) -> None:
        """Follow a master that cannot be checked, after several failed attempts.

        Raises:
            Disconnected: The check failed; retry it first.
        """
        self._unanswered_count = self._unanswered_count + 1 if problem else 0
        if not problem:
            self._is_unchecked = False
        elif self._unanswered_count < UNCHECKED_AFTER:
            raise Disconnected(problem)
        elif not self._is_unchecked:
            self._is_unchecked = True
            _log.warning("the master is followed unchecked, as RocketMQ's slaves do: %s", problem)

    async def _check_identity(self, master: MasterRequests) -> None:
        theirs = await master.identity()
        broker, store = self._settings.broker, self._settings.store
        for what, own, other in (
            ("brokerClusterName", broker.broker_cluster_name, theirs.cluster),
            ("brokerName", broker.broker_name, theirs.broker_name),
            ("mappedFileSizeCommitLog", store.mapped_file_size_commit_log, theirs.file_size),
        ):
            if own != other:
                raise MayNotFollow(
                    SlaveState.REFUSED,
                    f"{what} is {own} here, and {other} on the master {master.address}",
                )
        if theirs.role == BrokerRole.SLAVE:
            raise MayNotFollow(
                SlaveState.REFUSED, f"{master.address} is no master: its brokerRole is SLAVE"
            )
        self._settings.master_role = theirs.role

    async def _check_log(self, master: MasterRequests, master_log: MasterRange) -> None:
        finding = await tail_check.check(OwnLog(self._store), master, master_log)
        if finding.state is not SlaveState.FOLLOWING:
            raise MayNotFollow(finding.state, finding.reason, finding.diverged_offset)

    async def _begin_log(self, master: MasterRequests, master_log: MasterRange) -> None:
        """Prepare an empty log so that the master sends all that it has.

        A report of 0 makes Java's masters begin at their last file.

        Raises:
            Unanswered: The master does not answer.
            WriteFailed: The disk failed.
        """
        log, config = self._store.replica_log, self._settings.store
        if config.sync_from_last_file:
            file_size = config.mapped_file_size_commit_log
            begin = max(master_log.max_offset - 1, 0) // file_size * file_size
        else:
            begin = master_log.min_offset
        if begin:
            log.begin_at(begin, self._clock.now_ms())
        elif master_log.max_offset:
            first = await master.record_at(0)
            if first is None:
                raise Unanswered(f"{master.address} has no record at physical offset 0")
            with log.buffer(len(first)) as room:
                room[:] = first
            log.publish(len(first))

    # Receiving --------------------------------------------------------------------------------

    async def _receive(self, master: MasterRequests, problem: str) -> None:
        """Receive until the connection ends.

        Args:
            master: The master.
            problem: Reason why it could not be checked; empty if it was.

        Raises:
            Disconnected: The connection has ended.
            WriteFailed: The disk failed.
        """
        config, ha_address = self._settings.store, self._followed.ha_address
        if config.ha_ack_after is DurableIn.DISK:
            await asyncio.to_thread(self._store.sync)
        connection = await self._connect(ha_address)
        try:
            self._accept_unchecked(problem)
        except Disconnected:
            connection.close()
            raise
        await self._agree(connection, is_compared=not problem)
        check = TopicCheck(
            self._store,
            self._topics,
            # The topics were copied after the master had this end.
            max(self.status.master_max_offset, self._store.replica_log.end),
            lambda: self._copy_topics_soon(master, check),
        )
        receiver = self._receiver = LogReceiver(
            connection,
            config,
            self._store.replica_log,
            self.status,
            self._clock,
            on_received=self._received,
            sync_soon=self._sync_thread.request,
            acknowledged_end=_all_of_it if problem else check.acknowledged_end,
            framing=None if self._agreement is None else self._agreement.framing,
        )
        self._range_task = asyncio.create_task(self._watch_master(master))
        try:
            if self.status.state is not SlaveState.FAILED:
                self.status.state, self.status.reason = SlaveState.FOLLOWING, ""
            _log.info(
                "following %s from physical offset %d on", ha_address, self._store.replica_log.end
            )
            raise await receiver.run()
        finally:
            if self._dispatching is not None:
                self._dispatching.cancel()
                self._dispatch()
            self._receiver = None
            self._range_task.cancel()
            if self._topics_task is not None:
                self._topics_task.cancel()

    async def _agree(self, connection: ByteStream, *, is_compared: bool) -> None:
        """Agree on epochs with a master under a controller; close the connection without success.

        Raises:
            Disconnected: The connection has ended, or the peer does not agree.
            MayNotFollow: The own log must be cut.
            WriteFailed: The disk failed.
        """
        if self._agreement is None:
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                cut_at = await self._agreement.find_cut(connection, is_compared=is_compared)
            if cut_at is None:
                return
            text = f"the epochs of both logs are equal up to {cut_at}"
            raise MayNotFollow(SlaveState.DIVERGED, text, cut_at)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                text = f"no answer to the handshake in {CONNECT_TIMEOUT_MS} ms"
                raise Disconnected(text) from error
            if isinstance(error, OSError):
                raise Disconnected(_text_of(error)) from error
            if isinstance(error, NotAFrame):
                raise Disconnected(str(error), SlaveState.REFUSED) from error
            raise

    def _copy_topics_soon(self, master: MasterRequests, check: TopicCheck) -> None:
        self._topics_task = asyncio.create_task(self._copy_topics_of_records(master, check))

    async def _copy_topics_of_records(self, master: MasterRequests, check: TopicCheck) -> None:
        """Copy the topics of received records, then acknowledge the records."""
        log_end = self._store.replica_log.end
        await self._copy_topics(master)
        check.copied(log_end)
        if self._receiver is not None:
            self._receiver.acknowledge()

    async def _copy_topics(self, master: MasterRequests) -> None:
        """Copy the topics; if that fails, report it: the log must not wait for it forever."""
        try:
            await self._copy_all_topics(master)
        except ReputError as error:
            if str(error) != self._topics_problem:
                _log.warning(
                    "messages are acknowledged although the topics are not copied: %s", error
                )
            self._topics_problem = str(error)
        else:
            self._topics_problem = ""

    async def _connect(self, address: str) -> ByteStream:
        host, port = split_address(address)
        certificates = self._settings.ha_tls
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                plain = await self._machine.connect(host, port)
                if certificates is None:
                    return PlainConnection(plain)
                return EncryptedConnection(await _encrypted(plain, certificates))
        except TimeoutError as error:
            self._unanswered_count = 0
            raise Disconnected(f"no answer in {CONNECT_TIMEOUT_MS} ms") from error
        except OSError as error:
            self._unanswered_count = 0
            raise Disconnected(_text_of(error)) from error

    def _received(self) -> None:
        """Schedule the dispatch of received bytes."""
        if self._dispatching is None:
            loop = asyncio.get_running_loop()
            self._dispatching = loop.call_later(_DISPATCH_PAUSE_MS / 1000, self._dispatch)

    def _dispatch(self) -> None:
        """Dispatch the records of the log, and continue."""
        self._dispatching = None
        try:
            self._store.replica_log.dispatch()
        except WriteFailed as error:
            self._end(Disconnected(str(error), SlaveState.FAILED))
            return
        status = self.status
        if status.state is SlaveState.FAILED:
            status.state, status.reason = SlaveState.FOLLOWING, ""
        if self._store.flusher.is_sync:
            self._sync_thread.request()  # messages are dispatched once they are durable
        self._end_if_bad()

    def _synced(self, problem: Exception | None) -> None:
        """Report after a sync, and dispatch the records that waited for it."""
        if problem is not None:
            text = self._store.flusher.problem or f"the disk failed: {problem}"
            self._end(Disconnected(text, SlaveState.FAILED))
            return
        if self._receiver is not None:
            self._receiver.synced()
        if self._store.flusher.is_sync:
            try:
                self._store.step_memory()
            except WriteFailed as error:
                self._end(Disconnected(str(error), SlaveState.FAILED))
            self._end_if_bad()

    def _end_if_bad(self) -> None:
        problem = self._store.replica_log.problem
        if problem:
            self._end(Disconnected(problem, SlaveState.DIVERGED))

    def _end(self, reason: Disconnected) -> None:
        if self._receiver is not None:
            self._receiver.disconnect(reason)

    async def _watch_master(self, master: MasterRequests) -> None:
        """Poll the end of the master's log, for the lag, and watch the slave's disk."""
        while True:
            await asyncio.sleep(_RANGE_INTERVAL_MS / 1000)
            if self._store.flusher.problem:
                self._end(Disconnected(self._store.flusher.problem, SlaveState.FAILED))
            try:
                self.status.master_max_offset = (await master.log_range()).max_offset
            except Unanswered as error:
                _log.debug("%s", error)


def _all_of_it(end: int) -> int:
    """Acknowledge everything, for a master that answers no requests."""
    return end


def _text_of(error: OSError) -> str:
    """Return the operating system's message: asyncio has the same one for every cause."""
    # Errors of name resolution have negative numbers.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


async def _encrypted(plain: socket.socket, certificates: ssl.SSLContext) -> TlsSocket:
    """Return a socket after the handshake. Raises ``Disconnected``; it is closed then."""
    loop = asyncio.get_running_loop()
    encrypted = certificates.wrap_socket(plain, do_handshake_on_connect=False)
    try:
        while True:
            try:
                encrypted.do_handshake()
            except ssl.SSLWantReadError:
                arrived = asyncio.Event()
                loop.add_reader(encrypted.fileno(), arrived.set)
                try:
                    await arrived.wait()
                finally:
                    loop.remove_reader(encrypted.fileno())
            else:
                return TlsSocket(encrypted)
    except OSError as error:
        encrypted.close()
        hint = "" if isinstance(error, ssl.SSLCertVerificationError) else _HINT
        text = f"no TLS handshake: {reason_of(error)}{hint}"
        raise Disconnected(text, SlaveState.REFUSED) from error
    except BaseException:
        encrypted.close()
        raise


_HINT = "; haTlsEnable must be the same on both sides, and the log of the master has its reason"
