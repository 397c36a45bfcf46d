"""The decisions of a controller: pure functions of a group, its living brokers, and a request.

Each returns the group after the decision (the same object if nothing changes, None if there is
none), and the answer, which is sent when the change is durable. Codes and remarks are Java's.
Source: rocketmq 5.5.0 ``ReplicasInfoManager``, ``DefaultElectPolicy``. Differences:

* A replica that was silent or restarted is compared by its newest report, as numbers of 64 bits.
* A broker that registers again has begun a new life, in which its log may be shorter: a master
  needs a new epoch, and another one is not in sync until its master reports it.
* The first election takes the replica with the longest log, not the one that asks.
* No replica is elected by itself whose log is of a later epoch than the group: this controller has
  lost its state, or it is another one. An operator decides.
* Without a candidate the epoch grows once, not with each attempt.
* A cleaned id is never given again, and cleaning one replica keeps the others.
"""

from typing import NamedTuple

from reput.controller import limits
from reput.controller.group import FIRST_BROKER_ID, Group, Replica
from reput.controller.liveness import Report, Sight
from reput.errors import excerpt
from reput.format import bodies
from reput.format.bodies import BrokerMembers, ElectMasterReply, SyncStateSet
from reput.format.codes import ResponseCode
from reput.format.controller_headers import (
    AlterSyncStateSetHeader,
    AlterSyncStateSetReplyHeader,
    ApplyBrokerIdHeader,
    ApplyBrokerIdReplyHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    MasterHeader,
    NextBrokerIdHeader,
    NextBrokerIdReplyHeader,
    RegisterAtControllerHeader,
    RegisterAtControllerReplyHeader,
)
from reput.format.headers import Header


