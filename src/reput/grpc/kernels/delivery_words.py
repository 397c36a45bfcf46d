"""Rows of the kernel ``grpc_deliver``: a reply, and a row a message."""

from reput.format.kernels.rows import Row, row, word
from reput.grpc.kernels.call_words import Text

SCRATCH_BYTES = 64 << 10


class DeliveryRow(Row):
    """A message of the reply."""

    record = word("position", "Its record")
    handle = word("position", "Its receipt handle among the texts")
    handle_size = word("bytes", "Size of the handle")
    digest = word("position", "Its digest among the texts: 32 letters")
    attempt = word("number", "Number of this delivery, from 1")
    begin = word("position", "Result: begin of the message in the room")
    end = word("position", "Result: its end; the begin if the record is left")


class NamedProperties(Row):
    """Properties that become fields; of use to the kernel only."""

    tag = row(Text, "TAGS")
    keys = row(Text, "KEYS")
    message_id = row(Text, "UNIQ_KEY")
    host = row(Text, "The born host")
    group = row(Text, "The message group")


class Delivery(Row):
    """A reply of ReceiveMessage."""

    records = word("address", "The records")
    rows = word("address", "The rows", to=DeliveryRow)
    texts = word("address", "Handles and digests")
    topic = row(Text, "Name of the topic that the client reads, at most 125 bytes")
    invisible_ms = word("ms", "Invisible time of the messages")
    out = word("address", "Room for the messages")
    out_room = word("bytes", "Size of that room")
    scratch = word("address", "SCRATCH_BYTES for the kernel")
    properties = row(NamedProperties, "The properties of a record")
