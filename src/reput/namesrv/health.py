"""Health of the name server, as /health reports it.

Unhealthy means that an operator should act now: silent brokers are not removed, or shared settings
cannot be saved. Two brokers with the same name and id are a warning.
"""

from typing import TYPE_CHECKING

from reput.remoting.health import Health

if TYPE_CHECKING:
    from reput.namesrv.server import NameServer

TAKEOVER_SHOWN_MS = 600_000
"""Time for which a takeover of a live broker's name and id remains a warning, in ms."""
_SILENT_MS = 10_000
"""Largest delay of the check for silent brokers, in ms."""


def check(server: "NameServer") -> Health:
    """Return the health of a name server. To be called on the event loop."""
    parts, now_ms = server.parts, server.clock.monotonic_ms()
    problems, warnings = [], list(server.start_warnings)
    silent_ms = now_ms - server.expired_ms
    if server.expiry_failure:
        problems.append(f"removing silent brokers failed: {server.expiry_failure}")
    elif silent_ms > parts.config.value.scan_not_active_broker_interval + _SILENT_MS:
        problems.append(f"silent brokers have not been checked for {silent_ms} ms")
    if parts.kv_saver.failure:
        problems.append(f"shared settings cannot be saved: {parts.kv_saver.failure}")
    takeover_ms = parts.takeover_ms
    if takeover_ms is not None and now_ms - takeover_ms <= TAKEOVER_SHOWN_MS:
        warnings.append(f"two addresses register as broker {parts.takeover}")
    routes = parts.routes
    return Health(
        tuple(problems),
        tuple(warnings),
        {
            "brokers": routes.broker_count,
            "topics": routes.topic_count,
            "takeovers": routes.takeover_count,
            "refusals": dict(sorted(server.refusals.counts.items())),
        },
    )
