"""25, 26: the broker's settings; 27, 329: make room on the disk now.

What a change comes to ``broker.live_config`` decides. Keys and texts are Java's, 4.9.8: a key on
the black list is code 16. Java takes values that it cannot use without a word; here they are
refused.
"""

import logging
from typing import TYPE_CHECKING

from reput import config
from reput.errors import InvalidBody
from reput.format import bodies, command as commands, headers
from reput.format.command import Command
from reput.format.headers import BrokerConfigReplyHeader
from reput.remoting.channel import Channel

if TYPE_CHECKING:
    from reput.broker.server import Broker

_log = logging.getLogger(__name__)


def update_settings(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Change settings; the remark says what is in force only after a restart."""
    try:
        changes = config.parse_properties(request.body.decode())
    except UnicodeDecodeError as error:
        raise InvalidBody(f"settings are UTF-8: {error}") from error
    change = broker.reconfigure(changes)
    _log.warning("settings changed by %s: %s; %s", channel.peer, changes, change)
    return commands.reply(request, remark=str(change) or None)


def settings(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return all settings, a line each."""
    live = broker.live_config
    version = bodies.encode(live.version).decode()
    fields = headers.encode(BrokerConfigReplyHeader(version=version))
    return commands.reply(request, ext_fields=fields, body=live.text().encode())


def delete_expired_files(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Delete expired files of the log at this hour, from the next step on."""
    broker.store.retention.expire_now()
    _log.warning("expired files are deleted now: %s asks for it", channel.peer)
    return commands.reply(request)
