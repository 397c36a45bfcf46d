"""The console over HTTP: paths, forms of a page, and the headers of every response."""

import pytest

from asgi import call
from reput.clock import ManualClock
from reput.console.app import Console
from reput.console.parts import ConsoleParts


@pytest.fixture
def console() -> Console:
    return Console(ConsoleParts(ManualClock(1_000), "127.0.0.1:9876", may_operate=False))


async def test_a_page_is_html_and_json(console: Console) -> None:
    html = await call(console, "/")
    assert html.status == 200
    assert html.header("content-type") == "text/html; charset=utf-8"
    for answer in (
        await call(console, "/?format=json"),
        await call(console, "/", headers={"accept": "application/json"}),
    ):
        assert answer.header("content-type") == "application/json"
        assert answer.data["namesrv"] == "127.0.0.1:9876"


@pytest.mark.parametrize("url", ["/", "/nothing", "/%00", "/topics/a/b/c/d/e"])
async def test_every_response_has_the_policy(console: Console, url: str) -> None:
    answer = await call(console, url)
    policy = answer.header("content-security-policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert answer.header("x-content-type-options") == "nosniff"
    assert answer.header("cache-control") == "no-store"


async def test_an_unknown_path_is_404(console: Console) -> None:
    answer = await call(console, "/<script>alert(1)</script>")
    assert answer.status == 404
    assert "<script>alert" not in answer.text


async def test_a_foreign_name_of_this_machine_is_refused(console: Console) -> None:
    answer = await call(console, "/", headers={"host": "evil.example:8080"})
    assert answer.status == 421
    for host in ("localhost:8080", "127.0.0.1", "[::1]:8080", "10.0.0.7:8080"):
        assert (await call(console, "/", headers={"host": host})).status == 200
