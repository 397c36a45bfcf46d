"""What a console consists of; handlers get it in their view."""

from dataclasses import dataclass

from reput.clock import Clock


@dataclass(slots=True)
class ConsoleParts:
    """The parts of a running console."""

    clock: Clock
    namesrv: str
    """Name servers: ``host:port;host:port``."""
    may_operate: bool
    """Whether the console was started with ``--allow operate``."""
