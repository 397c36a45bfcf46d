"""Codes 907, 908 of 5.x: the state of replication."""

import msgspec

from reput.broker.parts import Parts
from reput.format import bodies, command as commands, headers
from reput.format.bodies import HaClientInfo, HaRuntimeInfo
from reput.format.command import Command
from reput.format.headers import ResetMasterFlushOffsetHeader
from reput.remoting.channel import Channel


def ha_status(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return a master's slaves and how far they lag, or a slave's connection to its master."""
    if parts.identity.is_master:
        info = parts.replication.slave_port.slaves_status()
    else:
        info = _slave_status(parts)
    return commands.reply(request, body=bodies.encode(info))


def _slave_status(parts: Parts) -> HaRuntimeInfo:
    status = parts.replication.follower.status
    return HaRuntimeInfo(
        ha_client_runtime_info=HaClientInfo(
            last_read_timestamp=status.read_ms,
            last_write_timestamp=status.written_ms,
            master_addr=status.master_ha_address or msgspec.UNSET,
            master_flush_offset=status.master_flushed_offset,
            max_offset=parts.store.replica_log.end,
            transferred_byte_in_second=status.bytes_per_second,
        ),
        master=False,
        master_commit_log_max_offset=0,  # Java does not set it
    )


def reset_master_flush_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Set what a slave reports as its master's flushed offset; a master does nothing, as in Java.

    Nothing else uses the value: a slave compares its last record with its master's.
    """
    header = headers.decode(ResetMasterFlushOffsetHeader, request.ext_fields)
    if not parts.identity.is_master:
        parts.replication.follower.status.master_flushed_offset = header.master_flush_offset
    return commands.reply(request)
