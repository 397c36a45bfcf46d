"""Topics to which only brokers send: their loops read the messages back and trust them."""

from reput.errors import RequestRefused
from reput.format import names
from reput.format.codes import ResponseCode


def refuse(topic: str) -> None:
    """Refuse a topic to which clients cannot send.

    Raises:
        RequestRefused: NO_PERMISSION, as in Java.
    """
    if names.is_written_by_brokers(topic):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )
