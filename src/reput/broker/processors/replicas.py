"""Codes 906, 1007, 1008 of 5.x: requests of a controller, and of members of a replica group."""

from reput.broker.parts import Parts
from reput.broker.replicas.member import Member
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, epoch_file, headers
from reput.format.bodies import EpochEntry, EpochEntryCache
from reput.format.codes import MASTER_ID, ResponseCode
from reput.format.command import Command
from reput.format.headers import ExchangeHaInfoReplyHeader
from reput.remoting.channel import Channel

_OPEN_END = (1 << 63) - 1
"""End of the last epoch, as in Java."""


def ha_info(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the addresses of a master (906); a slave has nothing to return.

    In Java a request can also set the addresses of a slave's master; here a slave asks.
    """
    reply = ExchangeHaInfoReplyHeader()
    if parts.identity.is_master:
        reply.master_ha_address = parts.identity.ha_address
        reply.master_flush_offset = parts.store.log.flushed_offset
        reply.master_address = parts.identity.address
    return commands.reply(request, ext_fields=headers.encode(reply))


def epoch_cache(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the epochs of the log (1007)."""
    member, end = _member(parts), parts.store.max_physical_offset
    epochs = member.epochs.all
    body = EpochEntryCache(
        broker_id=MASTER_ID if parts.identity.is_master else member.broker_id or 0,
        broker_name=parts.settings.broker.broker_name,
        cluster_name=parts.settings.broker.broker_cluster_name,
        epoch_list=[
            EpochEntry(
                end_offset=epoch_file.end_at(epochs, index, _OPEN_END),
                epoch=epoch.number,
                start_offset=epoch.start,
            )
            for index, epoch in enumerate(epochs)
        ],
        max_offset=end,
    )
    return commands.reply(request, body=bodies.encode(body))


def role_changed(parts: Parts, channel: Channel, request: Command) -> Command:
    """Ask the controller for the master at once, as a notice of it says (1008).

    The notice itself is not believed: anybody could send one.
    """
    _member(parts).wake()
    return commands.reply(request)


def _member(parts: Parts) -> Member:
    if parts.member is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
    return parts.member
