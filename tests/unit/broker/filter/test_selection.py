"""Subscriptions by tags: the selected messages, and the limits of number and length."""

import time

import pytest

from reput.broker import limits
from reput.broker.filter import filters, selection
from reput.broker.filter.filters import Filters
from reput.broker.settings.config import BrokerConfig
from reput.errors import LimitExceeded, RequestRefused
from reput.format import java, limits as format_limits
from reput.format.codes import ResponseCode
from reput.limits import Limit
from reput.store.tables.filters import ConsumerFilter


def test_codes_of_tags_are_their_hashes() -> None:
    assert selection.of_tags("TagA || TagB||TagA").tags_codes == (2598919, 2598920)
    for everything in (None, "", "*"):
        assert selection.of_tags(everything) is selection.EVERYTHING
    with pytest.raises(RequestRefused, match="parse"):
        selection.of_tags(" || ")


@pytest.mark.parametrize(
    ("expression", "limit"),
    [
        ("||".join(f"t{i}" for i in range(2_001)), limits.SUBSCRIPTION_TAGS),
        ("||" * 2_001 + "t", limits.SUBSCRIPTION_TAGS),
        ("||".join(f"t{i}" for i in range(1_000_000)), limits.SUBSCRIPTION_BYTES),
        ("t" * 8_000_000, limits.SUBSCRIPTION_BYTES),
        ("\u00e4" * 33_000, limits.SUBSCRIPTION_BYTES),
    ],
    ids=["tags", "separators", "a million tags", "8 MB", "bytes"],
)
def test_a_subscription_over_a_limit_is_refused(expression: str, limit: Limit) -> None:
    kept = len(selection._of_tags)
    for _ in range(3):
        with pytest.raises(LimitExceeded, match=f"at most {limit.maximum}") as refused:
            selection.of_tags(expression)
        assert refused.value.limit == limit.name
        assert refused.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert len(str(refused.value)) < 300
    assert len(selection._of_tags) == kept


def test_as_many_tags_as_allowed() -> None:
    tags = [f"Tag{i}" for i in range(limits.SUBSCRIPTION_TAGS.maximum)]
    assert len(selection.of_tags("||".join(tags)).tags_codes) == len(tags)


def test_the_hash_of_a_long_text_takes_linear_time() -> None:
    def cpu_seconds(text: str) -> float:
        begun = time.process_time()
        java.string_hash(text)
        return time.process_time() - begun

    small = min(cpu_seconds("x" * 100_000) for _ in range(3))
    large = min(cpu_seconds("x" * 800_000) for _ in range(3))
    assert large < 24 * small + 0.01


# --- SQL92 ----------------------------------------------------------------------

FILTERS = Filters(BrokerConfig(enable_property_filter=True))


@pytest.mark.parametrize(
    ("expression", "limit"),
    [
        (" OR ".join(["a = 1"] * 5_000), format_limits.FILTER_BYTES),
        (" OR ".join(["a = 1"] * 1_000), format_limits.FILTER_NODES),
        ("a = " + "-" * 16_000 + "1", format_limits.FILTER_NODES),
        ("x" * 4_000_000, format_limits.FILTER_BYTES),
    ],
    ids=["long", "words", "minus signs", "4 MB"],
)
def test_a_filter_over_a_limit_is_refused(expression: str, limit: Limit) -> None:
    with pytest.raises(LimitExceeded, match=f"at most {limit.maximum}") as refused:
        FILTERS.of_expression("SQL92", expression)
    assert refused.value.limit == limit.name
    assert refused.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert not FILTERS.is_expression(expression)


def test_the_cache_of_selections_is_bounded() -> None:
    for i in range(60):
        padding = "a IN ('" + "x" * 9_000 + f"{i}')"
        consumer_filter = ConsumerFilter(
            topic="T", group=f"g{i}", expression=padding, expression_type="SQL92", client_version=1,
            born_ms=0, bloom_bits=8, bloom_positions=(1,),
        )  # fmt: skip
        assert FILTERS.of_expression("SQL92", padding).message_filter is not None
        assert FILTERS.of_group(consumer_filter).message_filter is not None
    for cache in (filters._of_text, filters._of_filter):
        assert sum(map(cache._letters_of, [*cache._newer, *cache._older])) <= 128 * 1024


def test_a_long_expression_type_is_not_repeated_whole() -> None:
    with pytest.raises(RequestRefused, match="allowed: TAG, SQL92") as refused:
        FILTERS.of_expression("x" * 100_000, "a = 1")
    assert len(str(refused.value)) < 400
