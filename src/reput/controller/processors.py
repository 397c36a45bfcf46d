"""The processors of the controller: decode a request, decide, encode the reply.

``PROCESSORS`` lists all of them. A request that may change a group is answered when the change is
durable. Source: rocketmq 5.5.0 ``ControllerRequestProcessor``.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from reput.controller import limits, rules
from reput.controller.config import CurrentSettings
from reput.controller.elections import KEPT_MASTER, NO_MASTER, Elections
from reput.controller.group import Group
from reput.controller.groups import Decide, Groups
from reput.controller.liveness import Liveness, Sight, report_of
from reput.controller.quorum import Peer, QuorumStore
from reput.controller.rules import Answer, Decision
from reput.errors import REMARK_LETTERS, ReputError, excerpt
from reput.format import (
    bodies,
    command,
    controller_headers as of_controllers,
    headers,
    limits as format_limits,
)
from reput.format.bodies import BrokerReplicasInfo, ReplicaIdentity, ReplicasInfo, SyncStateSet
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.controller_headers import NO_BROKER_ID
from reput.remoting.channel import Channel
from reput.remoting.client_faults import ClientFaults
from reput.remoting.request_queue import RequestQueue

HEARTBEAT_WAIT_S = 1.0
"""Time in which the first heartbeat of a broker may follow its request for an election."""
_POLL_S = 0.02
_NOT_SET = "not set any response code"
"""Java's remark for a request that it does not understand."""


@dataclass(slots=True)
class ControllerParts:
    """The parts of the controller that processors use."""

    groups: Groups
    store: QuorumStore
    """Keeps the groups, and knows the other controllers."""
    liveness: Liveness
    elections: Elections
    setting_requests: RequestQueue
    """Requests that change settings, served one at a time."""
    config: CurrentSettings
    events: ClientFaults
    """Writes log lines about actions of clients."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Requests that wait for the disk."""
    request_counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Requests by code and status: ``success`` if they were answered, ``failed`` by an error."""
    intruders: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """Addresses with heartbeats for the ids of other brokers, and the time of the latest one in ms,
    by broker name and id."""

    @property
    def is_leading(self) -> bool:
        """True if this controller certainly leads, and has read the state."""
        return self.groups.is_leading


# --- heartbeats -----------------------------------------------------------------------------------


def heartbeat(parts: ControllerParts, channel: Channel, request: Command) -> Command:
    """Take a heartbeat (904); Java's brokers want no reply."""
    header = headers.decode(of_controllers.HeartbeatHeader, request.ext_fields)
    name, broker_id, address = header.broker_name, header.broker_id, header.broker_addr
    if broker_id is None:
        code = ResponseCode.CONTROLLER_INVALID_REQUEST
        return command.reply(request, code, "Heart beat with empty brokerId")
    group = parts.groups.get(name)
    known = None if group is None else group.address(broker_id)
    if known != address and not parts.is_leading:
        parts.groups.refresh()  # the leader has registered it perhaps
    if group is None or known is None or group.cluster_name != header.cluster_name:
        code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        return command.reply(request, code, "Broker metadata is not existed")
    now_ms = parts.elections.now_ms()
    if known != address:
        if parts.is_leading:
            parts.intruders[name, broker_id] = address, now_ms
        text = "heartbeat of broker %d of %.300r from %.300r, which is registered at %.300r"
        parts.events.warn("intruder", text, broker_id, name, address, known)
        return command.reply(
            request,
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"broker id {broker_id} of {name} is registered at {known}, not at {excerpt(address)}",
        )
    if parts.liveness.hear(name, broker_id, report_of(header), channel, now_ms):
        parts.events.info(
            "alive", "broker %d of %.300r is alive at %.300r", broker_id, name, address
        )
        parts.elections.check_group(name)
    return command.reply(request, remark="Heart beat success")


# --- requests of brokers --------------------------------------------------------------------------


def next_broker_id(parts: ControllerParts, channel: Channel, request: Command) -> Command:
    """Return the id that the next broker of a name may apply for (1012)."""
    header = headers.decode(of_controllers.NextBrokerIdHeader, request.ext_fields)
    decision = rules.next_broker_id(parts.groups.get(header.broker_name), header)
    return _reply(request, decision.answer)


def apply_broker_id(parts: ControllerParts, channel: Channel, request: Command) -> None:
    """Give a broker an id (1013)."""
    header = headers.decode(of_controllers.ApplyBrokerIdHeader, request.ext_fields)
    _answer_change(
        parts,
        channel,
        request,
        header.broker_name,
        lambda group: rules.apply_broker_id(group, header),
    )


