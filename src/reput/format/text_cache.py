"""What is made of texts that clients send, kept within bounds: of number and of length.

A cache that only counts its entries keeps as much as the longest texts take. What is used stays:
entries are of two generations, of which the older one is dropped whenever the newer one is full.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_PART_OF_ONE = 8
"""A text longer than this part of all that are kept is not kept."""


class TextCache(Generic[_K, _V]):
    """A function that remembers its results. May be called by several threads.

    Args:
        make: The function. What it raises is not remembered.
        count_max: Results that are kept at most.
        letters_max: Letters of the texts that they are made of.
        letters_of: Returns the letters of an argument.
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
        """Return the result of the function."""
        found = self._newer.get(argument)
        if found is None:
            found = self._older.get(argument)
            if found is None:
                found = self._make(argument)
            self._keep(argument, found)
        return found

    def __len__(self) -> int:
        """How many results are kept."""
        return len(self._newer) + len(self._older)

    def _keep(self, argument: _K, result: _V) -> None:
        letters = self._letters_of(argument)
        if letters > self._letters_max * 2 // _PART_OF_ONE:
            return
        self._letters += letters
        if self._letters > self._letters_max or len(self._newer) >= self._count_max:
            self._older, self._newer, self._letters = self._newer, {}, letters
        self._newer[argument] = result
