"""The handle of a timer message, with which its producer can recall it.

    base64url("v1" SP topic SP broker name SP ms SP unique key)

The time maps to the slot of the message in the timer. Source: rocketmq 5.5.0
``RecallMessageHandle``.
"""

import base64
import binascii
from typing import NamedTuple

from reput.errors import InvalidHeader
from reput.format import java

VERSION = "v1"
SEPARATOR = " "


class RecallHandle(NamedTuple):
    """Decoded recall handle."""

    topic: str
    broker_name: str
    deliver_ms: str
    """Deliver time in decimal ms; not validated here."""
    unique_key: str


def encode(handle: RecallHandle) -> str:
    """Return the text of a handle; its parts may not contain spaces."""
    text = SEPARATOR.join((VERSION, *handle))
    return base64.urlsafe_b64encode(java.encode_utf8(text)).decode()


def decode(text: str) -> RecallHandle:
    """Decode the text of a handle.

    Raises:
        InvalidHeader: The text is not a handle.
    """
    try:
        padded = text + "=" * (-len(text) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidHeader("recall handle is invalid") from error
    words = java.decode_utf8(raw).split(SEPARATOR)
    if words[0] != VERSION or len(words) < 1 + len(RecallHandle._fields):
        raise InvalidHeader("recall handle is invalid")
    return RecallHandle(*words[1:5])
