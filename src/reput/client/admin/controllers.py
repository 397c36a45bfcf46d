"""Controllers and their replica groups: masters, in-sync sets, elections.

Controllers may be those of reput or of RocketMQ 5.x. Brokers name theirs in their settings
``enableControllerMode`` and ``controllerAddr``.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from reput.client.admin.brokers import broker_config
from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.errors import InvalidOption, RemotingError, ReputError, Unreachable
from reput.format import bodies, controller_headers, headers
from reput.format.bodies import BrokerReplicasInfo, EpochEntryCache, ReplicasInfo
from reput.format.codes import RequestCode
from reput.format.controller_headers import ControllerMetadataReplyHeader, MasterHeader


@dataclass(frozen=True, slots=True)
class GroupReplica:
    """A broker of a replica group."""

    broker_id: int
    """The id that its controller has given it; a name server has 0 for the master."""
    address: str
    is_alive: bool
    """Whether its heartbeats reach the controller."""
    is_in_sync: bool
    log: EpochEntryCache | None = None
    """Epochs and end of its log, as it reports them; None if it does not."""
    problem: str = ""
    """Why it does not."""

    @property
    def log_end(self) -> int | None:
        """End of its log, a physical offset."""
        return None if self.log is None else self.log.max_offset

    @property
    def epochs(self) -> list[tuple[int, int, int]]:
        """Epoch, start and end of the ranges of its log, oldest first."""
        if self.log is None:
            return []
        end = self.log.max_offset  # the last range has none while the master writes to it
        return [
            (entry.epoch, entry.start_offset, min(entry.end_offset, end))
            for entry in self.log.epoch_list
        ]

    @property
    def last_epoch(self) -> int | None:
        """Last epoch of its log."""
        return self.epochs[-1][0] if self.epochs else None

    @property
    def rank(self) -> tuple[int, int]:
        """Last epoch and end of its log: the greatest is the best to be elected."""
        return self.last_epoch or 0, self.log_end or 0

    def __str__(self) -> str:
        """Return id and address."""
        return f"{self.broker_id} at {self.address}"


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """The brokers of a name, as their controller knows them."""

    broker_name: str
    cluster_name: str
    """Empty if no broker of the group reports it."""
    controller: str
    """Address of the leading controller."""
    master_id: int | None
    master_epoch: int
    set_epoch: int
    replicas: Sequence[GroupReplica]

    @property
    def master(self) -> GroupReplica | None:
        """The master, if there is one."""
        return self.replica(self.master_id)

    @property
    def candidates(self) -> list[GroupReplica]:
        """Replicas that may be elected in place of the master without a loss, best first."""
        others = (replica for replica in self.replicas if replica.broker_id != self.master_id)
        fit = (replica for replica in others if replica.is_in_sync and replica.is_alive)
        return sorted(fit, key=lambda replica: replica.rank, reverse=True)

    @property
    def is_waiting(self) -> bool:
        """Whether it had a master, and has none."""
        return self.master_id is None and self.master_epoch > 0

    @property
    def newer_logs(self) -> list[GroupReplica]:
        """Living replicas whose logs have an epoch that the controller does not know."""
        if self.master_epoch == 0:
            return []  # before the first election the logs may be of another controller
        living = [replica for replica in self.replicas if replica.is_alive]
        return [replica for replica in living if replica.rank[0] > self.master_epoch]

    @property
    def problem(self) -> str:
        """What an operator must do now; empty if nothing."""
        newer = self.newer_logs
        if newer:
            return (
                f"the log of broker {newer[0]} is of epoch {newer[0].last_epoch}, but the "
                f"controller knows no epoch after {self.master_epoch}: its state is older, or it "
                "is not the controller of this group. An operator must elect a master"
            )
        if not self.is_waiting:
            return ""
        in_sync = ", ".join(str(replica) for replica in self.replicas if replica.is_in_sync)
        text = f"no master; start a replica that was in sync: {in_sync or 'none'}"
        loss = self._unclean_loss
        return f"{text}. Without it, {loss}" if loss else text

    @property
    def warning(self) -> str:
        """What would go wrong next; empty if nothing."""
        if self.master_id is None or self.candidates:
            return ""
        return "it would not survive its master: no other replica is in sync"

    def replica(self, broker_id: int | None) -> GroupReplica | None:
        """Return the replica with an id, if there is one."""
        return next((replica for replica in self.replicas if replica.broker_id == broker_id), None)

    def lag_bytes(self, replica: GroupReplica) -> int | None:
        """Return how much of the master's log a replica lacks; None if unknown, or the master."""
        master = self.master
        if master is None or replica is master:
            return None
        if master.log_end is None or replica.log_end is None:
            return None
        return max(master.log_end - replica.log_end, 0)

    @property
    def _unclean_loss(self) -> str:
        """What electing the best of the other replicas would lose."""
        living = (replica for replica in self.replicas if replica.is_alive)
        others = [replica for replica in living if replica.log is not None]
        if not others:
            return ""
        best = max(others, key=lambda replica: replica.rank)
        return (
            f"the best of the others is broker {best}, whose log ends at {best.log_end} in epoch "
            f"{best.last_epoch or 0}: electing it (enableElectUncleanMaster=true) would lose all "
            "messages that were acknowledged later"
        )