class Answer(NamedTuple):
    """The reply to a request."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: Header | None = None
    body: bodies.Body | None = None


class Decision(NamedTuple):
    """A decision: the group as it is to be, and the answer when that is durable."""

    group: Group | None
    answer: Answer = Answer()


# --- ids ------------------------------------------------------------------------------------------


def next_broker_id(group: Group | None, header: NextBrokerIdHeader) -> Decision:
    """Return the id that the next broker of the name may apply for (1012)."""
    wrong = _other_cluster(group, header.cluster_name)
    if wrong is not None:
        return Decision(group, wrong)
    reply = NextBrokerIdReplyHeader(
        cluster_name=header.cluster_name,
        broker_name=header.broker_name,
        next_broker_id=FIRST_BROKER_ID if group is None else group.next_broker_id,
    )
    return Decision(group, Answer(header=reply))


def apply_broker_id(group: Group | None, header: ApplyBrokerIdHeader) -> Decision:
    """Give a broker an id (1013); the same request may come again."""
    name, broker_id, code = header.broker_name, header.applied_broker_id, header.register_check_code
    for text in (header.cluster_name, name, code):
        limits.CONTROLLER_NAME_LETTERS.check(len(text), excerpt(text, 50))
    reply = ApplyBrokerIdReplyHeader(cluster_name=header.cluster_name, broker_name=name)
    wrong = _other_cluster(group, header.cluster_name)
    if wrong is not None:
        return Decision(group, wrong)
    if group is None:
        if broker_id != FIRST_BROKER_ID:
            remark = (
                f"Broker-set: {name} hasn't been registered in controller, but broker try to "
                f"apply brokerId: {broker_id}"
            )
            return Decision(None, Answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, reply))
        group = Group(cluster_name=header.cluster_name, broker_name=name, replicas={})
    replica = group.replicas.get(broker_id)
    if replica is not None and replica.check_code == code:
        return Decision(group, Answer(header=reply))
    if replica is not None or broker_id < group.next_broker_id:
        remark = f"Fail to apply brokerId: {broker_id} in broker-set: {name}"
        return Decision(group, Answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, reply))
    limits.CONTROLLER_REPLICAS.check(len(group.replicas) + 1, name)
    address = code.partition(";")[0]
    return Decision(group.with_replica(broker_id, Replica(address, code)), Answer(header=reply))


def register(
    group: Group | None, sight: Sight, header: RegisterAtControllerHeader, *, is_unclean: bool
) -> Decision:
    """Register a broker that has started (1003), and return the master.

    Args:
        group: The group of its name.
        sight: The living brokers.
        header: The request.
        is_unclean: Whether a replica that is not in sync may be elected.
    """
    name, broker_id, address = header.broker_name, header.broker_id, header.broker_address
    limits.CONTROLLER_NAME_LETTERS.check(len(address), excerpt(address, 50))
    reply = RegisterAtControllerReplyHeader(cluster_name=header.cluster_name, broker_name=name)
    wrong = _other_cluster(group, header.cluster_name)
    if wrong is not None:
        return Decision(group, wrong)
    unknown = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if group is None:
        remark = f"Broker-set: {name} hasn't been registered in controller"
        return Decision(None, Answer(unknown, remark, reply))
    if broker_id not in group.replicas:
        remark = f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}"
        return Decision(group, Answer(unknown, remark, reply))
    living = sight.alive.get(broker_id)
    if living is not None and address not in (living.address, group.address(broker_id)):
        remark = (
            f"broker id {broker_id} of {name} is that of {living.address}, which is alive: "
            f"{address} cannot have it too. Was its store copied? Then delete its file "
            "brokerIdentity"
        )
        return Decision(group, Answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, reply))
    if address != group.address(broker_id):
        replica = Replica(address, group.replicas[broker_id].check_code)
        group = group.with_replica(broker_id, replica)
    if broker_id == group.master_id:
        # Its log may have lost what it had: only the others, and a new epoch, are reliable.
        others = {key: report for key, report in sight.alive.items() if key != broker_id}
        group = replace_master(
            group, Sight(others, sight.presumed - {broker_id}), is_unclean=is_unclean
        )
    elif broker_id in group.in_sync and sight.may_act(group.master_id):
        # For the same reason: its master says when it has everything again.
        group = group.with_in_sync(set(group.in_sync) - {broker_id})
    if sight.may_act(group.master_id):
        reply.master_broker_id = group.master_id
        reply.master_address = group.master_address
        reply.master_epoch, reply.sync_state_set_epoch = group.master_epoch, group.set_epoch
    return Decision(group, Answer(header=reply, body=in_sync_body(group)))


# --- the in-sync set ------------------------------------------------------------------------------


def alter_in_sync(
    group: Group | None, sight: Sight, header: AlterSyncStateSetHeader, body: SyncStateSet
) -> Decision:
    """Change the in-sync set, as its master asks (1001)."""
    reply = AlterSyncStateSetReplyHeader(new_sync_state_set_epoch=0)
    failed = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    if group is None:
        return Decision(None, Answer(failed, "Broker metadata is not existed", reply))
    wanted = set(body.sync_state_set)
    if wanted == set(group.in_sync):
        remark = (
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"
        )
        return Decision(group, Answer(failed, remark, reply))
    refusal = _alter_refusal(group, sight, header, body)
    if refusal is not None:
        code, reason = refusal
        remark = f"Rejecting alter syncStateSet request because {reason}"
        return Decision(group, Answer(code, remark, reply))
    changed = group.with_in_sync(wanted)
    reply.new_sync_state_set_epoch = changed.set_epoch
    return Decision(changed, Answer(header=reply, body=in_sync_body(changed)))


def _alter_refusal(
    group: Group, sight: Sight, header: AlterSyncStateSetHeader, body: SyncStateSet
) -> tuple[int, str] | None:
    """Return why a change of the in-sync set is refused, with the code; None if it is allowed."""
    if header.master_broker_id != group.master_id:
        return (
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"the current leader is:{{{_java(group.master_id)}}}, not "
            f"{{{header.master_broker_id}}}",
        )
    if header.master_epoch != group.master_epoch:
        return (
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the current master epoch is:{{{group.master_epoch}}}, not {{{header.master_epoch}}}",
        )
    if body.sync_state_set_epoch != group.set_epoch:
        return (
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the current syncStateSet epoch is:{{{group.set_epoch}}}, not "
            f"{{{body.sync_state_set_epoch}}}",
        )
    for broker_id in sorted(set(body.sync_state_set)):
        if broker_id not in group.replicas:
            code = ResponseCode.CONTROLLER_INVALID_REPLICAS
            return code, f"the replicas {{{broker_id}}} don't exist"
        if broker_id not in sight.alive:
            code = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
            return code, f"the replicas {{{broker_id}}} don't alive"
    if group.master_id not in body.sync_state_set:
        return (
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"the newSyncStateSet don't contains origin leader {{{group.master_id}}}",
        )
    return None


# --- elections ------------------------------------------------------------------------------------


def elect(
    group: Group | None, sight: Sight, header: ElectMasterHeader, *, is_unclean: bool
) -> Decision:
    """Elect a master, as a broker or an operator asks (1002)."""
    if group is None:
        code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        return Decision(None, Answer(code, "Broker hasn't been registered", MasterHeader()))
    requester, is_designated = header.broker_id, header.designate_elect
    problem = "" if is_designated else state_problem(group, sight)
    if problem:
        code = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        return Decision(group, Answer(code, problem, MasterHeader()))
    if group.master_epoch == 0 and requester in group.replicas:
        elected: int | None = requester if is_designated else _first_master(requester, sight)
    else:
        designated = requester if is_designated else None
        elected = _elected(group, sight, designated, is_unclean=is_unclean)
    if elected is None:
        code = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        return Decision(group, Answer(code, "Failed to elect a new master", MasterHeader()))
    if elected == group.master_id and not newer_logs(group, sight):
        remark = (
            f"The old master {elected} is still alive, not need to elect new master for broker "
            f"{group.broker_name}"
        )
        answer = Answer(
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            remark,
            master_header(group),
            ElectMasterReply(sync_state_set=list(group.in_sync)),
        )
        return Decision(group, answer)
    changed = _with_master(group, sight, elected)
    return Decision(changed, Answer(header=master_header(changed), body=_elected_body(changed)))


def replace_master(group: Group, sight: Sight, *, is_unclean: bool) -> Group:
    """Return the group with another master if its master is dead, or if it has none.

    Without a candidate it has no master; a new epoch, once, shows that to the brokers.
    """
    if group.master_epoch == 0 or sight.may_act(group.master_id):
        return group  # before the first election, brokers ask
    elected = None
    if not state_problem(group, sight):
        elected = _elected(group, sight, None, is_unclean=is_unclean)
    if elected is not None:
        return _with_master(group, sight, elected)
    if group.master_id is None:
        return group
    return group.with_master(None, group.master_epoch + 1)


def newer_logs(group: Group, sight: Sight) -> dict[int, int]:
    """Return the last epochs of the logs that are later than the group's, by broker id."""
    return {
        broker_id: report.epoch
        for broker_id, report in sorted(sight.alive.items())
        if report.epoch > group.master_epoch
    }


