"""The console over HTTP: paths, the two forms of a page, and the headers of every response."""

import subprocess
import sys

import pytest

from asgi import call
from reput.console.app import Console
from reput.console.parts import ConsoleParts


@pytest.fixture
def console(parts: ConsoleParts) -> Console:
    return Console(parts)


async def test_a_page_is_html_and_json(console: Console) -> None:
    html = await call(console, "/audit")
    assert html.status == 200
    assert html.header("content-type") == "text/html; charset=utf-8"
    for answer in (
        await call(console, "/audit?format=json"),
        await call(console, "/audit", headers={"accept": "application/json"}),
    ):
        assert answer.header("content-type") == "application/json"
        assert answer.data["entries"] == []


@pytest.mark.parametrize("url", ["/", "/nothing", "/%00", "/topics/a/b/c/d/e", "/login"])
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


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("page=x", "page='x': allowed is a number from 1"),
        ("page=0", "page='0': allowed is a number from 1"),
        ("size=7", "size='7': allowed are 25, 50, 100, 500"),
        ("outcome=%3Cb%3E", "outcome='<b>': allowed are"),
    ],
)
async def test_a_wrong_parameter_is_400_and_names_what_is_allowed(
    console: Console, query: str, text: str
) -> None:
    answer = await call(console, f"/audit?{query}&format=json")
    assert answer.status == 400
    assert text in answer.data["error"]


async def test_a_foreign_name_of_this_machine_is_refused(console: Console) -> None:
    answer = await call(console, "/", headers={"host": "evil.example:8080"})
    assert answer.status == 421
    for host in ("localhost:8080", "127.0.0.1", "[::1]:8080", "10.0.0.7:8080"):
        assert (await call(console, "/audit", headers={"host": host})).status == 200


async def test_links_stay_below_the_path_of_a_proxy(parts: ConsoleParts) -> None:
    answer = await call(Console(parts, root_path="/mq"), "/mq/audit")
    assert answer.status == 200
    assert 'href="/mq/topics"' in answer.text
    assert 'href="/topics"' not in answer.text


NOT_BEFORE_SERVING = (
    *("numpy", "lark", "llvmlite", "reput.store.reader", "reput.store.verify"),
    *("reput.client.producer", "reput.cli.access"),
)


def test_what_only_some_pages_need_is_not_imported_at_the_start() -> None:
    code = (
        "import sys, reput.cli.console, reput.console.app, reput.console.serving\n"
        f"print(*(name for name in {NOT_BEFORE_SERVING} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
