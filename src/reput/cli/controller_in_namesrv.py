"""A controller in the process of a name server, with ``enableControllerInNamesrv=true``.

Its keys are in the name server's file, as with RocketMQ. ``listenPort`` and ``metricsPort`` are
those of the name server: the controller listens on the port of ``controllerDLegerPeers``, else on
9878, and its metrics and health are part of the name server's.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from reput import config
from reput.controller import config as of_controllers
from reput.controller.metrics import ControllerMeter
from reput.controller.server import Controller
from reput.namesrv.metrics import NameServerMeter
from reput.namesrv.server import NameServer
from reput.remoting.health import Health
from reput.store.files.disk import Disk

if TYPE_CHECKING:
    from reput.remoting.metrics_server import Family, HistogramFamily


def load(
    path: str | None, environment: Mapping[str, str]
) -> tuple[of_controllers.CurrentSettings, tuple[config.Unknown, ...]]:
    """Return the settings of the controller, and the keys that it does not know.

    Changed settings are written to another file, which is not read at the next start, as with
    RocketMQ.

    Args:
        path: Path of namesrv.conf.
        environment: ``os.environ``.

    Raises:
        InvalidOption: A value is not allowed.
    """
    defaults = of_controllers.ControllerConfig()
    explicit = {
        "listen_port": defaults.port,
        "metrics_port": 0,
        "config_store_path": defaults.config_store_path,
    }
    current, unknown = of_controllers.load(path, environment=environment, explicit=explicit)
    port = replace(current.value, listen_port=None).port
    current.value = replace(current.value, listen_port=port)
    return current, unknown


class NameServerWithController:
    """Both, for a process that stops them together.

    Args:
        name_server: A name server that has started.
        settings: Settings of the controller.
    """

    def __init__(self, name_server: NameServer, settings: of_controllers.CurrentSettings) -> None:
        self.name_server = name_server
        self.controller = Controller(settings, Disk())

    async def start(self) -> None:
        """Start the controller; stop the name server if that fails. Raises as ``Controller``."""
        try:
            await self.controller.start()
        except BaseException:
            await self.name_server.stop()
            raise

    async def stop(self) -> None:
        """Stop both."""
        await self.controller.stop()
        await self.name_server.stop()

    @property
    def text(self) -> str:
        """Address and state of the controller, for the line that reports the start."""
        host = self.controller.config.value.bind_address
        place = self.controller.store.place
        where = f"{host}:{self.controller.port}"
        return f"The Controller Manager boot success. address {where}, state {place}"


class MeterOfBoth:
    """Measures both; metrics of the whole process are those of the name server.

    Args:
        both: The servers.
    """

    def __init__(self, both: NameServerWithController) -> None:
        self._meters = NameServerMeter(both.name_server), ControllerMeter(both.controller)

    async def check_health(self) -> Health:
        """Return the problems and warnings of both."""
        first, second = [await meter.check_health() for meter in self._meters]
        return Health(
            (*first.problems, *second.problems),
            (*first.warnings, *second.warnings),
            {**first.details, "controller": dict(second.details)},
        )

    async def measure(self) -> "list[Family | HistogramFamily]":
        """Return all metrics."""
        families = await self._meters[0].measure()
        names = {family.name for family in families}
        families += [item for item in await self._meters[1].measure() if item.name not in names]
        return families
