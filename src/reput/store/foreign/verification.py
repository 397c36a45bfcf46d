"""Verify a store of any form: as a plain one, and what DLedger keeps about its entries."""

import dataclasses
from collections.abc import Iterator
from typing import TypeVar

from reput.format import dledger_entry as entries
from reput.store import verify as plain
from reput.store.files import paths
from reput.store.foreign import ledger
from reput.store.foreign.chain_check import ChainCheck, order_fault
from reput.store.foreign.ledger_reader import LedgerReader
from reput.store.log.commit_log_view import LogFile
from reput.store.reader import StoreReader
from reput.store.verify import FileVerdict, Finding, FindingKind, Progress, Severity, VerifyReport

Place = TypeVar("Place", Finding, FileVerdict)


def verify(reader: StoreReader, *, progress: Progress) -> VerifyReport:
    """Compare all parts of a store with each other; see ``reput.store.verify.verify``.

    Args:
        reader: The store.
        progress: Called with the progress, by several threads, one at a time.

    Raises:
        NotInStore: A file was deleted meanwhile.
        StoreUnavailable: A file cannot be read.
    """
    if not isinstance(reader, LedgerReader):
        return plain.verify(reader, progress=progress)
    checks: dict[int, ChainCheck] = {}

    def take(file: LogFile, physical_offset: int, chain: entries.Chain) -> None:
        checks.setdefault(file.start, ChainCheck(reader.ledger)).take(file, physical_offset, chain)

    reader.log.chain_sink = take
    try:
        report = plain.verify(reader, progress=progress)
    finally:
        reader.log.chain_sink = None
    own = [*_findings(reader, checks)]
    findings = [*(_at_home(reader, finding) for finding in report.findings), *own]
    findings.sort(key=lambda finding: (-finding.severity, finding.path))
    files = {file.path: file for file in (_at_home(reader, file) for file in report.files)}
    for finding in own:
        file = files.get(finding.path, FileVerdict(finding.path, 0))
        if finding.severity > file.severity:
            files[file.path] = dataclasses.replace(
                file, severity=finding.severity, text=finding.text
            )
    ordered = sorted(files.values(), key=lambda file: file.path)
    return dataclasses.replace(report, findings=tuple(findings), files=tuple(ordered))


def _at_home(reader: LedgerReader, entry: Place) -> Place:
    """Return a finding or file with its path in the ledger instead of the one in the log."""
    family, _, name = entry.path.partition("/")
    path = reader.ledger.path(name) if family == paths.COMMIT_LOG and name else entry.path
    return dataclasses.replace(entry, path=path)


def _findings(reader: LedgerReader, checks: dict[int, ChainCheck]) -> Iterator[Finding]:
    member, state = reader.ledger.member, reader.ledger_state
    data, index = f"{member}/{ledger.DATA}", f"{member}/{ledger.INDEX}"
    before: ChainCheck | None = None
    for start, check in sorted(checks.items()):
        path = f"{data}/{paths.offset_name(start)}"
        faults = list(check.order_faults)
        if before is not None:
            last = before.last_index, before.last_term
            first = check.first_index, check.first_term
            if first[0] != last[0] + 1 or first[1] < last[1]:
                faults.insert(0, order_fault("its first entry", last, first))
        for fault in faults:
            yield Finding(Severity.DAMAGE, FindingKind.LEDGER, path, fault)
        for fault in check.index_faults:
            text = f"{fault}: a Java member makes it again; a conversion does not need it"
            yield Finding(Severity.WARNING, FindingKind.LEDGER, index, text)
        before = check
    for problem in state.problems:
        yield Finding(Severity.WARNING, FindingKind.LEDGER, member, problem)
    if state.uncommitted_count:
        text = (
            f"{state.uncommitted_count} entries after committed index {state.committed_index}: "
            "not known to be on most members of the group"
        )
        yield Finding(Severity.NOTE, FindingKind.LEDGER, data, text, count=state.uncommitted_count)