def state_problem(group: Group, sight: Sight) -> str:
    """Return why this controller must not elect a master by itself; empty if it may.

    A group that has never had a master here may have logs with epochs of another controller.
    """
    newer = newer_logs(group, sight) if group.master_epoch else {}
    if not newer:
        return ""
    broker_id, epoch = next(iter(newer.items()))
    return (
        f"the log of broker {broker_id} of {group.broker_name} is of epoch {epoch}, but this "
        f"controller knows no epoch after {group.master_epoch}: its state is older, or it is not "
        "the controller of this group. An operator must elect a master: mqadmin electMaster"
    )


def unclean_loss(group: Group, sight: Sight) -> str:
    """Return what would be lost if a replica that is not in sync were elected; empty if none is."""
    best = max(sight.alive.items(), key=lambda item: _rank(*item), default=None)
    if best is None:
        return ""
    broker_id, report = best
    return (
        f"the best of the others is broker {broker_id}, whose log ends at {report.end_offset} in "
        f"epoch {report.epoch}: electing it (enableElectUncleanMaster=true) would lose all "
        "messages that were acknowledged later"
    )


def _first_master(requester: int, sight: Sight) -> int:
    """Return the replica with the longest log; the requester if no other one is longer."""
    candidates = {**dict.fromkeys((requester,), Report("")), **sight.alive}
    best = max(candidates, key=lambda key: (*_rank(key, candidates[key])[:2], key == requester))
    return best