@dataclass(slots=True)
class ReplicaGroups:
    """Replica groups, and the controllers that could not be asked for others."""

    groups: list[ReplicaGroup] = field(default_factory=list)
    controllers: list[str] = field(default_factory=list)
    """Addresses of the leading controllers that were asked."""
    problems: list[str] = field(default_factory=list)
    """Why groups may be missing; each a sentence that names the controllers."""

    def of(self, broker_name: str) -> ReplicaGroup:
        """Return the group of a name. Raises ``InvalidOption``: there is none."""
        for group in self.groups:
            if group.broker_name == broker_name:
                return group
        allowed = "; ".join(self.problems) or "none: no broker has a controller"
        if self.controllers:
            allowed = f"a name that the controller at {', '.join(self.controllers)} knows"
        raise InvalidOption("BROKER-NAME", broker_name, allowed)


async def broker_epochs(admin: AdminConnection, broker: str) -> EpochEntryCache:
    """Return epochs and end of a broker's log; only brokers with a controller have them."""
    reply = await admin.calls.ask_broker(broker, requests.make(RequestCode.GET_BROKER_EPOCH_CACHE))
    return bodies.decode(EpochEntryCache, reply.body)


async def leading_controller(admin: AdminConnection, controllers: Iterable[str]) -> str:
    """Return the address of the controller that leads.

    Args:
        admin: The admin client.
        controllers: Addresses of some of the controllers.

    Raises:
        Unreachable: None of them leads, and none knows which one does.
    """
    known = ""
    reasons = []
    for address in controllers:
        try:
            reply = await admin.calls.ask(
                address, requests.make(RequestCode.CONTROLLER_GET_METADATA_INFO)
            )
            answer = headers.decode(ControllerMetadataReplyHeader, reply.ext_fields)
        except ReputError as error:
            reasons.append(str(error))
            continue
        if answer.is_leader:
            return address
        known = known or answer.controller_leader_address or ""
        reasons.append(f"{address} does not lead")
    if known:
        return known
    raise Unreachable(";".join(controllers), "; ".join(reasons) or "no address was given")


async def replica_groups(
    admin: AdminConnection,
    broker_name: str | None = None,
    *,
    controllers: Collection[str] = (),
) -> ReplicaGroups:
    """Return the replica groups of controllers.

    Args:
        admin: The admin client.
        broker_name: Only the group of this name, which may have no living broker.
        controllers: Addresses of controllers; empty: those which the brokers' settings name.

    Raises:
        RemotingError: No name server answers.
    """
    table = (await admin.calls.clusters()).broker_addr_table
    members = {name: sorted(data.broker_addrs.values()) for name, data in table.items()}
    collected = ReplicaGroups()
    names_of: dict[tuple[str, ...], set[str]] = {}
    wanted = set(members) if broker_name is None else {broker_name}
    if controllers:
        names_of[tuple(controllers)] = wanted
    else:
        asked = sorted(members.keys() & wanted) or sorted(members)
        known = await asyncio.gather(*(_controllers_of(admin, members[name]) for name in asked))
        for name, addresses in zip(asked, known, strict=True):
            if addresses:
                names_of.setdefault(addresses, set()).add(broker_name or name)
    for addresses, names in sorted(names_of.items()):
        try:
            controller = await leading_controller(admin, addresses)
            collected.groups += await _groups_of(admin, controller, sorted(names))
            collected.controllers.append(controller)
        except RemotingError as error:
            collected.problems.append(f"no controller: {error}")
    collected.groups.sort(key=lambda group: group.broker_name)
    return collected


