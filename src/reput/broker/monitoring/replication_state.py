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
    """Return why a slave does not follow its master, and does not recover by itself."""
    if parts.identity.is_master:
        return []
    status = parts.replication.follower.status
    if status.state not in _REFUSING:
        return []
    return [f"this slave does not follow its master, {status.state}: {status.reason}"]


def warnings(parts: Parts) -> list[str]:
    """Return what limits replication at present."""
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


def describe(parts: Parts) -> dict[str, Any]:
    """Return the state as JSON."""
    config = parts.settings.store
    state: dict[str, Any] = {
        "role": str(config.broker_role),
        "broker_id": parts.settings.broker.broker_id,
        "log_end": parts.store.max_physical_offset,
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
