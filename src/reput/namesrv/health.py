"""Health checks of the name server: what its /health says.

Red when somebody should look now: silent brokers are not removed, or shared settings cannot be
saved. That two brokers claim one place is a warning.
"""

from typing import TYPE_CHECKING

from reput.remoting.health import Health

if TYPE_CHECKING:
    from reput.namesrv.server import NameServer

TAKEOVER_SHOWN_MS = 600_000
"""How long it is a warning that somebody took the place of a live broker."""
_SILENT_MS = 10_000
"""How much later than it should the look for silent brokers may be."""


def look(server: "NameServer") -> Health:
    """Return how a name server is. On the loop's thread."""
    parts, now_ms = server.parts, server.clock.monotonic_ms()
    problems, warnings = [], list(server.start_warnings)
    silent_ms = now_ms - server.expired_ms
    if server.expiry_failure:
        problems.append(f"removing silent brokers failed: {server.expiry_failure}")
    elif silent_ms > parts.config.value.scan_not_active_broker_interval + _SILENT_MS:
        problems.append(f"nobody has looked for silent brokers for {silent_ms} ms")
    if parts.kv_saver.failure:
        problems.append(f"shared settings cannot be saved: {parts.kv_saver.failure}")
    takeover_ms = parts.takeover_ms
    if takeover_ms is not None and now_ms - takeover_ms <= TAKEOVER_SHOWN_MS:
        warnings.append(f"two claim to be broker {parts.takeover}")
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
