"""How Python looks for garbage in cycles while a server runs: seldom, and never at much at once.

A full collection looks at every object that may be in a cycle: 150 ms with 10,000 topics, groups
and queues, and all wait. So what has survived one is frozen: no later one looks at it. Reference
counts free it as before. Cycles among what is frozen stay; servers make next to none that live so
long.
"""

import gc
from collections.abc import Mapping

YOUNG_MAX = 10_000
"""New objects that start a collection: requests make many objects and few cycles, and to look for
them as often as by default is a fifth of what a pop costs."""
_YOUNG_COLLECTIONS = 5
_OLD_COLLECTIONS = 1


def keep_pauses_short() -> None:
    """Set Python's collector for a server that is open: what the start has made stays."""
    gc.freeze()
    # Looks at nothing. Python puts off a full collection until there is a quarter more than the
    # last one has kept: without this, a server that has loaded much would look at much.
    gc.collect()
    gc.set_threshold(YOUNG_MAX, _YOUNG_COLLECTIONS, _OLD_COLLECTIONS)
    if _freeze_old not in gc.callbacks:
        gc.callbacks.append(_freeze_old)


def _freeze_old(phase: str, info: Mapping[str, int]) -> None:
    """Called by the collector: let what has survived a full collection never be looked at again."""
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
