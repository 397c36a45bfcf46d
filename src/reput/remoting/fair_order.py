"""The order in which clients are served: each gets the same time, and who needs little is first.

A key, such as a connection, has its time in a virtual time that advances as keys are served. The
next of the waiting keys is the one that will have used the least after its next part, which is
expected to be like its last ones (fair queueing; Demers, Keshav and Shenker, 1989). So a small
request waits for one slice, not for one of each busy client; who was quiet for a while has saved
nothing, and who uses many slices gets as many as the others. A place that was given stays: an
endless row of new keys delays it by some slices.
"""

from collections.abc import Hashable

_APART = 64
"""Number of busy keys whose use is compared; of more, each has one part in turn."""
_KNOWN_MIN = 256
"""Number of keys that are remembered before those without a meaning are dropped."""


class FairOrder:
    """Places of keys in virtual time."""

    def __init__(self) -> None:
        self._now_s = 0.0  # virtual
        # Key -> where the time that it has used ends, and how long its next part is expected to be:
        # the sum of its parts, each of which counts half as much as the next one.
        self._used: dict[Hashable, tuple[float, float]] = {}
        self._known_max = _KNOWN_MIN

    def __len__(self) -> int:
        """Return the number of keys that are remembered."""
        return len(self._used)

    def place(self, key: Hashable) -> float:
        """Return the place of a key that begins to wait: the lowest one is the next."""
        end, part = self._used.get(key, (0.0, 0.0))
        return max(self._now_s, end) + part

    def serve(self, key: Hashable) -> None:
        """Begin a part of a key."""
        used = self._used.get(key)
        if used is not None:
            end, part = used
            self._now_s = max(self._now_s, end)
            self._used[key] = self._now_s, part / 2

    def charge(self, key: Hashable, seconds: float) -> None:
        """Count time that the part of a key has taken."""
        end, part = self._used.get(key, (0.0, 0.0))
        self._used[key] = max(self._now_s, end) + seconds, part + seconds
        self._now_s += seconds / _APART
        if len(self._used) > self._known_max:
            # Those whose time is past are as good as new: closed connections are soon among them.
            now_s = self._now_s
            self._used = {key: used for key, used in self._used.items() if used[0] > now_s}
            self._known_max = max(_KNOWN_MIN, 2 * len(self._used))
