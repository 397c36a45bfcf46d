"""The log of a store with DLedger: records inside entries, at the physical offsets that they name.

``walk`` yields records and damage as that of a plain log does; headers of entries are neither.
Bytes that are no entry are damage, up to the next header that continues the log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from reput.errors import CorruptRecord, NotInStore
from reput.format import dledger_entry as entries, kernels
from reput.format.message import StoredMessage, Verdict
from reput.store.foreign.ledger import Ledger, LedgerFolder
from reput.store.log.commit_log_view import CommitLogView, Damage, LogBatch, LogFile

HEADER_BYTES = entries.HEADER.size
_ROOM = 1 << 16
_NO_BATCH = np.empty(0, np.int64), np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class EntryDamage(Damage):
    """A range of bytes that are no entries."""

    fault: str = ""
    """Fault of the first of them, with the allowed values."""

    @property
    def reason(self) -> str:
        """Description of the damage."""
        return self.fault


@dataclass(frozen=True, slots=True)
class LastEntry:
    """Where a chain of entries ends."""

    end_offset: int
    """Physical offset after the last entry."""
    index: int
    """Index of the last entry; -1 without one."""
    term: int


ChainSink = Callable[[LogFile, int, entries.Chain], None]
"""Takes the file, the physical offset of the buffer, and the entries in it."""


class LedgerLogView(CommitLogView):
    """The files of the log, plain ones before those with entries.

    Args:
        folder: The store's folder.
        ledger: Its ledger.
    """

    def __init__(self, folder: LedgerFolder, ledger: Ledger) -> None:
        super().__init__(folder)
        self.ledger = ledger
        self.chain_sink: ChainSink | None = None
        """Called by each walk with the entries that it reads, by several threads."""

    def has_entries(self, file: LogFile) -> bool:
        """Return whether a file has entries, and not records alone."""
        return file.start >= self.ledger.start

    def first_record(self, file: LogFile) -> StoredMessage | None:
        """Return the first message of a file; None if the file starts with anything else."""
        if not self.has_entries(file):
            return super().first_record(file)
        try:
            return self.message_at(file.start + HEADER_BYTES)
        except (CorruptRecord, NotInStore):
            return None

    def chains(self, file: LogFile, start: int, stop: int) -> Iterator[tuple[int, entries.Chain]]:
        """Yield the entries of a file from a header on, up to the first fault, blank or ``stop``.

        With each chain comes the physical offset of its buffer.
        """
        place, window_bytes = start, self._folder.window_bytes
        while place < stop:
            position = place - file.start
            window = self._read(file, position, window_bytes)
            chain = entries.scan(window, place, file.nominal_end, stop, _ROOM)
            yield place, chain
            place += chain.next_position
            if chain.fault or chain.is_blank or place + HEADER_BYTES >= stop:
                return
            if not chain.next_position:
                if len(window) < window_bytes:
                    return  # half of an entry
                window_bytes *= 4  # it is larger than the window

    def next_entry(self, physical_offset: int, stop: int, after: LastEntry) -> int:
        """Return the next header that continues the log after damage; ``stop`` without one.

        Entries that a member has dropped, since its leader had others, stay in the file. They are
        of an earlier term.
        """
        place = physical_offset
        while (place := self.find_record(place + HEADER_BYTES, stop)) < stop:
            header = place - HEADER_BYTES
            file = self.file_at(place)
            if header >= max(file.start, physical_offset) and self.has_entries(file):
                data = self._read(file, header - file.start, HEADER_BYTES)
                if len(data) == HEADER_BYTES:
                    fault, is_blank = entries.judge(data, 0, header, file.nominal_end)
                    _, _, index, term, *_ = entries.HEADER.unpack(data)
                    if not fault and not is_blank and index > after.index and term >= after.term:
                        return header
            place = place + 1 - HEADER_BYTES
        return stop

    def _walk_file(
        self, file: LogFile, start: int, stop: int, check_crc: bool, is_end: bool
    ) -> Iterator[LogBatch]:
        if not self.has_entries(file):
            yield from super()._walk_file(file, start, stop, check_crc, is_end)
            return
        place, last = self._header_at(file, start), LastEntry(start, -1, 0)
        while place < stop:
            chain: entries.Chain | None = None
            for base, chain in self.chains(file, place, stop):
                window = self._read(file, base - file.start, chain.next_position)
                if len(chain.positions):
                    yield self._batch(file, base, window, chain, check_crc)
                    last = LastEntry(base, int(chain.indexes[-1]), int(chain.terms[-1]))
                place = base + chain.next_position
            if chain is None or chain.is_blank or place >= stop:
                return
            if not chain.fault and not is_end and place + HEADER_BYTES >= stop:
                return  # the record belongs to the next part of the log
            end = self.next_entry(place + 1, stop if is_end else file.nominal_end, last)
            fault = chain.fault or "a DLedger entry exceeds the data: it is half-written"
            damage = EntryDamage(place, end - place, Verdict.BAD_MAGIC, file.name, fault)
            yield LogBatch(b"", place, *_NO_BATCH, (damage,))
            place = end

    def _header_at(self, file: LogFile, physical_offset: int) -> int:
        """Return the header of the entry at an offset, which may be that of its record."""
        header = physical_offset - HEADER_BYTES
        if header < file.start:
            return physical_offset
        data = self._read(file, header - file.start, HEADER_BYTES)
        fault, is_blank = entries.judge(data, 0, header, file.nominal_end)
        return physical_offset if fault or is_blank else header

    def _batch(
        self,
        file: LogFile,
        base: int,
        window: bytes | memoryview,
        chain: entries.Chain,
        check_crc: bool,
    ) -> LogBatch:
        if self.chain_sink is not None:
            self.chain_sink(file, base, chain)
        judged = kernels.judge(
            window,
            chain.positions + HEADER_BYTES,
            physical_offset=base,
            file_end=file.nominal_end - base,
            check_crc=check_crc,
        )
        sizes = chain.sizes - HEADER_BYTES
        is_good = (judged.verdicts == Verdict.MESSAGE) & (judged.sizes == sizes)
        damage: list[Damage] = []
        for i in np.flatnonzero(~is_good):
            verdict = Verdict(int(judged.verdicts[i]))
            start = base + int(judged.positions[i])
            if verdict in (Verdict.MESSAGE, Verdict.BLANK, Verdict.ZEROS):
                fault = f"the body of a DLedger entry is no record of its {int(sizes[i])} bytes"
                bad = Verdict.BAD_SIZE
                damage.append(EntryDamage(start, int(sizes[i]), bad, file.name, fault))
            else:
                damage.append(Damage(start, int(sizes[i]), verdict, file.name))
        return LogBatch(
            window, base, judged.positions[is_good], judged.sizes[is_good], tuple(damage)
        )
