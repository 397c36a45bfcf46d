"""Settings of the cyclic garbage collector for servers, to keep its pauses short.

A full collection visits every container object and stops the process: for 150 ms with 10,000
topics, groups and queues. So the objects that survive a full collection are frozen, and later
collections skip them. Reference counting still frees them. Only cycles among frozen objects leak;
servers create next to none that live so long.
"""

import gc
from collections.abc import Mapping

YOUNG_MAX = 10_000
"""Number of new objects that starts a collection. Requests create many objects and few cycles; with
the default, collections are a fifth of the cost of a pop."""
_YOUNG_COLLECTIONS = 5
_OLD_COLLECTIONS = 1


def keep_pauses_short() -> None:
    """Configure the collector after a server has started, and freeze the present objects."""
    gc.freeze()
    # Visits nothing. Python defers a full collection until the number of objects exceeds that after
    # the last one by a quarter. Without this one, the next would visit all that was loaded.
    gc.collect()
    gc.set_threshold(YOUNG_MAX, _YOUNG_COLLECTIONS, _OLD_COLLECTIONS)
    if _freeze_old not in gc.callbacks:
        gc.callbacks.append(_freeze_old)


def _freeze_old(phase: str, info: Mapping[str, int]) -> None:
    """Freeze the objects that survived a full collection; the collector calls this."""
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