def _elected(group: Group, sight: Sight, designated: int | None, *, is_unclean: bool) -> int | None:
    """Return the best candidate; the old master if it may be alive and no one is designated."""
    sets = [group.in_sync]
    if is_unclean:
        sets.append(tuple(group.replicas))
    may_stay = designated in (None, group.master_id) and sight.may_act(group.master_id)
    for broker_ids in sets:
        if may_stay and group.master_id in broker_ids:
            return group.master_id
        candidates = [key for key in broker_ids if key in sight.alive]
        if designated is not None:
            candidates = [key for key in candidates if key == designated]
        if candidates:
            return max(candidates, key=lambda key: _rank(key, sight.alive[key]))
    return None


def _rank(broker_id: int, report: Report) -> tuple[int, int, int, int]:
    return report.epoch, report.end_offset, -report.priority, -broker_id


def _with_master(group: Group, sight: Sight, broker_id: int) -> Group:
    epochs = (group.master_epoch, *newer_logs(group, sight).values())
    report = sight.alive.get(broker_id)
    return group.with_master(broker_id, max(epochs) + 1, 0 if report is None else report.timeout_ms)


# --- cleaning -------------------------------------------------------------------------------------


def clean(group: Group | None, sight: Sight, header: CleanBrokerDataHeader) -> Decision:
    """Forget replicas that will not come back, or the whole group (1011)."""
    name, refused = header.broker_name, ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    if group is None:
        remark = f"Broker {name} is not existed,clean broker data failure."
        return Decision(None, Answer(refused, remark))
    wrong = _other_cluster(group, header.cluster_name or group.cluster_name)
    if wrong is not None:
        return Decision(group, wrong)
    words = (header.broker_controller_ids_to_clean or "").strip().split(";")
    broker_ids = set()
    for word in words if words != [""] else ():
        if not word.isascii() or not word.removeprefix("-").isdigit():
            remark = (
                "Please set the option <brokerControllerIdsToClean> according to the format, "
                f'exception: java.lang.NumberFormatException: For input string: "{excerpt(word)}"'
            )
            return Decision(group, Answer(refused, remark))
        broker_ids.add(int(word))
    if not header.is_clean_living_broker:
        if not broker_ids and group.master_id is not None:
            return Decision(
                group, Answer(refused, f"Broker {name} is still alive, clean up failure")
            )
        for broker_id in sorted(broker_ids):
            if sight.may_act(broker_id):
                remark = f"Broker [{name},  {broker_id}] is still alive, clean up failure"
                return Decision(group, Answer(refused, remark))
    if not broker_ids:
        return Decision(None)
    if not broker_ids & set(group.replicas):
        return Decision(group)
    return Decision(group.without_replicas(broker_ids))


# --- parts of answers -----------------------------------------------------------------------------


def master_header(group: Group) -> MasterHeader:
    """Return the master of a group, with both epochs."""
    return MasterHeader(
        master_broker_id=group.master_id,
        master_address=group.master_address,
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.set_epoch,
    )


def in_sync_body(group: Group) -> SyncStateSet:
    """Return the in-sync set of a group."""
    return SyncStateSet(sync_state_set=list(group.in_sync), sync_state_set_epoch=group.set_epoch)


def _elected_body(group: Group) -> ElectMasterReply:
    addresses = {key: replica.address for key, replica in sorted(group.replicas.items())}
    members = BrokerMembers(
        broker_addrs=addresses, broker_name=group.broker_name, cluster=group.cluster_name
    )
    return ElectMasterReply(broker_member_group=members, sync_state_set=list(group.in_sync))


def _other_cluster(group: Group | None, cluster_name: str) -> Answer | None:
    """Return the refusal of a request for a group of another cluster; None if it is the same."""
    if group is None or group.cluster_name == cluster_name:
        return None
    remark = (
        f"the broker name {group.broker_name} is of the cluster {group.cluster_name}, not of "
        f"{excerpt(cluster_name)}: a controller needs different names"
    )
    return Answer(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)


def _java(value: int | None) -> str:
    return "null" if value is None else str(value)
