"""Compressed responses: for whom, and that no token of a form repeats in them."""

import gzip
import re

import pytest

from asgi import call
from reput.console.app import Console
from reput.console.parts import ConsoleParts
from reput.console.sessions import Sessions

GZIP = {"accept-encoding": "br;q=1.0, gzip, deflate"}
OWN = {**GZIP, "sec-fetch-site": "same-origin"}


@pytest.fixture
def console(parts: ConsoleParts) -> Console:
    return Console(parts)


@pytest.mark.parametrize(
    "headers", [OWN, {**GZIP, "sec-fetch-site": "none"}, GZIP, {**OWN, "cookie": "theme=dark"}]
)
async def test_pages_and_json_and_metrics_are_compressed(
    console: Console, headers: dict[str, str]
) -> None:
    plain = await call(console, "/audit")
    answer = await call(console, "/audit", headers=headers)
    assert answer.header("content-encoding") == "gzip"
    assert int(answer.header("content-length")) == len(answer.body) < len(plain.body)
    assert "<h1>" in gzip.decompress(answer.body).decode()
    assert "Accept-Encoding" in answer.header("vary")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin"},
        {"accept-encoding": "deflate, br"},
        {"accept-encoding": "gzip;q=0"},
        {**GZIP, "sec-fetch-site": "cross-site"},
        {**GZIP, "sec-fetch-site": "same-site"},
        {**GZIP, "cookie": "reput_session=x"},  # of a browser that does not say where it comes from
    ],
)
async def test_others_are_not(console: Console, headers: dict[str, str]) -> None:
    answer = await call(console, "/audit", headers=headers)
    assert answer.header("content-encoding") == ""
    assert "<h1>" in answer.text
    assert "Accept-Encoding" in answer.header("vary")


async def test_a_small_response_is_not_compressed(console: Console) -> None:
    answer = await call(console, "/audit?format=json", headers=OWN)
    assert answer.header("content-encoding") == ""
    assert answer.data["entries"] == []


async def test_a_token_of_a_form_is_another_text_each_time(console: Console) -> None:
    pages = [(await call(console, "/audit")).text for _ in range(2)]
    tokens = [re.findall(r'name="csrf" value="(\w+)"', page)[0] for page in pages]
    assert tokens[0] != tokens[1]
    for token in tokens:
        form = {"csrf": token, "theme": "dark", "to": "/audit"}
        headers = {"sec-fetch-site": "same-origin"}
        answer = await call(console, "/theme", method="POST", headers=headers, form=form)
        assert answer.status == 303


def test_a_token_of_another_session_or_a_changed_one_is_none() -> None:
    sessions = Sessions()
    token = sessions.form_token("a")
    assert sessions.is_form_token("a", token)
    assert not sessions.is_form_token("b", token)
    for other in ("", "zz", token[2:], f"{token}00", f"{int(token[0], 16) ^ 1:x}{token[1:]}"):
        assert not sessions.is_form_token("a", other)
    assert not Sessions().is_form_token("a", token)
