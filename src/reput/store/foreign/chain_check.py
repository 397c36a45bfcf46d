"""Checks of the indexes and terms of entries, and of the units of their index."""

import numpy as np

from reput.format import dledger_entry as entries
from reput.store.foreign.ledger import Ledger
from reput.store.log.commit_log_view import LogFile


class ChainCheck:
    """Checks that the indexes of entries are consecutive, and that each has its unit.

    Args:
        ledger: The member.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.first_index = self.last_index = -1
        self.first_term = self.last_term = 0
        self.order_faults: list[str] = []
        """Sentences about entries that do not follow the one before."""
        self.index_faults: list[str] = []
        """Sentences about units of the index that are not those of their entries."""

    def take(self, file: LogFile, physical_offset: int, chain: entries.Chain) -> None:
        """Check the next entries of a file."""
        if self.first_index < 0:
            self.first_index, self.first_term = int(chain.indexes[0]), int(chain.terms[0])
            before = np.concatenate(([self.first_index - 1], chain.indexes[:-1]))
            terms = np.concatenate(([self.first_term], chain.terms[:-1]))
        else:
            before = np.concatenate(([self.last_index], chain.indexes[:-1]))
            terms = np.concatenate(([self.last_term], chain.terms[:-1]))
        for i in np.flatnonzero((chain.indexes != before + 1) | (chain.terms < terms))[:1]:
            self.order_faults.append(
                order_fault(
                    f"{file.name}, physical offset {physical_offset + int(chain.positions[i])}",
                    (int(before[i]), int(terms[i])),
                    (int(chain.indexes[i]), int(chain.terms[i])),
                )
            )
        self.last_index, self.last_term = int(chain.indexes[-1]), int(chain.terms[-1])
        if not self.index_faults:
            self.index_faults += self._ledger.index_faults(chain, physical_offset)


def order_fault(place: str, before: tuple[int, int], entry: tuple[int, int]) -> str:
    """Return the sentence for an entry that does not follow the one before it.

    Args:
        place: File and position of the entry.
        before: Index and term of the entry before it.
        entry: Its own index and term.
    """
    return (
        f"{place}: entry {entry[0]} of term {entry[1]} follows entry {before[0]} of term "
        f"{before[1]}; allowed is {before[0] + 1}, of the same or a later term"
    )
