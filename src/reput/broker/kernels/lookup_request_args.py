"""Arguments of the kernel ``lookups``: its block begins with that of ``find_by_key``.

The block has int64 words: those of ``reput.store.kernels.lookup_args``, then these.
"""

from collections.abc import Iterator

from reput.broker.kernels.scan_args import FIELD_WORDS
from reput.format import lookup_reply
from reput.store.kernels import lookup_args

LOOKUPS_MAX = 8
"""Most requests that one call of ``lookups`` answers: each may take milliseconds."""

_words: Iterator[int] = iter(range(lookup_args.WORDS, lookup_args.WORDS + (1 << 3)))

KEY_LETTERS_MAX = next(_words)
"""Maximum size of a topic and key."""
UNIQUE_COUNT_MAX = next(_words)
"""COUNT_MAX of a query by unique key."""
KEY_COUNT_MAX = next(_words)
"""Maximum of COUNT_MAX."""
TEMPLATES = next(_words)
"""Address and size of each of ``lookup_reply.TEMPLATES``, two words each."""
NAMES = TEMPLATES + 2 * len(lookup_reply.TEMPLATES)
"""Number of known fields; their names follow, as in ``scan_args``. FRAME_NAMES points here."""
FIELD_NAMES = (
    *("topic", "key", "maxNum", "beginTimestamp", "endTimestamp", "_UNIQUE_KEY_QUERY"),
    *("indexType", "queueId", "timestamp", "boundaryType", "offset", "committed"),
    *("bname", "oway", "lo"),
)
"""Known fields. Those from ``committed`` on are ignored."""
WORDS = NAMES + 1 + FIELD_WORDS * len(FIELD_NAMES)
"""Size of the block of ``lookups``, in words."""
