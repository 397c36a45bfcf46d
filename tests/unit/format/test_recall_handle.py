"""Recall handles; tests/interop/test_timer.py compares them with Java's class."""

import base64
import contextlib

import pytest
from hypothesis import given, strategies as st

from reput.errors import InvalidHeader
from reput.format import recall_handle as handles
from reput.format.recall_handle import RecallHandle

words = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1)


@given(st.builds(RecallHandle, words, words, words, words))
def test_handle_round_trip(handle: RecallHandle) -> None:
    text = handles.encode(handle)
    assert handles.decode(text) == handle
    assert handles.decode(text.rstrip("=")) == handle


def test_the_text_of_a_handle() -> None:
    text = handles.encode(RecallHandle("TopicA", "broker-a", "1700000000001", "0A0B"))
    assert base64.urlsafe_b64decode(text) == b"v1 TopicA broker-a 1700000000001 0A0B"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@",
        "a",
        "v1 T b 5 k",
        base64.urlsafe_b64encode(b"v2 T b 5 k").decode(),
        base64.urlsafe_b64encode(b"v1 T b 5").decode(),
    ],
)
def test_invalid_handles_are_refused(text: str) -> None:
    with pytest.raises(InvalidHeader, match="recall handle is invalid"):
        handles.decode(text)


@given(st.text())
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidHeader):
        assert len(handles.decode(text)) == 4
