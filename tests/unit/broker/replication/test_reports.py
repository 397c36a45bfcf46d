"""Reports count only if a slave with a copy of this log can send them."""

import pytest
from hypothesis import given, strategies as st

from reput.broker.replication.reports import OfferedRange, Reason, ReportRefused, SlaveReports

LOG = OfferedRange(minimum=1000, maximum=5500, last_file=5000)
NEW = OfferedRange(minimum=0, maximum=0, last_file=0)
FULL = OfferedRange(minimum=0, maximum=5500, last_file=5000)
HUGE = (1 << 63) - 1


def begun(value: int, log: OfferedRange = LOG, *, from_last_file: bool = False) -> SlaveReports:
    return SlaveReports.begin(value, log, from_last_file=from_last_file)


@pytest.mark.parametrize("value", [1000, 1001, 5499, 5500])
def test_a_value_of_the_log_is_start_and_acknowledgement(value: int) -> None:
    reports = begun(value)
    assert (reports.start, reports.acked_offset) == (value, value)


@pytest.mark.parametrize(
    ("value", "reason", "text"),
    [
        (1, Reason.BELOW_MIN, "ends at physical offset 1, but this log begins at 1000"),
        (999, Reason.BELOW_MIN, "ends at physical offset 999, but this log begins at 1000"),
        (5501, Reason.ABOVE_MAX, "ends at physical offset 5501, after the end of this log, 5500"),
        (1 << 60, Reason.ABOVE_MAX, f"physical offset {1 << 60}, after the end of this log, 5500"),
        (HUGE, Reason.ABOVE_MAX, f"physical offset {HUGE}, after the end of this log, 5500"),
        (-1, Reason.ABOVE_MAX, "physical offset -1, after"),
    ],
)
def test_another_value_is_refused_with_both_numbers(value: int, reason: Reason, text: str) -> None:
    with pytest.raises(ReportRefused, match=text) as refused:
        begun(value)
    assert refused.value.reason is reason


def test_an_empty_slave_gets_the_log_from_its_first_file() -> None:
    reports = begun(0)
    assert (reports.start, reports.acked_offset) == (1000, None)


def test_an_empty_slave_gets_the_last_file_if_so_configured() -> None:
    assert begun(0, from_last_file=True).start == 5000
    reports = begun(0, FULL, from_last_file=True)
    assert (reports.start, reports.acked_offset) == (5000, None)


def test_an_empty_slave_has_all_of_an_empty_log() -> None:
    reports = begun(0, NEW)
    assert (reports.start, reports.acked_offset) == (0, 0)


def test_an_empty_slave_acknowledges_what_it_got() -> None:
    reports = begun(0)
    reports.add([0, 0], 1000)
    assert reports.acked_offset is None
    reports.add([0, 1000, 1400], 1500)
    assert reports.acked_offset == 1400


@pytest.mark.parametrize("value", [1, 999, 1501, HUGE, -1])
def test_an_empty_slave_cannot_have_other_bytes(value: int) -> None:
    with pytest.raises(ReportRefused, match=f"acknowledges physical offset {value}; possible are"):
        begun(0).add([value], 1500)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([3000, 2999], "physical offset 2999; possible are 3000, and 3000 to 4000"),
        ([4001], "physical offset 4001; possible are 2000, and 2000 to 4000"),
        # Only the last value counts, but none may be impossible.
        ([HUGE, 3000], f"physical offset {HUGE}; possible are 2000, and 2000 to 4000"),
        ([1999], "physical offset 1999; possible are 2000, and 2000 to 4000"),
    ],
)
def test_only_sent_bytes_can_be_acknowledged_and_none_is_taken_back(
    values: list[int], text: str
) -> None:
    reports = begun(2000)
    with pytest.raises(ReportRefused, match=text) as refused:
        reports.add(values, 4000)
    assert refused.value.reason is Reason.IMPOSSIBLE
    assert reports.acked_offset == 2000


@given(st.lists(st.integers(2000, 4000)).map(sorted))
def test_the_last_value_counts(values: list[int]) -> None:
    reports = begun(2000)
    reports.add(values, 4000)
    assert reports.acked_offset == (values[-1] if values else 2000)
