"""The port for slaves: sends them the log, and takes their acknowledgements.

    put -> pump, once per turn of the event loop -> frames -> slaves
    slaves -> reports -> the table of acknowledgements -> held replies

All on the event loop: an acknowledgement that another thread takes waits for the interpreter,
milliseconds. Only a slave that lags far is served by a thread (``catch_up``).
"""

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from reput.broker import limits
from reput.broker.identity import Identity
from reput.broker.machine import Machine
from reput.broker.pending_replies import PendingReplies
from reput.broker.replication.counts import ReplicationCounts
from reput.broker.replication.flow import FlowControl
from reput.broker.replication.framing import ClassicMasterFraming, MasterFraming
from reput.broker.replication.reports import OfferedRange, Reason, ReportRefused, SlaveReports
from reput.broker.replication.slave_link import SlaveLink
from reput.broker.replication.slave_socket import (
    EncryptedSlaveSocket,
    PlainSlaveSocket,
    SlaveSocket,
)
from reput.broker.settings import ha_peers
from reput.broker.settings.config import HA_PORT_DISTANCE, BrokerConfig
from reput.broker.settings.live import LiveConfig
from reput.clock import Clock
from reput.errors import InvalidOption
from reput.format.bodies import HaConnectionInfo, HaRuntimeInfo
from reput.format.ha_epoch_frames import SlaveHandshake
from reput.limits import Limit
from reput.remoting.client_faults import ClientFaults
from reput.store.config import BrokerRole, DurableIn, StoreConfig
from reput.store.message_store import MessageStore

_PORT_MAX = 65_535
_ACCEPTS_PER_TURN = 64
_ACCEPT_PAUSE_S = 1.0
_STEP_MS_MIN = 25
_STEP_MS_MAX = 1_000
_NO_ACK = -1
"""Acknowledged offset of a slave that has confirmed nothing, as in Java."""

_log = logging.getLogger(__name__)


def open_port(
    broker: BrokerConfig, store: StoreConfig, request_port: int, machine: Machine
) -> socket.socket:
    """Open the port for slaves of a broker.

    Args:
        broker: Its addresses.
        store: Has the port, or a negative number for the one after that for requests.
        request_port: The port for requests.
        machine: Opens it.

    Raises:
        OSError: The port is in use.
        InvalidOption: There is no port after the one for requests.
    """
    port = store.ha_listen_port
    wanted = request_port + HA_PORT_DISTANCE if port < 0 else port
    if wanted > _PORT_MAX:
        allowed = f"a port up to {_PORT_MAX}, since listenPort is {request_port}"
        raise InvalidOption("haListenPort", port, allowed)
    try:
        return machine.listen(broker.bind_address, wanted)
    except OSError:
        if port >= 0 or broker.listen_port:
            raise
        # The port for requests was chosen by the system: the next one may be in use.
        return machine.listen(broker.bind_address, 0)


