"""Codes 25, 26: the broker's settings; 27, 329: delete expired files now.

``parts.settings`` decides about changes. Keys and texts are Java's, 4.9.8: a key on the black list
gets code 16. Java silently accepts values that it cannot use; here they are refused.
"""

import logging

from reput import config, limits, remote_settings
from reput.broker.parts import Parts
from reput.errors import InvalidBody
from reput.format import bodies, command as commands, headers
from reput.format.command import Command
from reput.format.headers import BrokerConfigReplyHeader
from reput.remoting.channel import Channel

_SHOWN = 300
"""Characters of a value in the log."""

_log = logging.getLogger(__name__)


def update_settings(parts: Parts, channel: Channel, request: Command) -> None:
    """Change settings; the remark lists settings that require a restart.

    A new role begins after the reply, and closes all connections.
    """
    limits.SETTINGS_BYTES.check(len(request.body))
    try:
        changes = config.parse_properties(request.body.decode())
    except UnicodeDecodeError as error:
        raise InvalidBody(f"settings are UTF-8: {error}") from error
    is_trusted = channel.is_local or _is_signed_by_super(parts)
    parts.settings.check_remote(changes, may_change_role=is_trusted)

    async def change_settings() -> str | None:
        change = await parts.change_settings(changes)
        # Logged as a dict, so that keys and values are escaped.
        known = {key: remote_settings.shown(key, text)[:_SHOWN] for key, text in changes.items()}
        _log.warning("settings changed by %s: %s; %s", channel.peer, known, change)
        return str(change) or None

    parts.setting_requests.answer(channel, request, change_settings)


def _is_signed_by_super(parts: Parts) -> bool:
    """Return whether a super user has sent the request."""
    requester = None if parts.access is None else parts.access.requester
    return requester is not None and requester.is_super


def settings(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return all settings, one per line."""
    live = parts.settings
    version = bodies.encode(live.version).decode()
    fields = headers.encode(BrokerConfigReplyHeader(version=version))
    return commands.reply(request, ext_fields=fields, body=live.text().encode())


def delete_expired_files(parts: Parts, channel: Channel, request: Command) -> Command:
    """Delete expired files of the log from the next step on, regardless of the hour."""
    parts.store.retention.expire_now()
    _log.warning("expired files are deleted now, as requested by %s", channel.peer)
    return commands.reply(request)
