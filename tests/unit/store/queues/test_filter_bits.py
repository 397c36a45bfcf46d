"""Filter bits; crash/test_rebuild.py compares them with Java's."""

import pytest

from reput.format import bloom
from reput.store.queues.filter_bits import FilterBits
from reput.store.tables.filters import ConsumerFilter


class Filters:
    def __init__(self, *filters: ConsumerFilter) -> None:
        self._found = {entry.group: entry for entry in filters}

    def of(self, topic: str) -> dict[str, ConsumerFilter]:
        return self._found if topic == "TopicA" else {}


def make(group: str, expression: str, *positions: int, kind: str = "SQL92") -> ConsumerFilter:
    return ConsumerFilter(
        topic="TopicA",
        group=group,
        expression=expression,
        expression_type=kind,
        client_version=1,
        born_ms=1,
        bloom_bits=112,
        bloom_positions=positions,
    )


def test_bit_p_is_in_byte_p_div_8() -> None:
    # Facts 1.3: group CGO on TopicA has positions 36, 98, 22.
    bits = FilterBits(Filters(make("CGO", "a = 1", 36, 98, 22))).of("TopicA", {"a": "1"})
    assert len(bits) == 14
    assert [p for p in range(112) if bits[p // 8] >> p % 8 & 1] == [22, 36, 98]


def test_only_filters_that_take_the_message_count() -> None:
    bits = FilterBits(Filters(make("X", "a > 5", 1), make("Y", "a < 5", 2)))
    assert bits.of("TopicA", {"a": "7"})[0] == 0b010
    assert bits.of("TopicA", {"a": "3"})[0] == 0b100
    assert bits.of("TopicA", {}) == bytes(14)  # null passes nothing


def test_a_topic_without_filters_has_no_bits() -> None:
    assert FilterBits(Filters(make("X", "a > 5", 1))).of("TopicB", {"a": "7"}) == b""


def test_a_topic_with_too_many_filters_has_no_bits() -> None:
    """A message costs time for each filter; without bits, every pull evaluates its filter."""
    long = "a = 1 OR b IN ('" + "x" * 8_000 + "')"
    few = Filters(*(make(f"g{i}", long, i) for i in range(4)))
    assert FilterBits(few).of("TopicA", {"a": "1"})[0] == 0b1111
    many = Filters(*(make(f"g{i}", long, i) for i in range(5)))
    assert FilterBits(many).of("TopicA", {"a": "1"}) == b""
    assert bloom.may_match(b"", 112, (1,))


@pytest.mark.parametrize(("expression", "kind"), [("a >", "SQL92"), ("TagA", "TAG")])
def test_a_filter_of_another_type_sets_no_bits(expression: str, kind: str) -> None:
    bits = FilterBits(Filters(make("X", expression, 1, kind=kind), make("Y", "a = 7", 2)))
    for _ in range(2):
        assert bits.of("TopicA", {"a": "7"})[0] == 0b100
