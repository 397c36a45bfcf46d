"""Numbers, sizes and times as the pages write them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

NONE = "—"
"""Text of a value that is absent."""
CONDITIONS = {
    "clean": "The broker was stopped.",
    "crashed": "The broker was not stopped, or the store was copied while it ran.",
    "running": "A broker held the store while it was read.",
}
"""Explanation of a store's condition."""


def number_text(value: int) -> str:
    """Format a whole number."""
    return f"{value:,}"


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Format a number and what it counts."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def short_text(value: int) -> str:
    """Format a number for a plot: ``950``, ``1.2k``, ``34M``."""
    return _scaled(value, (("", 1000), ("k", 1000), ("M", 1000), ("G", 1000), ("T", 1000)))


def size_text(value: int) -> str:
    """Format a number of bytes in a fitting unit."""
    units = ((" B", 1024), (" KiB", 1024), (" MiB", 1024), (" GiB", 1024), (" TiB", 1024))
    return _scaled(value, units)


def duration_text(value_ms: int) -> str:
    """Format a number of milliseconds in a fitting unit."""
    units = ((" ms", 1000), (" s", 60), (" min", 60), (" h", 24), (" d", 365), (" y", 1000))
    return _scaled(value_ms, units)


def _scaled(value: int, units: Sequence[tuple[str, int]]) -> str:
    """Format a value in the largest unit of which it has at least one."""
    scaled, unit = float(value), units[0][0]
    for unit, next_unit_size in units:
        if scaled < next_unit_size or unit == units[-1][0]:
            break
        scaled /= next_unit_size
    text = f"{scaled:,.1f}" if scaled < 99.95 else f"{scaled:,.0f}"
    return f"{text.removesuffix('.0')}{unit}"


def percent_text(part: int, whole: int) -> str:
    """Format a share; a dash if the whole is zero."""
    return f"{100 * part / whole:.1f} %" if whole else NONE


def time_text(time_ms: int | None, precision: str = "milliseconds") -> str:
    """Format a time as ISO 8601 in UTC; a number that is no date stays a number."""
    if time_ms is None:
        return NONE
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