def register_broker(parts: ControllerParts, channel: Channel, request: Command) -> None:
    """Register a broker that has started (1003)."""
    header = headers.decode(of_controllers.RegisterAtControllerHeader, request.ext_fields)
    name, broker_id = header.broker_name, header.broker_id

    def decide(group: Group | None) -> Decision:
        sight = parts.elections.sight(name)
        is_unclean = parts.config.value.enable_elect_unclean_master
        return rules.register(group, sight, header, is_unclean=is_unclean)

    async def work() -> Answer:
        before, decision = await parts.groups.change(name, decide)
        if decision.answer.code == ResponseCode.SUCCESS:
            parts.liveness.forget(name, broker_id)  # until it reports in its new life
            parts.elections.announce(before, decision.group)
        return decision.answer

    _answer_later(parts, channel, request, work)


def alter_in_sync(parts: ControllerParts, channel: Channel, request: Command) -> None:
    """Change the in-sync set of a group, as its master asks (1001)."""
    header = headers.decode(of_controllers.AlterSyncStateSetHeader, request.ext_fields)
    body = bodies.decode(SyncStateSet, request.body)
    limits.CONTROLLER_REPLICAS.check(len(body.sync_state_set), excerpt(header.broker_name))

    def decide(group: Group | None) -> Decision:
        return rules.alter_in_sync(group, parts.elections.sight(header.broker_name), header, body)

    _answer_change(parts, channel, request, header.broker_name, decide)


def elect_master(parts: ControllerParts, channel: Channel, request: Command) -> None:
    """Elect a master, as a broker or an operator asks (1002)."""
    header = headers.decode(of_controllers.ElectMasterHeader, request.ext_fields)
    name = header.broker_name

    def decide(group: Group | None) -> Decision:
        is_unclean = parts.config.value.enable_elect_unclean_master
        return rules.elect(group, parts.elections.sight(name), header, is_unclean=is_unclean)

    async def work() -> Answer:
        await _first_heartbeat(parts, name, header.broker_id)
        before, decision = await parts.groups.change(name, decide)
        parts.elections.announce(before, decision.group)
        if decision.group is not None:
            if decision.answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
                parts.elections.count_of(decision.group, KEPT_MASTER)
            elif decision.answer.code:
                parts.elections.count_of(decision.group, NO_MASTER)
        return decision.answer

    _answer_later(parts, channel, request, work)


async def _first_heartbeat(parts: ControllerParts, name: str, broker_id: int) -> None:
    """Wait a moment for the first heartbeat of a broker, which Java sends from another thread.

    Only then it is known which log is the longest.
    """
    end_s = asyncio.get_running_loop().time() + HEARTBEAT_WAIT_S
    while broker_id != NO_BROKER_ID and asyncio.get_running_loop().time() < end_s:
        group = parts.groups.get(name)
        if group is None or broker_id not in group.replicas:
            return
        if broker_id in parts.elections.sight(name).alive:
            return
        await asyncio.sleep(_POLL_S)


def replica_info(parts: ControllerParts, channel: Channel, request: Command) -> Command:
    """Return the master and the in-sync set of a group (1004); brokers ask every 5 s."""
    name = headers.decode(of_controllers.ReplicaInfoHeader, request.ext_fields).broker_name
    group = parts.groups.get(name)
    if group is None:
        code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        header = of_controllers.MasterHeader()
        return _reply(request, Answer(code, "Broker metadata is not existed", header))
    header = rules.master_header(group)
    header.sync_state_set_epoch = None
    return _reply(request, Answer(header=header, body=rules.in_sync_body(group)))


# --- requests of operators ------------------------------------------------------------------------


def metadata(parts: ControllerParts, channel: Channel, request: Command) -> Command:
    """Return the leading controller (1005)."""
    config = parts.config.value
    own = config.peer or Peer(config.controller_d_leger_self_id, str(channel.local_host))
    leader = own if parts.is_leading else parts.store.leader
    peers = {peer.name: peer for peer in (*config.peers, *parts.store.members, own)}
    header = of_controllers.ControllerMetadataReplyHeader(
        group=config.controller_d_leger_group,
        controller_leader_id=None if leader is None else leader.name,
        controller_leader_address=None if leader is None else leader.address,
        is_leader=parts.is_leading,
        peers="".join(f"{name}:{peer.address};" for name, peer in sorted(peers.items())),
    )
    return _reply(request, Answer(header=header))


def in_sync_data(parts: ControllerParts, channel: Channel, request: Command) -> Command:
    """Return the replicas of some groups (1006)."""
    names = (
        bodies.decode(list[str], request.body, size_limit=format_limits.BODY_BYTES)
        if request.body
        else []
    )
    if not names:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, _NOT_SET)
    limits.CONTROLLER_GROUPS.at(parts.config.value.reput_replica_groups_max).check(len(names))
    table = {}
    for name in names:
        group = parts.groups.get(name)
        if group is not None:
            table[name] = _replicas_info(group, parts.elections.sight(name))
    return _reply(request, Answer(body=BrokerReplicasInfo(replicas_info_table=table)))


