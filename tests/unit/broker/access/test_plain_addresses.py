"""White addresses of access control 1.0. What Java reads is in tests/interop/test_plain_acl.py."""

import ipaddress

import pytest
from hypothesis import given, strategies as st

from reput.broker.access.plain_addresses import NO_ADDRESS, packed_address, parse_pattern, union
from reput.errors import InvalidOption

BYTES = st.integers(0, 255)


@given(st.tuples(BYTES, BYTES, BYTES, BYTES), st.integers(1, 3), BYTES, BYTES)
def test_a_range_has_the_addresses_between_its_bounds(
    parts: tuple[int, int, int, int], index: int, first: int, second: int
) -> None:
    low, high = sorted((first, second))
    pattern = [*map(str, parts[:index]), f"{low}-{high}", *"***"][:4]
    if not high:
        return
    addresses = parse_pattern(".".join(pattern), "")
    assert addresses.contains(".".join(map(str, parts))) == (low <= parts[index] <= high)


@given(st.ip_addresses(), st.ip_addresses())
def test_an_address_has_itself_only(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    other: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    addresses = parse_pattern(str(address), "")
    for text in (str(address), address.exploded, f"[{address}]"):
        assert addresses.contains(text)
    assert addresses.contains(str(other)) == (_unmapped(address) == _unmapped(other))


def _unmapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> object:
    return getattr(address, "ipv4_mapped", None) or address


@given(st.ip_addresses(v=4))
def test_ipv4_in_the_form_of_ipv6_is_ipv4(address: ipaddress.IPv4Address) -> None:
    assert parse_pattern(str(address), "").contains(f"::ffff:{address}")
    assert parse_pattern(f"::ffff:{address}", "").contains(str(address))


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", "10.0.3.7 ::1", ""),
        ("10.0.3.{7,9}", "10.0.3.7 10.0.3.9", "10.0.3.8 ::a00:307"),
        ("10.0.3.7,fd00::9", "10.0.3.7 fd00::9 [fd00::9]", "10.0.3.9"),
        ("10.0.3-4.9", "10.0.3.9 10.0.4.1", "10.0.5.9 10.1.3.9"),
        ("2::*", "2::7 2::ffff", "2::1:0 2:1::7"),
        ("fd00::1:*", "fd00::1:0", "fd00::2:0 10.0.0.1"),
        ("  ", "", "10.0.3.7 ::1"),
    ],
)
def test_patterns(pattern: str, inside: str, outside: str) -> None:
    addresses = parse_pattern(pattern, "")
    assert all(map(addresses.contains, inside.split()))
    none = ["", "x", "10.0.3", "1" * 5000] if not addresses.is_all else []
    assert not any(map(addresses.contains, [*outside.split(), *none]))
    assert bool(addresses) == bool(pattern.strip())


@given(st.text("0123.:,{}*-afg []%/", max_size=20))
def test_any_text_is_a_pattern_or_an_error_that_names_it(text: str) -> None:
    try:
        addresses = parse_pattern(text, "white address")
    except InvalidOption as error:
        assert "'white address'" in str(error)  # noqa: PT017 - it may be raised
    else:
        assert bool(addresses) == bool(text.strip())


def test_a_union_has_the_addresses_of_all() -> None:
    both = union([parse_pattern("10.0.3.*", ""), NO_ADDRESS, parse_pattern("::1", "")])
    assert both.contains("10.0.3.4")
    assert both.contains("::1")
    assert not both.contains("10.0.4.4")
    assert not union([])


def test_what_is_no_address_is_in_no_set() -> None:
    assert packed_address("host") is None
    assert packed_address("\0") is None
    assert packed_address("fe80::1%eth0") == packed_address("fe80::1")