async def elect_master(
    admin: AdminConnection, group: ReplicaGroup, broker_id: int | None = None
) -> MasterHeader:
    """Let the controller elect a master; return it.

    Args:
        admin: The admin client.
        group: The group.
        broker_id: The replica to be elected, although the master may be alive. None: any that
            is in sync, if the master is dead.

    Raises:
        BrokerError: The controller elects none; the remark says why.
    """
    header = controller_headers.ElectMasterHeader(
        cluster_name=group.cluster_name,
        broker_name=group.broker_name,
        broker_id=controller_headers.NO_BROKER_ID if broker_id is None else broker_id,
        designate_elect=broker_id is not None,
    )
    reply = await admin.calls.ask(
        group.controller, requests.make(RequestCode.CONTROLLER_ELECT_MASTER, header)
    )
    return headers.decode(MasterHeader, reply.ext_fields)


async def forget_replicas(
    admin: AdminConnection, group: ReplicaGroup, broker_ids: Collection[int] = ()
) -> None:
    """Let the controller forget replicas that will not come back.

    Args:
        admin: The admin client.
        group: The group.
        broker_ids: Their ids; empty: the whole group, if it has no master.

    Raises:
        BrokerError: The controller refuses, as one of them is alive; the remark says which.
    """
    header = controller_headers.CleanBrokerDataHeader(
        broker_name=group.broker_name,
        cluster_name=group.cluster_name or None,
        broker_controller_ids_to_clean=";".join(map(str, sorted(broker_ids))) or None,
    )
    await admin.calls.ask(group.controller, requests.make(RequestCode.CLEAN_BROKER_DATA, header))


# --- parts ----------------------------------------------------------------------------------------


async def _controllers_of(admin: AdminConnection, addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the controllers of brokers of one name, from the first that answers."""
    for address in addresses:
        try:
            settings = await broker_config(admin, address)
        except RemotingError:
            continue
        if settings.get("enableControllerMode") != "true":
            return ()
        texts = settings.get("controllerAddr", "").split(";")
        return tuple(text.strip() for text in texts if text.strip())
    return ()


async def _groups_of(
    admin: AdminConnection, controller: str, names: Sequence[str]
) -> list[ReplicaGroup]:
    groups = await _groups_at(admin, controller, names)
    if any(group.newer_logs for group in groups):  # an election in between looks the same
        groups = await _groups_at(admin, controller, names)
    return groups


async def _groups_at(
    admin: AdminConnection, controller: str, names: Sequence[str]
) -> list[ReplicaGroup]:
    reply = await admin.calls.ask(
        controller,
        requests.make(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=bodies.encode(names)),
    )
    table = bodies.decode(BrokerReplicasInfo, reply.body).replicas_info_table
    return list(
        await asyncio.gather(
            *(_group(admin, controller, name, info) for name, info in sorted(table.items()))
        )
    )


async def _group(
    admin: AdminConnection, controller: str, name: str, info: ReplicasInfo
) -> ReplicaGroup:
    async def replica(identity: bodies.ReplicaIdentity, is_in_sync: bool) -> GroupReplica:
        log, problem = None, ""
        try:
            log = await broker_epochs(admin, identity.broker_address)
        except ReputError as error:
            problem = str(error)
        return GroupReplica(
            identity.broker_id, identity.broker_address, identity.alive, is_in_sync, log, problem
        )

    known = [(identity, True) for identity in info.in_sync_replicas]
    known += [(identity, False) for identity in info.not_in_sync_replicas]
    replicas = await asyncio.gather(
        *(replica(identity, is_in_sync) for identity, is_in_sync in known)
    )
    clusters = (member.log.cluster_name for member in replicas if member.log is not None)
    return ReplicaGroup(
        broker_name=name,
        cluster_name=next(clusters, ""),
        controller=controller,
        master_id=info.master_broker_id if info.master_address else None,
        master_epoch=info.master_epoch,
        set_epoch=info.sync_state_set_epoch,
        replicas=sorted(replicas, key=lambda member: member.broker_id),
    )
