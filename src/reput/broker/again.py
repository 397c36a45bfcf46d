"""A stored message, put again elsewhere: due, sent back, committed, or handed out anew."""

from collections.abc import Mapping

from reput.format import message as record, properties as props
from reput.format.message import StoredMessage
from reput.store.incoming import IncomingMessage, with_properties

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()


def again(
    stored: StoredMessage,
    topic: str,
    queue_id: int,
    *,
    properties: Mapping[str, str] | None = None,
    sys_flag: int | None = None,
    reconsume_times: int | None = None,
) -> IncomingMessage:
    """Return a message like a stored one, for another queue. Nobody's reply waits for it.

    Args:
        stored: The message.
        topic: Where it goes.
        queue_id: Which queue there.
        properties: Those it gets; its own.
        sys_flag: The flags it gets; its own.
        reconsume_times: How often it was consumed; as often as it was.

    Raises:
        Refused: Properties are too long, or cannot be written.
    """
    message = IncomingMessage(
        topic=topic,
        body=stored.body,
        queue_id=queue_id,
        property_bytes=b"",
        born_timestamp=stored.born_timestamp,
        born_host=stored.born_host,
        store_host=stored.store_host,
        flag=stored.flag,
        sys_flag=stored.sys_flag if sys_flag is None else sys_flag,
        reconsume_times=stored.reconsume_times if reconsume_times is None else reconsume_times,
        waits=False,
    )
    if properties is not None:
        kept = {name: value for name, value in properties.items() if name != props.CRC32}
        return with_properties(message, kept)
    message.property_bytes = stored.property_bytes
    if props.CRC32 in stored.properties:  # of the record that is there
        pairs = stored.property_bytes.split(_SEPARATOR)
        kept_pairs = [one for one in pairs if not one.startswith(record.CRC_PROPERTY_PREFIX)]
        message.property_bytes = _SEPARATOR.join(kept_pairs)
    return message
