"""The state of replication, for /health and for the broker's status (28)."""

from typing import Any

from reput.broker.parts import Parts
from reput.broker.replication.state import SlaveState

REPLICAS_LISTED = 16
"""Maximum number of listed slaves; more connect only by mistake."""
_REFUSING = frozenset(
    {
        SlaveState.DIVERGED,
        SlaveState.AHEAD,
        SlaveState.TOO_OLD,
        SlaveState.REFUSED,
        SlaveState.FAILED,
    }
)
"""States that do not end without an operator."""


def slave_lag(parts: Parts) -> int:
    """Return the number of bytes that a slave lacks, as far as it knows its master's log."""
    status = parts.replication.follower.status
    return max(status.master_max_offset - parts.store.replica_log.end, 0)


def problems(parts: Parts) -> list[str]:
    """Return what does not recover by itself: no role, or a slave that does not follow."""
    member = parts.member
    if member is not None and member.problem and not member.has_role:
        return [f"this broker has no role in its replica group: {member.problem}"]
    if parts.identity.is_master:
        return []
    status = parts.replication.follower.status
    if status.state not in _REFUSING:
        return []
    return [f"this slave does not follow its master, {status.state}: {status.reason}"]


def warnings(parts: Parts) -> list[str]:
    """Return what limits replication at present."""
    if parts.member is not None and parts.member.problem and parts.member.has_role:
        return [f"replica group: {parts.member.problem}", *_group_warnings(parts)]
    if parts.member is not None and parts.identity.is_master:
        return _group_warnings(parts)
    if not parts.identity.is_master:
        status = parts.replication.follower.status
        is_searching = status.state is SlaveState.SEARCHING
        return [f"this slave has no master: {status.reason}"] if is_searching else []
    config = parts.settings.store
    needed = config.replicas_needed - 1
    info = parts.replication.slave_port.slaves_status()
    if info.in_sync_slave_nums >= needed:
        return []
    return [
        f"{info.in_sync_slave_nums} slaves are in sync, and sends of a {config.broker_role} wait "
        f"for {needed}: they are answered with SLAVE_NOT_AVAILABLE"
    ]


def _group_warnings(parts: Parts) -> list[str]:
    """Return what limits a master under a controller at present."""
    member, in_sync, least = parts.member, parts.store.in_sync, parts.settings.store
    limits: list[str] = []
    if member is None or in_sync is None:
        return limits
    if not member.lease.is_valid and in_sync.others:
        limits.append(
            "the leading controller does not answer, so that another master may have been "
            "elected: a send is acknowledged when all in-sync replicas have the message"
        )
    if len(in_sync.members) < least.min_in_sync_replicas:
        limits.append(
            f"{len(in_sync.members)} brokers are in sync, and minInSyncReplicas is "
            f"{least.min_in_sync_replicas}: sends are refused"
        )
    return limits


def _describe_group(parts: Parts) -> dict[str, Any]:
    """Return the state of the membership in a replica group as JSON."""
    member, in_sync = parts.member, parts.store.in_sync
    if member is None:
        return {}
    state: dict[str, Any] = {
        "broker_id": member.broker_id,
        "controller": member.controllers.leader,
        "master_id": member.mastership.master_id,
        "master": member.mastership.address,
        "epoch": member.mastership.epoch,
        "log_epoch": member.epochs.last,
        "in_sync": sorted(member.mastership.in_sync),
        "problem": member.problem,
    }
    if in_sync is not None:
        end = parts.store.max_physical_offset
        state["lease_left_ms"] = member.lease.left_ms
        state["confirmed_lag_bytes"] = end - in_sync.confirmed(end)
    return {"group": state}


def describe(parts: Parts) -> dict[str, Any]:
    """Return the state as JSON."""
    config = parts.settings.store
    state: dict[str, Any] = {
        "role": str(config.broker_role),
        "broker_id": parts.settings.broker.broker_id,
        "log_end": parts.store.max_physical_offset,
        **_describe_group(parts),
    }
    if parts.identity.is_master:
        info = parts.replication.slave_port.slaves_status()
        state["slaves_needed"] = config.replicas_needed - 1
        state["slaves_in_sync"] = info.in_sync_slave_nums
        state["slaves"] = [
            {
                "address": slave.addr,
                "acked_offset": slave.slave_ack_offset,
                "lag_bytes": slave.diff,
                "is_in_sync": slave.in_sync,
            }
            for slave in info.ha_connection_info[:REPLICAS_LISTED]
        ]
        return state
    status = parts.replication.follower.status
    return state | {
        "state": str(status.state),
        "reason": status.reason,
        "master": status.master_address,
        "master_ha_address": status.master_ha_address,
        "lag_bytes": slave_lag(parts),
        "diverged_offset": status.diverged_offset,
    }