class SlavePort:
    """Listens for slaves, on the event loop.

    Args:
        settings: The settings in force.
        identity: The broker's addresses; ``start`` sets the one for slaves.
        store: The store.
        pending_replies: Replies to sends that wait for slaves.
        clock: The clock.
        certificates: Returns the certificate of new connections, for ``haTlsEnable``.
        machine: Opens the port.
        framing: The frames.
    """

    def __init__(
        self,
        settings: LiveConfig,
        identity: Identity,
        store: MessageStore,
        pending_replies: PendingReplies,
        clock: Clock,
        certificates: Callable[[], ssl.SSLContext | None] = lambda: None,
        machine: Machine | None = None,
        framing: MasterFraming | None = None,
    ) -> None:
        self._settings = settings
        self._certificates = certificates
        self._machine = machine or Machine()
        self._peers = settings.broker.ha_peers
        self._identity = identity
        self._pending_replies = pending_replies
        config = settings.store
        self.store = store
        self.clock = clock
        self.framing: MasterFraming = framing or ClassicMasterFraming()
        self.counts = ReplicationCounts()
        """Counts since the start."""
        self.flow_control = FlowControl(
            config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else None
        )
        """Limit of bytes per second."""
        self.batch_bytes = config.ha_transfer_batch_size
        """Maximum number of log bytes in a frame."""
        self.port = 0
        """The port; 0 while it is closed."""
        self._is_sync_master = config.broker_role is BrokerRole.SYNC_MASTER
        self._needs_sync = config.ha_send_after is DurableIn.DISK
        self._silence_ms = config.ha_housekeeping_interval
        self._heartbeat_ms = config.ha_send_heartbeat_interval
        self._step_ms = max(
            _STEP_MS_MIN, min(self._silence_ms, self._heartbeat_ms, 4 * _STEP_MS_MAX) // 4
        )
        self._unreported: dict[SlaveLink, None] = {}  # oldest first
        self._slaves: dict[SlaveLink, None] = {}
        self._is_pumping = False
        self._faults = ClientFaults(_log, time.monotonic)
        self._listening: socket.socket | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: list[SlaveLink] = []

    @property
    def slaves(self) -> list[SlaveLink]:
        """The connections that have reported."""
        return list(self._slaves)

    @property
    def unreported_count(self) -> int:
        """Number of connections without a report."""
        return len(self._unreported)

    def slaves_status(self) -> HaRuntimeInfo:
        """Return the reply to 907: acknowledged offset and lag of each slave."""
        end = self.store.max_physical_offset
        lag_max = self._settings.store.ha_slave_fallbehind_max
        connections = tuple(_connection_info(link, end, lag_max) for link in self._slaves)
        return HaRuntimeInfo(
            ha_connection_info=connections,
            in_sync_slave_nums=sum(connection.in_sync for connection in connections),
            master_commit_log_max_offset=end,
        )

    # Starting and stopping ----------------------------------------------------------------------

    async def start(self, listening: socket.socket | None = None) -> None:
        """Start listening.

        Args:
            listening: The socket, if it was opened before (``open_port``).

        Raises:
            OSError: The port is in use.
            InvalidOption: There is no port after the one for requests.
        """
        self._loop = asyncio.get_running_loop()
        broker, store = self._settings.broker, self._settings.store
        if listening is None:
            listening = open_port(broker, store, self._identity.port, self._machine)
        self._listening = listening
        self.port = self._listening.getsockname()[1]
        self._identity.ha_address = f"{broker.broker_ip2}:{self.port}"
        self._accept_again()
        self._schedule_step()

    async def stop(self) -> None:
        """Close the port and all connections."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        listening, self._listening = self._listening, None
        if listening is None:
            return
        self._loop.remove_reader(listening.fileno())
        listening.close()
        self.port = 0
        for link in [*self._unreported, *self._slaves]:
            link.close("the broker stops")
        ending, self._ending = self._ending, []
        if ending:
            await asyncio.to_thread(_join, ending)

    # Connections --------------------------------------------------------------------------------

    def _accept_again(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        listening = self._listening
        if listening is None:
            return
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._faults.warn("accept", "no slave can connect: %s", error.strerror)
                self._loop.remove_reader(listening.fileno())
                self._timers["accept"] = self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again)
                return
            self._opened(connection, peer[0], peer[1])

    def _opened(self, connection: socket.socket, host: str, port: int) -> None:
        self.counts.accepted += 1
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._silence_ms)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        link = SlaveLink(
            self._socket_of(connection), host, address, self, self.clock.monotonic_ms()
        )
        self._unreported[link] = None
        problem = self._foreign(host, connection.getsockname()[0])
        if problem:
            self.refuse(link, Reason.NOT_A_PEER, problem)
            return
        self._make_room(
            link, self._unreported, limits.HA_UNREPORTED_PER_ADDRESS, limits.HA_UNREPORTED
        )

    def _foreign(self, host: str, own: str) -> str:
        """Return why a host may not connect; empty if it may.

        This port asks for no signature. So with access control, it is closed to other machines
        until an operator names them: it sends everything that the rules protect.
        """
        if not ha_peers.contain(self._peers, host):
            return f"reputHaPeers is {self._settings.broker.reput_ha_peers}"
        if self._peers or not self._settings.is_access_controlled:
            return ""
        if ha_peers.is_same_machine(host, own):
            return ""
        return (
            "reputHaPeers is empty, so that with access control only slaves on this machine may "
            "connect; set it to the networks of the slaves"
        )

    def _socket_of(self, connection: socket.socket) -> SlaveSocket:
        if not self._settings.store.ha_tls_enable:
            return PlainSlaveSocket(connection)
        certificates = self._certificates()
        assert certificates is not None, "haTlsEnable needs a certificate"
        return EncryptedSlaveSocket(connection, certificates)

    def _make_room(
        self, new: SlaveLink, links: Collection[SlaveLink], per_address: Limit, in_all: Limit
    ) -> None:
        """Close another connection than a new one if there are too many.

        It is one of the same address, or else of the address with the most, so that no address
        keeps out the others: the oldest without progress, or else the one with the oldest.
        """
        counts = Counter(link.host for link in links)
        if counts[new.host] > per_address.maximum:
            limit, hosts = per_address, {new.host}
        elif len(links) > in_all.maximum:
            most = max(counts.values())
            limit, hosts = in_all, {host for host, count in counts.items() if count == most}
        else:
            return
        others = (link for link in links if link.host in hosts and link is not new)
        first = min(others, key=lambda link: link.progress_ms)
        self.refuse(first, Reason.TOO_MANY, str(limit.exceeded()))

    def refuse(self, link: SlaveLink, reason: Reason, text: str) -> None:
        """Close a connection, count it and log why.

        Args:
            link: The connection.
            reason: The kind of reason.
            text: Message for the log.
        """
        self.counts.refused[reason] += 1
        self._faults.warn(reason, "slave %s refused: %s", link.replica.address, text)
        link.close(text)

    def gone(self, link: SlaveLink, problem: str) -> None:
        """Remove an ended connection and its acknowledgements.

        Args:
            link: The connection.
            problem: The reason, for the log.
        """
        if link.is_catching_up:
            self._ending = [other for other in self._ending if other.is_catching_up]
            self._ending.append(link)
        self._unreported.pop(link, None)
        if link in self._slaves:
            del self._slaves[link]
            _log.info("slave %s is gone: %s", link.replica.address, problem)
            self.store.replicas.remove(link.replica)
            self.settle()

    # Reports ------------------------------------------------------------------------------------

    def shook_hands(self, link: SlaveLink, handshake: SlaveHandshake) -> None:
        """Answer the handshake of a slave, which ends its earlier connections.

        Args:
            link: The connection.
            handshake: The handshake.
        """
        replica = link.replica
        if replica.broker_id is not None and replica.broker_id != handshake.broker_id:
            text = f"it has id {replica.broker_id}, and then {handshake.broker_id}"
            self.refuse(link, Reason.IMPOSSIBLE, text)
            return
        replica.broker_id, replica.is_learner = handshake.broker_id, handshake.is_learner
        link.is_from_last_file = handshake.is_from_last_file
        for other in [*self._unreported, *self._slaves]:
            if other is not link and other.replica.broker_id == handshake.broker_id:
                other.close(f"broker {handshake.broker_id} has connected again")
        link.answer_handshake(self.framing.handshake_reply(), self.clock.monotonic_ms())

    def reported(self, link: SlaveLink, values: Sequence[int]) -> None:
        """Check the reports of a read, oldest first; release the replies that they allow.

        Args:
            link: The connection.
            values: The values, oldest first.
        """
        now_ms = self.clock.monotonic_ms()
        try:
            reports = link.reports
            if reports is None:
                if self.framing.has_handshake and link.replica.broker_id is None:
                    raise ReportRefused(Reason.IMPOSSIBLE, "it reports without a handshake")
                reports = self._begin(link, values[0], now_ms)
                values = values[1:]
            reports.add(values, link.replica.sent_offset)
        except ReportRefused as error:
            self.refuse(link, error.reason, str(error))
            return
        self.counts.reports += len(values)
        link.acknowledge(now_ms)
        self.settle()

    def _begin(self, link: SlaveLink, value: int, now_ms: int) -> SlaveReports:
        """Check the first report of a connection, and start sending."""
        log, config = self.store.log, self._settings.store
        maximum = log.readable_offset
        file_size = config.mapped_file_size_commit_log
        minimum = log.min_offset
        last_file = max(minimum, (maximum - 1) // file_size * file_size)
        reports = SlaveReports.begin(
            value,
            OfferedRange(minimum, maximum, last_file),
            from_last_file=config.sync_from_last_file or link.is_from_last_file,
        )
        self._unreported.pop(link, None)
        for other in self._slaves:
            if other.host == link.host and not self.framing.has_handshake:
                # Possibly the same slave, whose old connection is not known to be dead: two
                # connections of one slave must not count twice. It counts again with its next
                # report, which another slave sends as soon as it gets a message.
                if other.replica.acked_offset is not None:
                    other.replica.doubtful_offset = other.replica.acked_offset
                other.replica.acked_offset = None
        self._slaves[link] = None
        self._make_room(link, self._slaves, limits.HA_SLAVES_PER_ADDRESS, limits.HA_SLAVES)
        link.begin(reports, now_ms)
        self.store.replicas.add(link.replica)
        self.counts.reports += 1
        _log.info(
            "slave %s has the log up to physical offset %d; it gets the bytes from %d on",
            link.replica.address,
            value,
            reports.start,
        )
        # At once: the slave learns that it was accepted.
        link.send_heartbeat(now_ms)
        self.pump()
        return reports

    def settle(self) -> None:
        """Send the replies of puts that are safe or late."""
        self.store.replicas_changed()
        self._pending_replies.settle()

    # Sending ------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send new log bytes to all slaves, once per turn of the loop; call it after puts."""
        is_sync = self._is_sync_master
        if self._is_pumping or not (self._slaves or (is_sync and self._are_replies_held())):
            return
        self._is_pumping = True
        self._loop.call_soon(self._pump)

    def _are_replies_held(self) -> bool:
        return self._listening is not None and len(self._pending_replies) > 0

    def pump_later(self, pause_ms: int) -> None:
        """Send after a pause.

        Args:
            pause_ms: The pause, in ms.
        """
        if "pump" not in self._timers:
            self._timers["pump"] = self._loop.call_later(pause_ms / 1000, self._pump_after_pause)

    def _pump_after_pause(self) -> None:
        del self._timers["pump"]
        self.pump()

    def _pump(self) -> None:
        self._is_pumping = False
        limit, now_ms = self.store.replication_limit, self.clock.monotonic_ms()
        if self._needs_sync and limit < self.store.log.readable_offset:
            self._pending_replies.sync_soon()
        has_more = False
        for link in list(self._slaves):
            has_more = link.send(limit, now_ms) or has_more
        if has_more:
            self.pump()
        if self._is_sync_master and self._are_replies_held():
            self.settle()  # at once, if no slave is available

    # Housekeeping -------------------------------------------------------------------------------

    def _schedule_step(self) -> None:
        self._timers["step"] = self._loop.call_later(self._step_ms / 1000, self._run_step)

    def _run_step(self) -> None:
        self._schedule_step()
        self.step(self.clock.monotonic_ms())

    def step(self, now_ms: int) -> None:
        """Send heartbeats, close silent connections, and sample rates.

        Args:
            now_ms: The time, monotonic ms.
        """
        silence_ms = self._silence_ms
        for link in list(self._unreported):
            if now_ms - link.opened_ms < silence_ms:
                break  # the others are younger
            self.refuse(link, Reason.UNREPORTED, f"no report within {silence_ms} ms")
        for link in list(self._slaves):
            if now_ms - link.replica.reported_ms >= silence_ms:
                self.refuse(link, Reason.SILENT, f"no report for {silence_ms} ms")
                continue
            if link.becomes_idle(now_ms, silence_ms):
                _log.warning(
                    "slave %s reports, but takes no byte after physical offset %s; a slave of "
                    "RocketMQ with a smaller mappedFileSizeCommitLog never does",
                    link.replica.address,
                    link.replica.acked_offset,
                )
            link.sample_rate(now_ms)
            if link.is_heartbeat_due(now_ms, self._heartbeat_ms):
                link.send_heartbeat(now_ms)
        self.counts.ack_times.step(now_ms)


def _join(links: Sequence[SlaveLink]) -> None:
    for link in links:
        link.join()


def _connection_info(link: SlaveLink, end: int, lag_max: int) -> HaConnectionInfo:
    replica = link.replica
    acked_offset = _NO_ACK if replica.acked_offset is None else replica.acked_offset
    return HaConnectionInfo(
        addr=replica.address,
        diff=end - acked_offset,
        in_sync=replica.acked_offset is not None and end - acked_offset < lag_max,
        slave_ack_offset=acked_offset,
        transfer_from_where=replica.sent_offset,
        transferred_byte_in_second=link.bytes_per_s,
    )
