"""The call of the kernel ``lookups``: that of ``find_by_key``, and what the requests need."""

from reput.format import lookup_reply
from reput.format.kernels.rows import Row, row, rows, word
from reput.store.kernels.control_block import KnownFields
from reput.store.kernels.lookup_args import KeySearch

LOOKUPS_MAX = 8
"""Most requests that one call of ``lookups`` answers: each may take milliseconds."""
FIELD_NAMES = (
    *("topic", "key", "maxNum", "beginTimestamp", "endTimestamp", "_UNIQUE_KEY_QUERY"),
    *("indexType", "queueId", "timestamp", "boundaryType", "offset", "committed"),
    *("bname", "oway", "lo"),
)
"""Known fields. Those from ``committed`` on are ignored."""


class Template(Row):
    """The header of a reply, without its numbers."""

    start = word("address", "The header")
    size = word("bytes", "Its size")


class LookupCall(KeySearch):
    """A call of ``lookups``."""

    key_letters_max = word("bytes", "Maximum size of a topic and key")
    unique_count_max = word("count", "``count_max`` of a query by unique key")
    key_count_max = word("count", "Limit of ``count_max``")
    templates = rows(len(lookup_reply.TEMPLATES), Template, "Those of ``lookup_reply.TEMPLATES``")
    names = row(KnownFields, "The known fields")
