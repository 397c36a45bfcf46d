"""Bytes that a regular expression needs: checked on bodies that match it."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from reput.console import literals


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("order", b"order"),
        (r'"order": 4\d\d', b'"order": 4'),
        (r"\d+ failed: timeout$", b" failed: timeout"),
        (r"\bpaid\b", b"paid"),
        (r"^(?:paid|sent) by (card)s?", b" by card"),
        (r"ab(?:cde)+f", b"cde"),
        (r"(?P<state>clo)sed", b"closed"),
        ("é", "é".encode()),
        (r"\x00\.", b"\0."),
        (r"(?x) a  b  # a comment", b"ab"),
        # Nothing that each match contains.
        ("", b""),
        (r"\d\d", b""),
        ("cat|dog", b""),
        ("(?:cat)?", b""),
        ("(?:cat){0,3}", b""),
        ("(?i)order", b""),
        ("(?i:order)", b""),
        ("(?!order)", b""),
        ("(?<!order)", b""),
    ],
)
def test_the_literal_of_an_expression(expression: str, expected: bytes) -> None:
    assert literals.contained_in(expression) == expected


PARTS = (
    *("a", "bc", r"\d", ".", "[ab]", "(?:ab|cd)", "(?:ab)*", "(?:ab)+", "(ab){2}", "x?", "^", "$"),
    *(
        r"\b",
        "(?i:ab)",
        "(?=a)",
        "(?!b)",
        "(?<=a)",
        "(?>ab)",
        "a*?",
        "b++",
        "(?s:.)",
        r"\.",
        "(a(b)c)",
    ),
)


@given(st.lists(st.sampled_from(PARTS), max_size=6), st.text("abcdAB19. \n", max_size=12))
def test_each_match_contains_it(parts: list[str], text: str) -> None:
    expression, body = "".join(parts), text.encode()
    if re.search(expression.encode(), body):
        assert literals.contained_in(expression) in body


@given(st.lists(st.sampled_from(PARTS[:9]), max_size=6), st.data())
def test_texts_made_from_an_expression_contain_it(parts: list[str], data: st.DataObject) -> None:
    expression = "".join(parts).encode()
    body = data.draw(st.from_regex(expression))
    assert literals.contained_in(expression.decode()) in body


def test_a_python_without_this_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(literals, "importlib", SimpleNamespace(import_module=missing))
    assert literals.contained_in("order") == b""
