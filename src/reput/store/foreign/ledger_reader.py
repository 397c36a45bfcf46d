"""The reader of a store with DLedger, and the state of its entries."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reput.errors import CorruptRecord, NotInStore
from reput.format import dledger_entry as entries
from reput.format.message import StoredMessage, Verdict
from reput.store.files.files import Folder
from reput.store.foreign.ledger import Ledger, LedgerFolder
from reput.store.foreign.ledger_log import (
    HEADER_BYTES,
    EntryDamage,
    LastEntry,
    LedgerLogView,
)
from reput.store.log.commit_log_view import LogFile
from reput.store.reader import Condition, LogTail, StoreReader

SHOWN_MAX = 20
"""Maximum number of uncommitted messages that are listed."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The state of entries, from a member's files.

    A committed entry is on most members of the group, so its message is kept. What follows is not
    known to be: the member may have died before it heard of it, or have waited for the others.
    """

    member: str
    """Name of the folder, as ``dledger-n0``."""
    term: int | None
    """Term of the member; None if its file cannot be read."""
    first_index: int | None
    """Index of the first entry; None without entries."""
    last_index: int | None
    last_term: int | None
    """Term of the last entry."""
    plain_end: int | None
    """Physical offset at which plain files end and entries begin; None without plain files."""
    committed_index: int | None
    """Index of the last committed entry, of the checkpoint; None if it cannot be read."""
    committed_end: int | None
    """Physical offset after that entry; None if it is not known."""
    problems: tuple[str, ...]
    """What cannot be read, a sentence each."""

    @property
    def uncommitted_count(self) -> int | None:
        """Number of entries that are not known to be committed; None if that is not known."""
        if self.committed_index is None or self.last_index is None:
            return None
        return max(self.last_index - self.committed_index, 0)


class LedgerReader(StoreReader):
    """Read-only access to a store with DLedger; ``foreign.opening`` opens one.

    The log ends after the last whole entry, committed or not.

    Args:
        folder: The store.
        allow_live: Read although a broker is running on the folder.

    Raises:
        StoreUnavailable: It has no log in DLedger, or several.
    """

    log: LedgerLogView

    def __init__(self, folder: Folder, *, allow_live: bool = False) -> None:
        self.ledger = Ledger(folder)
        super().__init__(LedgerFolder(folder, self.ledger), allow_live=allow_live)
        self.log = LedgerLogView(LedgerFolder(folder, self.ledger), self.ledger)

    @property
    def _ledger_files(self) -> list[LogFile]:
        return [file for file in self.log.files if self.log.has_entries(file)]

    # The end of the log -----------------------------------------------------------------------

    @cached_property
    def _end(self) -> tuple[LastEntry, LogTail]:
        """The last entry, and the end of the log.

        Entries are followed from the start of the last file with data. The first bytes without an
        entry are the end, unless a later entry continues the log: the bytes between are damage.
        """
        files = [file for file in self._ledger_files if self.log.data_end_of(file) > file.start]
        if not files:
            return LastEntry(self.ledger.start, -1, 0), LogTail(self.ledger.start)
        file = files[-1]
        data_end = self.log.data_end_of(file)
        chains: list[tuple[int, entries.Chain]] = []
        last, place, fault = LastEntry(file.start, -1, 0), file.start, ""
        while place < data_end:
            for base, chain in self.log.chains(file, place, file.nominal_end):
                fault, place = chain.fault, base + chain.next_position
                falls = np.flatnonzero(np.diff(chain.terms, prepend=last.term) < 0)
                whole = chain.until(int(falls[0])) if len(falls) else chain
                last = _last_of(base, whole) or last
                chains.append((base, whole))
                if len(falls):  # a leftover of an earlier term
                    return last, self._tail(file, last.end_offset, data_end, "")
                if chain.is_blank:
                    return last, LogTail(last.end_offset)
            following = self.log.next_entry(place + 1, data_end, last)
            if following == data_end:
                break
            place = following
        if self._is_crashed:
            return self._without_torn(file, chains, last, data_end, fault)
        return last, self._tail(file, last.end_offset, data_end, fault)

    @property
    def _is_crashed(self) -> bool:
        return self.state.condition is Condition.CRASHED and not self.is_live

    def _without_torn(
        self,
        file: LogFile,
        chains: list[tuple[int, entries.Chain]],
        last: LastEntry,
        data_end: int,
        fault: str,
    ) -> tuple[LastEntry, LogTail]:
        """Return the end before the last records that a crash has left incomplete."""
        while chains:
            base, chain = chains.pop()
            for count in range(len(chain.positions), 0, -1):
                header = base + int(chain.positions[count - 1])
                try:
                    record = self.log.message_at(header + HEADER_BYTES)
                    if record.property_bytes and data_end < last.end_offset:
                        raise CorruptRecord("its end is zeros")
                except (CorruptRecord, NotInStore) as error:
                    fault = f"the record of a DLedger entry is half-written: {error}"
                    before = [(base, chain.until(count - 1)), *reversed(chains)]
                    ends = (_last_of(*part) for part in before)
                    known = next(filter(None, ends), LastEntry(header, -1, 0))
                    last = LastEntry(header, known.index, known.term)
                else:
                    return last, self._tail(file, last.end_offset, data_end, fault)
        return last, self._tail(file, last.end_offset, data_end, fault)

    def _tail(self, file: LogFile, end: int, data_end: int, fault: str) -> LogTail:
        """Return the end of the log, and what follows it."""
        if self.state.condition is Condition.CLEAN and (lost := self._lost_end(end)) is not None:
            return LogTail(lost)  # queues have messages there, which are damaged
        if data_end <= end:
            return LogTail(end)
        reason = fault or "a DLedger entry exceeds the data: it is half-written"
        rest = EntryDamage(end, data_end - end, Verdict.TRUNCATED, file.name, reason)
        if self._is_crashed:
            return LogTail(end, torn=rest)
        return LogTail(end, stale=None if self.is_live else rest)

    @cached_property
    def tail(self) -> LogTail:
        """The end of the log: after the last whole entry."""
        return self._end[1]

    # Entries ----------------------------------------------------------------------------------

    @cached_property
    def ledger_state(self) -> LedgerState:
        """The state of the entries, from the member's files."""
        problems: list[str] = []
        term: int | None = None
        checkpoint: entries.LedgerCheckpoint | None = None
        try:
            term = self.ledger.term()
        except (CorruptRecord, NotInStore) as error:
            problems.append(str(error))
        try:
            checkpoint = self.ledger.checkpoint()
        except (CorruptRecord, NotInStore) as error:
            problems.append(f"{error}: which entries are committed is not known")
        last = self._end[0]
        committed = checkpoint.committed_index if checkpoint is not None else None
        has_plain = self.log.min_offset < self.ledger.start
        return LedgerState(
            member=self.ledger.member,
            term=term,
            first_index=self._first_index(),
            last_index=last.index if last.index >= 0 else None,
            last_term=last.term if last.index >= 0 else None,
            plain_end=self.ledger.start if has_plain else None,
            committed_index=committed,
            committed_end=self._end_of_entry(committed, last) if committed is not None else None,
            problems=tuple(problems),
        )

    def _first_index(self) -> int | None:
        for file in self._ledger_files:
            for _, chain in self.log.chains(file, file.start, file.start + HEADER_BYTES + 1):
                if len(chain.indexes):
                    return int(chain.indexes[0])
        return None

    def _end_of_entry(self, index: int, last: LastEntry) -> int | None:
        """Return the physical offset after an entry; None if the log does not have it."""
        if index >= last.index:
            return last.end_offset
        for file in reversed(self._ledger_files):
            for base, chain in self.log.chains(file, file.start, file.nominal_end):
                if len(chain.indexes) and chain.indexes[0] > index:
                    break
                if len(chain.indexes) and index <= chain.indexes[-1]:
                    i = index - int(chain.indexes[0])
                    return base + int(chain.positions[i] + chain.sizes[i])
        return self.ledger.start if index < 0 else None

    def uncommitted(self) -> Iterator[StoredMessage]:
        """Yield the messages after the committed entries; none if these are not known."""
        start = self.ledger_state.committed_end
        if start is not None and start < self.end_offset:
            yield from self.messages(start)


def _last_of(base: int, chain: entries.Chain) -> LastEntry | None:
    """Return the last entry of a chain whose buffer begins at ``base``; None without entries."""
    if not len(chain.positions):
        return None
    end = base + int(chain.positions[-1] + chain.sizes[-1])
    return LastEntry(end, int(chain.indexes[-1]), int(chain.terms[-1]))
