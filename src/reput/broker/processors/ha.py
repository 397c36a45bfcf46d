"""907, 908 of 5.x: what a master knows of its slaves.

There are none: slaves of RocketMQ copy a master's log over a port of their own, on which nothing
listens here.
"""

from reput.broker.parts import Parts
from reput.errors import RequestRefused
from reput.format import bodies, command as commands
from reput.format.bodies import HaRuntimeInfo
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.remoting.channel import Channel


def ha_status(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return how far the log goes, and that no slave has it."""
    _check_master(parts)
    found = HaRuntimeInfo(master_commit_log_max_offset=parts.store.max_physical_offset)
    return commands.reply(request, body=bodies.encode(found))


def reset_master_flush_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Do nothing, as every master: slaves note there how far their master's disk has the log."""
    _check_master(parts)
    return commands.reply(request)


def _check_master(parts: Parts) -> None:
    if not parts.identity.is_master:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "this slave copies nothing: there is no replication here"
        )
