"""Health of the controller, as /health reports it.

Unhealthy means that an operator should act now: a group has no master, a change cannot be saved, no
controller leads, or the state does not fit the brokers. A group that would not survive its master
is a warning. Only the leader reports groups.
"""

from typing import TYPE_CHECKING

from reput.controller import rules
from reput.controller.elections import CHECK_MS
from reput.controller.group import Group
from reput.controller.liveness import Sight
from reput.remoting.health import Health

if TYPE_CHECKING:
    from reput.controller.server import Controller

INTRUDER_SHOWN_MS = 60_000
"""Time for which a heartbeat with the id of another broker remains a warning, in ms."""
_LATE_MS = 10_000
"""Largest delay of a check of all groups, in ms."""
_SHOWN_MAX = 10
"""Groups that are named; the others are counted."""


def check(controller: "Controller") -> Health:
    """Return the health of a controller. To be called on the event loop."""
    parts, elections = controller.parts, controller.parts.elections
    problems: list[str] = []
    warnings = list(controller.start_warnings)
    late_ms = controller.clock.monotonic_ms() - elections.checked_ms - CHECK_MS
    if late_ms > _LATE_MS:
        problems.append(f"dead masters have not been checked for since {late_ms + CHECK_MS} ms")
    if controller.store.failure:
        problems.append(f"the state cannot be saved: {controller.store.failure}")
    elif controller.leading_failure:
        problems.append(f"it is to lead, and cannot: {controller.leading_failure}")
    elif elections.failure and parts.is_leading:
        problems.append(f"no election: {elections.failure}")
    elif not parts.is_leading and parts.store.leader is None:
        problems.append("no controller leads")
    groups = parts.groups.all()
    now_ms = elections.now_ms()
    for group in groups if parts.is_leading else ():
        sight = elections.sight(group.broker_name)
        problem = group_problem(group, sight)
        if problem:
            problems.append(problem)
        elif group.master_id is not None and not _has_successor(group, sight):
            warnings.append(
                f"{group.broker_name} would not survive its master: no other replica is in sync"
            )
    for (name, broker_id), (address, seen_ms) in parts.intruders.items():
        if now_ms - seen_ms <= INTRUDER_SHOWN_MS:
            warnings.append(f"{address} sends heartbeats with the id {broker_id} of {name}")
    return Health(
        _shown(problems),
        _shown(warnings),
        {
            "leading": parts.is_leading,
            "groups": len(groups),
            "without_master": sum(is_without_master(group) for group in groups),
            "elections": dict(sorted(elections.counts.items())),
            "refusals": dict(sorted(controller.refusals.counts.items())),
        },
    )


def is_without_master(group: Group) -> bool:
    """Return whether a group had a master, and has none."""
    return group.master_id is None and group.master_epoch > 0


def group_problem(group: Group, sight: Sight) -> str:
    """Return what an operator must do for a group; empty if nothing."""
    problem = rules.state_problem(group, sight)
    if problem or not is_without_master(group):
        return problem
    in_sync = ", ".join(f"{key} at {group.address(key)}" for key in group.in_sync) or "none"
    text = f"{group.broker_name} has no master; start a replica that was in sync: {in_sync}"
    loss = rules.unclean_loss(group, sight)
    return f"{text}. Without it, {loss}" if loss else text


def _has_successor(group: Group, sight: Sight) -> bool:
    return any(key != group.master_id and key in sight.alive for key in group.in_sync)


def _shown(texts: list[str]) -> tuple[str, ...]:
    if len(texts) <= _SHOWN_MAX:
        return tuple(texts)
    return (*texts[:_SHOWN_MAX], f"and {len(texts) - _SHOWN_MAX} more")
