"""Changes of replica groups: which replica is the master."""

from reput.client.admin import GroupReplica, ReplicaGroup
from reput.console.access import Right
from reput.console.changes import Change, Preview, Receipt
from reput.console.page import RequestFailed, View


async def _chosen(view: View) -> tuple[ReplicaGroup, GroupReplica]:
    """Return the group, and the replica that is to be elected. Raises ``RequestFailed``."""
    name, text = view.names["broker"], view.form.get("id", "")
    await view.parts.replicas.refresh()
    for group in view.parts.replicas.groups.groups:
        if group.broker_name == name:
            break
    else:
        raise RequestFailed(404, f"no controller knows broker {name[:80]!r}")
    for replica in group.candidates:
        if str(replica.broker_id) == text:
            return group, replica
    allowed = ", ".join(str(replica.broker_id) for replica in group.candidates) or "none"
    raise RequestFailed(
        400, f"id={text[:40]!r}: of the replicas that are alive and in sync, allowed are {allowed}"
    )


async def preview_election(view: View) -> Preview:
    """Return the masters before and after."""
    group, chosen = await _chosen(view)
    master = group.master
    warnings = ["Sends may be refused until the new master serves, and are repeated by clients."]
    if len(group.candidates) == 1:
        warnings.append("No other replica is in sync: until the old master follows, there is none.")
    rows = [
        ("before", group.master_id, master.address if master else None, group.master_epoch),
        ("after", chosen.broker_id, chosen.address, group.master_epoch + 1),
    ]
    return Preview(
        title=f"Make replica {chosen.broker_id} the master of {group.broker_name}",
        button="Let the controller elect it",
        columns=("When", "Id", "Master", "Epoch"),
        rows=rows,
        state={"master": group.master_id or 0, "epoch": group.master_epoch},
        warnings=warnings,
        typed_name=group.broker_name,
    )


async def run_election(view: View, preview: Preview) -> Receipt:
    """Let the controller elect the replica."""
    group, chosen = await _chosen(view)
    master = await view.parts.cluster.live.admin.elect_master(group, chosen.broker_id)
    view.parts.replicas.asked_ms = 0
    return Receipt(
        "done",
        f"{master.master_address} is the master of {group.broker_name} in epoch "
        f"{master.master_epoch}.",
        link=("replicas",),
    )


ELECT = Change("replicas.elect", Right.ADMIN, preview_election, run_election)