def _replicas_info(group: Group, sight: Sight) -> ReplicasInfo:
    info = ReplicasInfo(
        in_sync_replicas=[],
        master_address=group.master_address,
        master_broker_id=group.master_id,
        master_epoch=group.master_epoch,
        not_in_sync_replicas=[],
        sync_state_set_epoch=group.set_epoch,
    )
    for broker_id, replica in sorted(group.replicas.items()):
        identity = ReplicaIdentity(
            alive=broker_id in sight.alive,
            broker_address=replica.address,
            broker_id=broker_id,
            broker_name=group.broker_name,
        )
        is_in_sync = broker_id in group.in_sync
        (info.in_sync_replicas if is_in_sync else info.not_in_sync_replicas).append(identity)
    return info


def clean_broker_data(parts: ControllerParts, channel: Channel, request: Command) -> None:
    """Forget replicas, or a whole group (1011)."""
    header = headers.decode(of_controllers.CleanBrokerDataHeader, request.ext_fields)
    name = header.broker_name

    async def work() -> Answer:
        before, decision = await parts.groups.change(
            name, lambda group: rules.clean(group, parts.elections.sight(name), header)
        )
        if decision.group is not before:
            text = "%s: broker ids %s of %.300r are forgotten"
            shown = header.broker_controller_ids_to_clean or "all"
            parts.events.warn("cleaned", text, channel.peer, shown[:100], name)
            gone = before.replicas.keys() if before is not None else set()
            for broker_id in gone - (decision.group.replicas.keys() if decision.group else set()):
                parts.liveness.forget(name, broker_id)
            if decision.group is None:
                parts.elections.forget(name)
            parts.elections.announce(before, decision.group)
        return decision.answer

    _answer_later(parts, channel, request, work)


def update_config(parts: ControllerParts, channel: Channel, request: Command) -> None:
    """Change settings, given as lines ``key=value`` (1009): all of them, or none."""
    parts.config.answer_change(parts.setting_requests, parts.events, channel, request)


def get_config(parts: ControllerParts, channel: Channel, request: Command) -> Command:
    """Return all settings, one per line (1010)."""
    return command.reply(request, body=parts.config.text().encode())


# --- answers --------------------------------------------------------------------------------------


def _reply(request: Command, answer: Answer) -> Command:
    return command.reply(
        request,
        answer.code,
        None if answer.remark is None else excerpt(answer.remark, REMARK_LETTERS),
        None if answer.header is None else headers.encode(answer.header),
        b"" if answer.body is None else bodies.encode(answer.body),
    )


def _answer_change(
    parts: ControllerParts, channel: Channel, request: Command, name: str, decide: Decide
) -> None:
    """Decide on a group, and answer when that is durable."""

    async def work() -> Answer:
        return (await parts.groups.change(name, decide))[1].answer

    _answer_later(parts, channel, request, work)


def _answer_later(
    parts: ControllerParts,
    channel: Channel,
    request: Command,
    work: Callable[[], Coroutine[Any, Any, Answer]],
) -> None:
    """Answer a request when its work is done. Raises ``LimitExceeded``: too many wait."""
    limits.CONTROLLER_CHANGES_WAITING.check(len(parts.tasks) + 1)
    request = command.envelope(request)

    async def answer() -> None:
        status = "failed"
        try:
            reply = _reply(request, await work())
            status = "success"
        except ReputError as error:
            text = excerpt(str(error), REMARK_LETTERS)
            reply = command.reply(request, error.response_code, text)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            parts.events.bug(error, "request %d of %s failed", request.code, channel.peer)
            text = excerpt(f"{type(error).__name__}: {error}", REMARK_LETTERS)
            reply = command.reply(request, ResponseCode.SYSTEM_ERROR, text)
        parts.request_counts[request.code, status] += 1
        if not request.is_oneway:
            channel.answer(request, reply)

    task = asyncio.get_running_loop().create_task(answer())
    parts.tasks.add(task)
    task.add_done_callback(parts.tasks.discard)


Processor = Callable[[ControllerParts, Channel, Command], Command | None]

PROCESSORS: Mapping[int, Processor] = {
    RequestCode.BROKER_HEARTBEAT: heartbeat,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: alter_in_sync,
    RequestCode.CONTROLLER_ELECT_MASTER: elect_master,
    RequestCode.CONTROLLER_REGISTER_BROKER: register_broker,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: replica_info,
    RequestCode.CONTROLLER_GET_METADATA_INFO: metadata,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: in_sync_data,
    RequestCode.UPDATE_CONTROLLER_CONFIG: update_config,
    RequestCode.GET_CONTROLLER_CONFIG: get_config,
    RequestCode.CLEAN_BROKER_DATA: clean_broker_data,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: next_broker_id,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: apply_broker_id,
}
"""Request code -> processor: every code of 5.5.0's controller."""
ANSWERED_BY_ALL = frozenset(
    {
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        RequestCode.GET_CONTROLLER_CONFIG,
    }
)
"""Requests that a controller answers that does not lead."""
