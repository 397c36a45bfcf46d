"""Cache of values computed from clients' texts, bounded by entries and by total length.

A bound on the number of entries alone would allow any amount of memory, since texts can be long.
Eviction is by two generations: when the newer one is full, the older one is dropped; a hit moves an
entry to the newer.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_MAX_FRACTION = 8
"""Divisor of the capacity that gives the longest text to cache."""


class TextCache(Generic[_K, _V]):
    """Memoizing wrapper of a function of one argument. Thread-safe.

    Args:
        make: The function. Exceptions are not cached.
        count_max: Maximum number of entries.
        letters_max: Maximum total length of the arguments, in characters.
        letters_of: Returns the length of an argument.
    """

    def __init__(
        self,
        make: Callable[[_K], _V],
        *,
        count_max: int,
        letters_max: int,
        letters_of: Callable[[_K], int],
    ) -> None:
        self._make = make
        self._count_max = count_max // 2
        self._letters_max = letters_max // 2
        self._letters_of = letters_of
        self._newer: dict[_K, _V] = {}
        self._older: dict[_K, _V] = {}
        self._letters = 0

    def __call__(self, argument: _K) -> _V:
        """Return the function's result for a text, from the cache if possible."""
        result = self._newer.get(argument)
        if result is None:
            result = self._older.get(argument)
            if result is None:
                result = self._make(argument)
            self.keep(argument, result)
        return result

    def __contains__(self, argument: _K) -> bool:
        """Return whether a text's result is cached."""
        return argument in self._newer or argument in self._older

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._newer) + len(self._older)

    def keep(self, argument: _K, result: _V) -> None:
        """Cache the result for a text that is not too long."""
        letters = self._letters_of(argument)
        if letters > self._letters_max * 2 // _MAX_FRACTION:
            return
        self._letters += letters
        if self._letters > self._letters_max or len(self._newer) >= self._count_max:
            self._older, self._newer, self._letters = self._newer, {}, letters
        self._newer[argument] = result
