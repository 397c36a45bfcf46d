"""The metrics of a controller, served on ``metricsPort`` as /metrics.

The HTTP part is ``reput.remoting.metrics_server``.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from reput import __version__
from reput.controller import health
from reput.format.codes import RequestCode
from reput.remoting import metrics_server
from reput.remoting.health import Health
from reput.remoting.metrics_server import Family, HistogramFamily, Turns, single

if TYPE_CHECKING:
    from reput.controller.server import Controller

_BY_GROUP = ("cluster", "broker_name")
_OWN = ("address", "group", "peer_id")
_BY_SET = ("cluster", "broker_set")
_UNKNOWN, _FOLLOWER, _LEADER = 0, 2, 3
"""Values of ``role``; 1 is a candidate of Raft."""
_REQUEST_TYPES = {
    RequestCode.BROKER_HEARTBEAT: "controller_broker_heartbeat",
    RequestCode.UPDATE_CONTROLLER_CONFIG: "controller_update_controller_config",
    RequestCode.GET_CONTROLLER_CONFIG: "controller_get_controller_config",
    RequestCode.CLEAN_BROKER_DATA: "controller_clean_broker_data",
}
"""Types of requests whose codes have other names. Source: 5.5.0 ``ControllerMetricsConstant``."""


class ControllerMeter:
    """Measures a controller. To be used only on the event loop.

    Args:
        controller: The controller.
    """

    def __init__(self, controller: "Controller") -> None:
        self._controller = controller

    async def check_health(self) -> Health:
        """Return the health of the controller."""
        return health.check(self._controller)

    async def measure(self) -> list[Family | HistogramFamily]:
        """Return all metrics."""
        return await metrics_server.gather(
            self._state, self._groups, self._java_names, self._serving
        )

    async def _state(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._controller.parts
        info = Family("reput_info", "What runs.", ("version",), values={(__version__,): 1.0})
        yield info
        is_well = health.check(self._controller).is_well
        yield single("reput_healthy", "1 if /health reports no problem.", is_well)
        yield single("reput_controller_leading", "1 if it leads.", parts.is_leading)
        groups = parts.groups.all()
        yield single("reput_controller_groups", "Broker names.", len(groups))
        yield single(
            "reput_controller_groups_without_master",
            "Broker names that had a master, and have none.",
            sum(map(health.is_without_master, groups)),
        )
        counts = parts.elections.counts
        yield Family(
            "reput_controller_elections_total",
            "Elections by result.",
            ("result",),
            is_counter=True,
            values={(key,): counts[key] for key in ("new_master", "no_master", "failed")},
        )
        yield single(
            "reput_controller_changes_total",
            "Changes of the state that are durable.",
            parts.groups.change_count,
            is_counter=True,
        )

    async def _groups(self, turns: Turns) -> AsyncIterator[Family]:
        active = Family("reput_controller_active_brokers", "Brokers that are alive.", _BY_GROUP)
        in_sync = Family("reput_controller_in_sync_replicas", "Replicas in sync.", _BY_GROUP)
        epochs = Family("reput_controller_master_epoch", "Epoch of the master.", _BY_GROUP)
        parts = self._controller.parts
        for group in parts.groups.all():
            labels = group.cluster_name, group.broker_name
            active.values[labels] = len(parts.elections.sight(group.broker_name).alive)
            in_sync.values[labels] = len(group.in_sync)
            epochs.values[labels] = group.master_epoch
        yield active
        yield in_sync
        yield epochs

    async def _java_names(self, turns: Turns) -> AsyncIterator[Family]:
        """Measure what RocketMQ's boards show. Source: 5.5.0 ``ControllerMetricsManager``."""
        parts = self._controller.parts
        config = parts.config.value
        own = config.peer
        values = (
            f"{config.bind_address}:{self._controller.port}" if own is None else own.address,
            config.controller_d_leger_group,
            config.controller_d_leger_self_id,
        )
        role = _LEADER if parts.is_leading else _FOLLOWER if parts.store.leader else _UNKNOWN
        yield Family(
            "role", "0: no leader is known, 2: follower, 3: leader.", _OWN, values={values: role}
        )
        active = Family("active_broker_num", "Brokers that are alive.", (*_OWN, *_BY_SET))
        for group in parts.groups.all():
            count = len(parts.elections.sight(group.broker_name).alive)
            active.values[(*values, group.cluster_name, group.broker_name)] = count
        yield active
        elections = Family(
            "election_total",
            "Elections by result.",
            (*_OWN, *_BY_SET, "election_result"),
            is_counter=True,
        )
        for key, count in sorted(parts.elections.counts_by_group.items()):
            elections.values[(*values, *key)] = count
        yield elections
        requests = Family(
            "request_total",
            "Requests by type, and whether they failed.",
            (*_OWN, "request_type", "request_handle_status"),
            is_counter=True,
        )
        for (code, status), count in sorted(parts.request_counts.items()):
            known = RequestCode(code)
            name = _REQUEST_TYPES.get(known, known.name.lower())
            requests.values[(*values, name, status)] = count
        yield requests

    async def _serving(self, turns: Turns) -> AsyncIterator[Family]:
        serving = self._controller.serving
        yield single("reput_connections", "Open connections.", serving.connection_count)
        yield metrics_server.refusals_by_limit(serving.refusals)
        yield metrics_server.tls_handshakes(serving.tls)
        yield metrics_server.proxy_headers(serving.proxies)
