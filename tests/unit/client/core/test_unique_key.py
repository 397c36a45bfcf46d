from datetime import datetime

from hypothesis import given, strategies as st

from reput.client.core.unique_key import UniqueKeys

ADDRESS = bytes((192, 0, 2, 7))
TIMES = st.integers(0, 4_000_000_000_000)


def milliseconds(*when: int) -> int:
    """Return a local date and time as ms since 1970."""
    return int(datetime(*when).astimezone().timestamp() * 1000)  # type: ignore[arg-type]


def test_parts_are_at_the_positions_of_java() -> None:
    keys = UniqueKeys(ADDRESS, 0x12345, 0xDEADBEEF)
    now_ms = milliseconds(2024, 3, 1, 0, 0, 1)

    assert keys.next(now_ms) == "C00002072345DEADBEEF000003E80000"
    assert keys.next(now_ms + 1) == "C00002072345DEADBEEF000003E90001"


def test_a_key_with_an_ipv6_address_has_56_characters() -> None:
    assert len(UniqueKeys(bytes(16), 1, 2).next(0)) == 56


def test_the_time_restarts_each_month() -> None:
    keys = UniqueKeys(ADDRESS, 1, 2)
    before, after = milliseconds(2024, 12, 31, 23, 59, 59), milliseconds(2025, 1, 1)

    assert int(keys.next(before)[20:28], 16) == before - milliseconds(2024, 12, 1)
    assert int(keys.next(after)[20:28], 16) == 0
    assert int(keys.next(before)[20:28], 16) == before - milliseconds(2024, 12, 1)


def test_the_counter_wraps_around() -> None:
    keys = UniqueKeys(ADDRESS, 1, 2)
    endings = [keys.next(0)[-4:] for _ in range(65_537)]

    assert (endings[0], endings[65_535], endings[65_536]) == ("0000", "FFFF", "0000")


@given(st.lists(TIMES, max_size=50), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_keys_are_unique(times: list[int], process_id: int, salt: int) -> None:
    keys = UniqueKeys(ADDRESS, process_id, salt)
    made = [keys.next(now_ms) for now_ms in times]

    assert len(set(made)) == len(made)
    assert all(len(key) == 32 and key == key.upper() for key in made)
