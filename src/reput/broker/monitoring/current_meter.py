"""The meter of a broker whose parts are replaced when its role changes."""

from typing import Protocol

from reput.broker.loops import Loops
from reput.broker.monitoring.metrics import BrokerMeter
from reput.broker.monitoring.rocketmq_metrics import RocketmqMeter
from reput.broker.parts import Parts
from reput.remoting.health import Health
from reput.remoting.metrics_server import Family, HistogramFamily, single


class MeteredBroker(Protocol):
    """The part of a broker that is measured."""

    parts: Parts
    loops: Loops
    failure: Exception | None
    """Why the store could not be reopened."""

    @property
    def is_open(self) -> bool:
        """False while the store is being reopened."""

    def connection_counts(self) -> dict[str, int]:
        """Return the number of connections of each port."""


class CurrentMeter:
    """Measures a broker, also after changes of its role.

    Args:
        broker: The broker.
        kind: The metrics: ours, or those with RocketMQ's names.
    """

    def __init__(
        self,
        broker: MeteredBroker,
        kind: type[BrokerMeter] | type[RocketmqMeter] = BrokerMeter,
    ) -> None:
        self._broker = broker
        self._kind = kind
        self._meter = self._make()
        self._parts = broker.parts

    def _make(self) -> BrokerMeter | RocketmqMeter:
        broker = self._broker
        names_max = broker.parts.settings.broker.reput_metrics_names
        return self._kind(broker.parts, broker.loops, broker.connection_counts, names_max)

    def _current(self) -> BrokerMeter | RocketmqMeter | None:
        """Return the meter of the current parts; None while there are none."""
        if not self._broker.is_open:
            return None
        if self._parts is not self._broker.parts:
            self._meter, self._parts = self._make(), self._broker.parts
        return self._meter

    async def check_health(self) -> Health:
        """Return the health of the broker."""
        meter = self._current()
        if meter is None:
            failure = self._broker.failure
            if failure is not None:
                return Health((f"the store could not be reopened: {failure}",))
            return Health(("the store is closed, and opened again in another role",))
        return await meter.check_health()

    async def measure(self) -> list[Family | HistogramFamily]:
        """Return all metrics."""
        meter = self._current()
        if meter is None:
            return [single("reput_healthy", "1 if /health reports no problem.", False)]
        return await meter.measure()
