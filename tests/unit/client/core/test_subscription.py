"""Subscriptions of a member. Expectations: rocketmq 4.9.8 ``FilterAPITest``, ``FilterAPI``."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from reput.client import PopConsumer, PullConsumer, PushConsumer
from reput.client.core import subscription as subscriptions
from reput.errors import InvalidOption
from reput.format import java


@dataclass
class One:
    tags: str | None


@pytest.mark.parametrize("expression", ["*", "", None])
def test_expressions_for_all_messages(expression: str | None) -> None:
    wanted = subscriptions.tags("T", expression, 7)
    assert (wanted.expression, wanted.tag_set, wanted.version) == ("*", frozenset(), 7)
    messages = [One(None), One("a")]
    assert wanted.matching(messages) is messages
    data = wanted.data()
    assert data.sub_string == "*"
    assert data.tags_set == data.code_set == []


def test_tags_are_trimmed_and_counted_once() -> None:
    wanted = subscriptions.tags("T", "TAG1 ||\tTag2||TAG1|| \x01tag3\x01 ||", 1)
    assert wanted.tag_set == {"TAG1", "Tag2", "tag3"}
    data = wanted.data()
    assert data.topic == "T"
    assert data.expression_type == "TAG"
    assert data.sub_string == "TAG1 ||\tTag2||TAG1|| \x01tag3\x01 ||"
    assert data.tags_set == ["TAG1", "Tag2", "tag3"]
    assert set(data.code_set) == {java.string_hash(tag) for tag in ("TAG1", "Tag2", "tag3")}
    assert not wanted.is_sql


def test_other_whitespace_is_part_of_a_tag() -> None:
    assert subscriptions.tags("T", "\u3000a\u00a0", 1).tag_set == {"\u3000a\u00a0"}


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_separators_without_tags_are_refused(expression: str) -> None:
    with pytest.raises(InvalidOption, match="TagA"):
        subscriptions.tags("T", expression, 1)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a,b", r"did you mean 'a || b'\?"),
        ("a|b", r"did you mean 'a || b'\?"),
        ("a b", r"did you mean 'a || b'\?"),
        ("a, b || c", r"did you mean 'a || b || c'\?"),
        ("tag = 'x'", "conditions are for subscribe_sql"),
        ('TAGS="x"', "conditions are for subscribe_sql"),
        (["b", "a"], r"did you mean 'a || b'\?"),
        (5, "one text"),
    ],
)
async def test_what_is_no_list_of_tags_is_refused_with_what_was_meant(
    expression: object, text: str
) -> None:
    wrong: Any = expression
    pattern = text.replace("|", r"\|")
    for kind in (PullConsumer, PopConsumer, partial(PushConsumer, listener=lambda *_: None)):
        with pytest.raises(InvalidOption, match=pattern):
            await kind("G", namesrv="127.0.0.1:9876").subscribe("T", wrong)
    with pytest.raises(InvalidOption, match=pattern):
        subscriptions.check_tags(wrong)


@pytest.mark.parametrize(
    "expression", ["*", "", None, "a", "a||b", " a || b ", "a=b", "Tag\u00a0A"]
)
def test_lists_of_tags_are_accepted(expression: str | None) -> None:
    subscriptions.check_tags(expression)


def test_tags_are_compared_by_text() -> None:
    assert java.string_hash("AaAa") == java.string_hash("BBBB")
    wanted = subscriptions.tags("T", "AaAa || c", 1)
    messages = [One("AaAa"), One("BBBB"), One(None), One("c"), One("AaAa ")]
    assert wanted.matching(messages) == [One("AaAa"), One("c")]


def test_sql_is_left_to_the_broker() -> None:
    wanted = subscriptions.sql("T", "a > 5 AND b IS NOT NULL", 9)
    messages = [One(None)]
    assert wanted.is_sql
    assert wanted.matching(messages) is messages
    data = wanted.data()
    assert data.expression_type == "SQL92"
    assert data.sub_string == "a > 5 AND b IS NOT NULL"
    assert data.tags_set == data.code_set == []
    with pytest.raises(InvalidOption):
        subscriptions.sql("T", "  ", 1)
