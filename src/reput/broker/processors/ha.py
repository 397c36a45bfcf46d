"""Codes 907, 908 of 5.x: the state of replication."""

from reput.broker.parts import Parts
from reput.errors import RequestRefused
from reput.format import bodies, command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.remoting.channel import Channel


def ha_status(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the slaves of a master, and how far they lag."""
    _check_master(parts)
    info = parts.replication.slave_port.slaves_status()
    return commands.reply(request, body=bodies.encode(info))


def reset_master_flush_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Do nothing, like every master: a slave stores its master's flushed offset."""
    _check_master(parts)
    return commands.reply(request)


def _check_master(parts: Parts) -> None:
    if not parts.identity.is_master:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "this slave does not replicate: replication is not supported"
        )
