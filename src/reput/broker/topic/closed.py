"""Topics where only brokers put messages: their loops read them back and believe what they say."""

from reput.errors import RequestRefused
from reput.format import names
from reput.format.codes import ResponseCode


def refuse(topic: str) -> None:
    """Refuse a topic where no client may send.

    Raises:
        RequestRefused: NO_PERMISSION, as Java.
    """
    if names.is_written_by_brokers(topic):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )
