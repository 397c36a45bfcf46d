"""Receipts of dead letters that were sent again: which ones are remembered, also after a crash."""

from dataclasses import replace
from pathlib import Path

import pytest

from reput.console import resends
from reput.console.resends import ReceiptNotKept, ResendReceipt, Resends

RECEIPT = ResendReceipt("G", "broker-a", 0, 70, 1_000, "ann", "%RETRY%G", "0A", "id-70")


def at_offset(number: int) -> ResendReceipt:
    return replace(RECEIPT, queue_offset=number, id=f"id-{number}")


def test_letters_have_receipts_by_place_and_id(tmp_path: Path) -> None:
    path = tmp_path / "resends.jsonl"
    first = Resends(path)
    for number in (0, 63, 64, 70):
        first.add(at_offset(number))
    for receipts in (first, Resends(path)):
        assert receipts.has(RECEIPT.place, "id-70")
        assert receipts.last(RECEIPT.place, "id-70") == RECEIPT
        assert not receipts.has(at_offset(71).place, "id-71")
        # Another letter is there after the topic was deleted and created again.
        assert not receipts.has(RECEIPT.place, "another")
        assert receipts.last(RECEIPT.place, "another") is None
        counts = [
            receipts.count("G", "broker-a", 0, *ends) for ends in ((0, 71), (1, 70), (64, 65))
        ]
        assert counts == [4, 2, 1]
        assert receipts.count("G", "broker-b", 0, 0, 100) == 0


def test_receipts_of_earlier_versions_have_no_id(tmp_path: Path) -> None:
    path = tmp_path / "resends.jsonl"
    path.write_text(
        '{"group": "G", "broker": "broker-a", "queue_id": 0, "queue_offset": 70, "time_ms": 1000, '
        '"user": "ann", "to": "%RETRY%G", "offset_id": "0A"}\n'
    )
    receipts = Resends(path)
    assert receipts.has(RECEIPT.place, "id-70")
    assert receipts.last(RECEIPT.place, "id-70") == replace(RECEIPT, id="")


def test_marks_outlast_the_newest_receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resends, "RECEIPTS_MAX", 2)
    path = tmp_path / "resends.jsonl"
    for number in range(5):
        Resends(path).add(at_offset(number))
    receipts = Resends(path)
    assert [receipts.has(at_offset(n).place, f"id-{n}") for n in range(6)] == [True] * 5 + [False]
    shown = [receipts.last(at_offset(number).place, f"id-{number}") for number in range(5)]
    assert [receipt is not None for receipt in shown] == [False] * 3 + [True] * 2


def test_a_line_that_a_crash_cut_costs_no_later_receipt(tmp_path: Path) -> None:
    path = tmp_path / "resends.jsonl"
    Resends(path).add(at_offset(1))
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole + whole[:length])
        Resends(path).add(at_offset(2))
        receipts = Resends(path)
        assert receipts.has(at_offset(1).place, "id-1")
        assert receipts.has(at_offset(2).place, "id-2")


def test_receipts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resends, "MARKS_MAX", 2)
    receipts = Resends()
    receipts.add(at_offset(1))
    receipts.add(at_offset(1))  # the same letter has one mark
    receipts.check_room(1)
    with pytest.raises(ReceiptNotKept, match="at most 2 are kept: move the file away"):
        receipts.check_room(2)
