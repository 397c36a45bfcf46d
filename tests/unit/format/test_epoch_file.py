"""The epochs of a log: the bytes of Java's file, and where two logs are equal."""

import itertools

import pytest
from hypothesis import given, strategies as st

from cases import case, each
from reput.errors import CorruptRecord
from reput.format import epoch_file
from reput.format.epoch_file import Epoch

FIRST = b"1\n1725254278\n1-0\n"
AFTER_FAILOVER = b"2\n1857947285\n1-0\n2-468\n"
"""Files that a broker of RocketMQ 5.5.0 wrote: before, and after its group had failed over."""

BLOCK = 10
"""Bytes of a block of the logs in the model."""


def test_the_file_is_that_of_java() -> None:
    for data, epochs in ((FIRST, [(1, 0)]), (AFTER_FAILOVER, [(1, 0), (2, 468)])):
        assert epoch_file.decode(data) == epochs
        assert epoch_file.encode([Epoch(*epoch) for epoch in epochs]) == data


def test_a_torn_file_has_all_epochs_or_none() -> None:
    for size in range(len(AFTER_FAILOVER) - 1):  # the last line end says nothing
        with case(size), pytest.raises(CorruptRecord):
            epoch_file.decode(AFTER_FAILOVER[:size])


@each(
    ("data", "text"),
    [
        (AFTER_FAILOVER.replace(b"468", b"469"), "the checksum of its lines is"),
        (b"3" + AFTER_FAILOVER[1:-1], "it has 2 epochs, and its first line says 3"),
        (b"-1\n0\n", "its first line says -1"),
        (b"1\n0\n1:0\n", "it is no list of epochs"),
        (b"1\n0\none-0\n", "it is no list of epochs"),
        (b"\xff\xfe\n0\n", "it is no list of epochs"),
        (b"2\n0\n2-0\n1-468\n", "both must grow"),
        (b"2\n0\n1-468\n2-0\n", "both must grow"),
        (b"1\n0\n0-0\n", "epoch 0"),
        (b"1\n0\n1--5\n", "physical offset -5"),
        (b"1\n0\n2147483648-0\n", "epoch 2147483648"),
        (b"1\n0\n1-9223372036854775808\n", "physical offset 9223372036854775808"),
        (b"9" * 5000 + b"\n0\n", "it is no list of epochs"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(CorruptRecord, match=text):
        epoch_file.decode(data)


def test_a_checksum_of_zero_is_not_compared() -> None:
    assert epoch_file.decode(b"2\n0\n1-0\n2-468\n") == [(1, 0), (2, 468)]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_file_or_damaged(data: bytes) -> None:
    try:
        epochs = epoch_file.decode(data)
    except CorruptRecord:
        return
    assert epoch_file.decode(epoch_file.encode(epochs)) == epochs


# --- the model: a log is a list with the master of each block ------------------------------------

LOGS = st.lists(st.integers(1, 4), max_size=12).map(sorted)


def epochs_of(log: list[int], first: int = 0) -> list[Epoch]:
    """Return the epochs of a log whose blocks before the first one were deleted."""
    starts = {number: log.index(number) * BLOCK for number in log}
    return [Epoch(number, starts[number]) for number in sorted(set(log[first:]))]


@given(LOGS, st.integers(0, 12))
def test_epochs_follow_the_log(log: list[int], place: int) -> None:
    epochs = epochs_of(log)
    added: list[Epoch] = []
    for position, number in enumerate(log):
        added = epoch_file.added(added, Epoch(number, position * BLOCK))
    assert added == epochs
    assert epoch_file.added(epochs, Epoch(9, len(log) * BLOCK))[-1] == (9, len(log) * BLOCK)
    place = min(place, len(log))
    assert epoch_file.cut(epochs, place * BLOCK) == epochs_of(log[:place])
    if place < len(log):
        assert epoch_file.expired(epochs, place * BLOCK) == epochs_of(log, place)
        index = epoch_file.index_at(epochs, place * BLOCK + BLOCK - 1)
        assert epochs[index].number == log[place]
        end = epoch_file.end_at(epochs, index, len(log) * BLOCK)
        assert end == (len(log) - log[::-1].index(log[place])) * BLOCK


def test_an_epoch_without_bytes_has_no_entry() -> None:
    epochs = [Epoch(1, 0), Epoch(2, 468)]
    assert epoch_file.added(epochs, Epoch(3, 468)) == epochs
    assert epoch_file.added(epochs, Epoch(2, 900)) == epochs


@given(LOGS, LOGS, st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_logs_are_equal_up_to_the_common_end(
    old: list[int], tail: list[int], left: int, right: int, grows: bool
) -> None:
    """Logs with a common begin, as a new master continues a part of the old one's log."""
    own = old[: max(left, 1)]
    other = old[: max(right, 1)] + ([number + 4 for number in tail] if grows else [])
    equal = len(
        list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, other, strict=False)))
    )
    end = epoch_file.common_end(
        epochs_of(own), len(own) * BLOCK, epochs_of(other), len(other) * BLOCK
    )
    assert end == (equal * BLOCK if equal else None)


def test_epochs_with_another_start_are_not_the_same() -> None:
    own, other = [Epoch(1, 0), Epoch(3, 500)], [Epoch(1, 0), Epoch(3, 400)]
    assert epoch_file.common_end(own, 900, other, 900) == 400
    assert epoch_file.common_end([Epoch(2, 0)], 900, other, 900) is None
    assert epoch_file.index_at([Epoch(2, 100)], 99) == -1
