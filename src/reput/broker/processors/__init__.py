"""Request code to function: the whole protocol of the broker.

A processor decodes the header, calls a part of the broker, and encodes the reply. It returns None
where the reply comes later, or never. What it raises is the reply: its ``response_code`` and text.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from reput.broker.processors import groups, offsets, pull, send, send_back
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from reput.remoting.channel import Channel

if TYPE_CHECKING:
    from reput.broker.server import Broker

Processor = Callable[["Broker", Channel, Command], Command | None]

PROCESSORS: Mapping[int, Processor] = {
    # messages in
    Code.SEND_MESSAGE: send.send_message,
    Code.SEND_MESSAGE_V2: send.send_message,
    Code.SEND_BATCH_MESSAGE: send.send_batch,
    Code.CONSUMER_SEND_MSG_BACK: send_back.send_back,
    # messages out
    Code.PULL_MESSAGE: pull.pull_message,
    Code.LITE_PULL_MESSAGE: pull.pull_message,
    # clients
    Code.HEART_BEAT: groups.heartbeat,
    Code.UNREGISTER_CLIENT: groups.unregister_client,
    Code.CHECK_CLIENT_CONFIG: groups.check_client_config,
    Code.GET_CONSUMER_LIST_BY_GROUP: groups.consumer_list,
    Code.LOCK_BATCH_MQ: groups.lock_queues,
    Code.UNLOCK_BATCH_MQ: groups.unlock_queues,
    # offsets
    Code.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    Code.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    Code.GET_MAX_OFFSET: offsets.max_offset,
    Code.GET_MIN_OFFSET: offsets.min_offset,
    Code.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
}
