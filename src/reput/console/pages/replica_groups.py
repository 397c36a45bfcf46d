"""Replica groups of controllers: masters, epochs, in-sync sets, and what a group waits for."""

from reput.client.admin import ReplicaGroup
from reput.console.page import Page, View


async def page(view: View) -> Page:
    """Return all groups, those with problems first."""
    watch = view.parts.replicas
    await watch.refresh()
    groups = sorted(
        watch.groups.groups,
        key=lambda group: (not group.problem, not group.warning, group.broker_name),
    )
    data = {
        "asked_ms": watch.asked_ms or None,
        "problems": [*filter(None, [watch.problem]), *watch.groups.problems],
        "groups": [_group(group) for group in groups],
    }
    return Page("replica_groups.html.j2", "Replica groups", data)


def _group(group: ReplicaGroup) -> dict[str, object]:
    return {
        "name": group.broker_name,
        "controller": group.controller,
        "master_id": group.master_id,
        "master_epoch": group.master_epoch,
        "set_epoch": group.set_epoch,
        "problem": group.problem or None,
        "warning": group.warning or None,
        "replicas": [
            {
                "id": replica.broker_id,
                "address": replica.address,
                "is_master": replica.broker_id == group.master_id,
                "is_alive": replica.is_alive,
                "is_in_sync": replica.is_in_sync,
                "is_candidate": replica in group.candidates,
                "epoch": replica.last_epoch,
                "log_end": replica.log_end,
                "lag_bytes": group.lag_bytes(replica),
                "problem": replica.problem or None,
            }
            for replica in group.replicas
        ],
    }
