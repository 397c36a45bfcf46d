"""The console in a real browser: access, layout, and what people do with its pages."""

import asyncio
import contextlib
import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

pytest.importorskip("uvicorn", reason="reput.console imports it")

from browser import console_site
from browser.console_site import (
    CONSUMER_OFFSETS,
    GROUP,
    LETTER_COUNT,
    MESSAGE_COUNT,
    PASSWORDS,
    SMALL_TOPICS,
    TOPIC,
    Site,
)
from browser.driver import Browser
from browser.prefix_proxy import prefix_proxy
from reput.client import Message, blocking
from reput.console.app import CHANGES, ROUTES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]

PAGES = (
    *("", "topics", "topics/Orders", "groups", "groups/billing", "brokers", "brokers/broker-a"),
    "groups/watchers/members/{member}",
    *("messages", "messages?topic=Orders&rows=80", "messages/{message}", "dlq", "dlq/billing"),
    *("stores", "s/old", "s/old/messages?topic=Orders", "s/old/messages/{message}", "audit"),
)
"""Pages, as paths below the console; ``{message}`` is the one with the hostile contents."""
OF_JOURNEYS = ("dlq/billing/jobs/{job}",)
"""Pages of a console that changes something, which a journey opens."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with console_site.console_site(tmp_path_factory.mktemp("console")) as site:
        yield site


@pytest.fixture(autouse=True)
def no_cookies(browser: Browser) -> None:
    browser.call("Network.clearBrowserCookies")


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which is read and never imported."""
    name = "axe-playwright-python"
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"missing {name}: its file axe.min.js checks the accessibility")
    (file,) = [file for file in files if file.name == "axe.min.js"]
    return Path(str(file.locate())).read_text(encoding="utf-8")


def fill_in(browser: Browser, name: str, password: str) -> None:
    browser.click("input[name=name]")
    browser.type(name)
    browser.press("Tab")
    browser.type(password)


def log_in(browser: Browser, url: str, name: str = "ann", **options: bool) -> None:
    """Open a page as a user, through the login page."""
    browser.open(url, **options)
    fill_in(browser, name, PASSWORDS[name])
    with browser.navigation():
        browser.press("Enter")


def assert_quiet(browser: Browser, site_url: str) -> None:
    """Check that the browser complains about nothing, and asked the console alone."""
    assert browser.complaints() == []
    assert {urlsplit(url).netloc for url in browser.urls()} == {urlsplit(site_url).netloc}
    assert browser.ask("document.title").endswith("reput console")  # and not "owned"


# --- access -------------------------------------------------------------------------------------


def test_a_user_logs_in_and_gets_the_page_that_was_asked_for(browser: Browser, site: Site) -> None:
    url = site.operating.url
    log_in(browser, f"{url}audit?outcome=refused")
    assert browser.ask("location.href") == f"{url}audit?outcome=refused"
    assert browser.ask("document.querySelector('.user').textContent").startswith("ann")
    assert browser.ask("document.cookie") == ""  # the session is not for scripts
    with browser.navigation():
        browser.click(".user button")
    assert browser.ask("location.pathname") == "/login"
    browser.open(f"{url}audit")
    assert browser.ask("location.pathname") == "/login"
    assert_quiet(browser, url)


def test_a_wrong_password_is_refused_and_recorded(browser: Browser, site: Site) -> None:
    browser.open(site.operating.url)
    fill_in(browser, "ann", "wrong password")
    with browser.navigation():
        browser.press("Enter")
    assert browser.statuses()[-1] == 401
    assert "wrong" in browser.ask("document.querySelector('[role=alert]').textContent")
    assert browser.ask("document.querySelector('nav') === null")
    entry = site.operating.entries()[-1]
    assert (entry["user"], entry["action"], entry["outcome"]) == ("ann", "login", "refused")
    fill_in(browser, "ann", PASSWORDS["ann"])
    with browser.navigation():
        browser.press("Enter")
    assert browser.ask("document.querySelector('.user') !== null")


def test_a_form_of_another_site_is_refused(browser: Browser, site: Site) -> None:
    url = site.operating.url
    log_in(browser, url)
    token = browser.ask("document.querySelector('[name=csrf]').value")
    # Even if it knew the token.
    form = (
        f"<form method=post action='{url}theme'><input name=csrf value='{token}'>"
        "<button name=theme value=dark>Win</button></form>"
    )
    browser.open(f"data:text/html,{quote(form)}")
    with browser.navigation():
        browser.click("button")
    assert browser.statuses()[-1] == 403
    assert "Sec-Fetch-Site" in browser.ask("document.querySelector('main').textContent")


def test_a_form_without_the_token_of_the_session_is_refused(browser: Browser, site: Site) -> None:
    log_in(browser, site.operating.url)
    browser.ask("document.querySelector('[name=csrf]').value = 'guess'; 0")
    with browser.navigation():
        browser.click(".themes button[value=dark]")
    assert browser.statuses()[-1] == 403
    entry = site.operating.entries()[-1]
    assert (entry["user"], entry["outcome"]) == ("ann", "refused")
    assert "token" in entry["detail"]


@pytest.mark.parametrize("path", CHANGES)
def test_a_read_only_console_has_no_changes(browser: Browser, site: Site, path: str) -> None:
    browser.open(site.read_only.url)
    token = browser.ask("document.querySelector('[name=csrf]').value")
    place = path.replace("{topic}", TOPIC).replace("{group}", GROUP)
    status = browser.ask(
        f"fetch({json.dumps(place)}, {{method: 'POST', body: new URLSearchParams("
        f"{{csrf: {json.dumps(token)}}})}}).then((response) => response.status)"
    )
    assert status == 404


# --- layout -------------------------------------------------------------------------------------


def test_every_page_is_in_the_list() -> None:
    """A new page must be seen in a browser, too."""
    paths = {f"/{page.partition('?')[0]}" for page in (*PAGES, *OF_JOURNEYS)}
    patterns = {path: re.compile(re.sub(r"{\w+}", "[^/]+", path)) for path in ROUTES}
    unseen = [
        path
        for path, pattern in patterns.items()
        if path not in paths and not any(map(pattern.fullmatch, paths - {*ROUTES}))
    ]
    assert unseen == []


HEADS = "[...document.querySelectorAll('h1, h2')].map((one) => one.textContent)"
OUTSIDE = """
[...document.querySelectorAll("main *")]
  .filter((one) => !one.closest(".scroll, thead, svg, .hidden"))
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => one.outerHTML.slice(0, 100))
"""
POSTS = """
[...document.forms].filter((form) => form.method === "post")
  .map((form) => new URL(form.action).pathname)
"""


CUT = """
[...document.querySelectorAll(".scroll")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.getAttribute("aria-label")}: ${one.scrollWidth} in ${one.clientWidth}`)
"""


def assert_fits(browser: Browser, width: int, brightness: range) -> None:
    """Check that nothing is outside of the window, and that the background is as bright."""
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OUTSIDE) == []
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) // 3 in brightness
    assert browser.ask("document.querySelectorAll('h1').length") == 1


def open_whole(browser: Browser, url: str, width: int, scheme: str, **options: bool) -> None:
    """Open a page, and reload it as long as it says that a folder is still being read."""
    browser.open(url, width, scheme, **options)
    while "reload the page" in browser.ask("document.body.innerText"):
        browser.open(url, width, scheme, **options)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_whole_on_a_desk_on_a_phone_and_without_javascript(
    browser: Browser, site: Site, page: str
) -> None:
    url = site.url(page)
    open_whole(browser, url, 1280, "light")
    assert_fits(browser, 1280, range(200, 256))
    assert {*browser.ask(POSTS)} - {"/s/old/verify"} == {"/theme"}  # a verification changes nothing
    assert "read-only" in browser.ask("document.querySelector('.mode').textContent")
    heads = browser.ask(HEADS)
    assert_quiet(browser, url)
    open_whole(browser, url, 400, "dark", scripts=False)
    assert_fits(browser, 400, range(60))
    assert browser.ask(HEADS) == heads
    assert_quiet(browser, url)


@pytest.mark.parametrize("width", [1280, 1366])
def test_no_column_of_a_list_is_cut_on_a_desk(browser: Browser, site: Site, width: int) -> None:
    """Tables of files and settings may be wider; lists that follow a cluster are not."""
    cut = {}
    for page, route in ROUTES.items():
        if route.live_s and "{" not in page:
            browser.open(site.url(page.strip("/")), width, "light")
            cut[page] = browser.ask(CUT)
    assert {page: tables for page, tables in cut.items() if tables} == {}
    assert len(cut) >= 4


def test_a_user_logs_in_and_chooses_colors_without_javascript(browser: Browser, site: Site) -> None:
    log_in(browser, site.operating.url, scripts=False)
    with browser.navigation():
        browser.click(".themes button[value=dark]")
    assert browser.ask("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert browser.ask("document.querySelector('.user') !== null")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("page", [*PAGES, "login"])
def test_a_page_is_accessible(browser: Browser, site: Site, axe: str, page: str) -> None:
    browser.open(site.url(page))
    assert browser.violations(axe) == []
    browser.prefer("dark")
    assert browser.violations(axe) == []


# --- journeys -----------------------------------------------------------------------------------

FIRST_CELLS = "[...document.querySelectorAll('tbody td:first-child')].map((cell) => cell.innerText)"
PLACE = "location.pathname + location.search"


def test_a_topic_is_found_by_typing(browser: Browser, site: Site) -> None:
    browser.open(site.read_only.url)
    with browser.navigation():
        browser.type("gt")
    assert browser.ask("document.title").startswith("Topics")
    browser.type("/")
    browser.type("hop-04")
    with browser.navigation():
        browser.press("Enter")
    assert browser.ask(FIRST_CELLS) == [f"shop-04{digit}" for digit in range(10)]
    browser.type("j")
    browser.type("j")
    with browser.navigation():
        browser.press("Enter")
    assert browser.ask("document.querySelector('h1').innerText") == "shop-041"
    assert_quiet(browser, site.read_only.url)


def test_a_list_is_paged_and_sorted_and_back_returns(browser: Browser, site: Site) -> None:
    browser.open(f"{site.read_only.url}topics?q=shop")
    first = browser.ask(FIRST_CELLS)
    assert first == SMALL_TOPICS[: len(first)]
    with browser.navigation():
        browser.click("a[rel=next]")
    assert browser.ask(FIRST_CELLS)[0] == SMALL_TOPICS[len(first)]
    second = browser.ask(PLACE)
    with browser.navigation():
        browser.click("thead th:first-child a")
    assert browser.ask("document.querySelector('th').ariaSort") == "descending"
    assert browser.ask(FIRST_CELLS)[0] == SMALL_TOPICS[-1]
    browser.back()
    assert browser.ask(PLACE) == second
    assert browser.ask(FIRST_CELLS)[0] == SMALL_TOPICS[len(first)]
    assert_quiet(browser, site.read_only.url)


def test_a_live_row_changes_and_the_focus_stays(browser: Browser, site: Site) -> None:
    browser.open(f"{site.read_only.url}topics?q=shop-12")
    browser.type("j")
    assert browser.ask("document.activeElement.innerText") == "shop-120"
    count = "document.getElementById('r-shop-121').cells[2].innerText"
    browser.until(f"{count} === '0'")
    with blocking.Producer("shop", namesrv=site.broker.namesrv_addr) as producer:
        producer.send(Message("shop-121", b"new"))
    browser.until(f"{count} === '1'")
    assert browser.ask("document.activeElement.innerText") == "shop-120"
    assert_quiet(browser, site.read_only.url)


def test_a_search_by_key_says_whether_it_is_complete(browser: Browser, site: Site) -> None:
    browser.open(f"{site.read_only.url}messages")
    for name, value in (("topic", TOPIC), ("key", "order-7")):
        browser.click(f"input[name={name}]")
        browser.type(value)
    with browser.navigation():
        browser.press("Enter")
    state = "document.getElementById('search-state').innerText"
    assert browser.ask(state).startswith("Complete")
    assert len(browser.ask(FIRST_CELLS)) == 1
    with browser.navigation():
        browser.click("tbody a")
    assert browser.ask("document.querySelector('.tree').innerText").split() == ["order", "7"]
    # A search that pauses, because the page has as many rows as it may show.
    browser.open(f"{site.read_only.url}messages?topic={TOPIC}&rows=40")
    assert browser.ask(state).startswith("Not complete")
    assert len(browser.ask(FIRST_CELLS)) == 40
    with browser.navigation():
        browser.click("#search-state a")
    assert browser.ask(state).startswith("Complete")
    assert len(browser.ask(FIRST_CELLS)) == MESSAGE_COUNT - 40
    assert_quiet(browser, site.read_only.url)


def test_dead_letters_are_selected_previewed_confirmed_and_have_a_receipt(
    browser: Browser, site: Site
) -> None:
    log_in(browser, f"{site.operating.url}dlq/{GROUP}")
    assert len(browser.ask(FIRST_CELLS)) == LETTER_COUNT
    browser.click("tbody tr:first-child input")
    browser.click("tbody tr:last-child input")
    with browser.navigation():
        browser.click("main button.primary")
    retries = f"%RETRY%{GROUP}"
    assert browser.ask("document.querySelectorAll('tbody tr').length") == 2
    assert site.broker.messages(retries) == []  # nothing is done yet
    with browser.navigation():
        browser.click("main button.primary")
    assert "Done" in browser.ask("document.querySelector('[role=status]').innerText")
    letters = {message.body for message in site.broker.messages(retries)}
    assert letters == {message.body for message in site.broker.messages(TOPIC)[:3:2]}
    entry = site.operating.entries()[-1]
    assert (entry["user"], entry["outcome"]) == ("ann", "done")
    browser.open(f"{site.operating.url}dlq/{GROUP}")
    badges = "[...document.querySelectorAll('td:last-child')].map((cell) => cell.innerText)"
    assert [text == "\u2014" for text in browser.ask(badges)] == [False, True, False]
    # A resend of all sends the second one, and skips the others; its page follows the job.
    with browser.navigation():
        browser.click("form[action$='/resend-all'] button")
    with browser.navigation():
        browser.click("main button.primary")
    with browser.navigation():
        browser.click("[role=status] a")
    browser.until("document.querySelector('#job-state h2').innerText === 'Done'")
    assert browser.ask("document.querySelector('#job-queues tbody tr').cells[4].innerText") == "1"
    assert browser.ask(OUTSIDE) == []
    assert len(site.broker.messages(retries)) == LETTER_COUNT
    assert_quiet(browser, site.operating.url)


def test_a_reset_is_refused_if_a_queue_has_moved_since_the_preview(
    browser: Browser, site: Site
) -> None:
    log_in(browser, f"{site.operating.url}groups/{GROUP}")
    # Nothing is chosen, least of all to skip all messages: the form cannot be sent.
    form = "document.querySelector(\"form[action$='/reset']\")"
    assert browser.ask(f"[{form}.to.value, {form}.checkValidity()]") == ["", False]
    browser.ask(f"{form}.to.value = 'end'")
    with browser.navigation():
        browser.click("form[action$='/reset'] button")
    preview = "document.querySelector('tbody').innerText"
    assert "broker-a:0" in browser.ask(preview)
    moved = {0: 5_000, 1: CONSUMER_OFFSETS[1]}
    asyncio.run(console_site.commit(site.broker, moved))
    with browser.navigation():
        browser.click("main button.primary")
    assert browser.statuses()[-1] == 409
    refusal = browser.ask("document.querySelector('[role=alert]').innerText")
    assert "broker-a:0 was 10 and is 5,000" in refusal
    assert asyncio.run(console_site.committed(site.broker)) == moved
    assert site.operating.entries()[-1]["outcome"] == "refused"
    # The refusal has the preview of now, which can be confirmed.
    with browser.navigation():
        browser.click("main button.primary")
    assert "Done" in browser.ask("document.querySelector('[role=status]').innerText")
    ends = asyncio.run(console_site.committed(site.broker))
    assert sum(ends.values()) == MESSAGE_COUNT
    assert site.operating.entries()[-1]["outcome"] == "done"


def test_a_console_works_with_a_proxy_and_a_prefix(
    browser: Browser, site: Site, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as running:
        console = running.enter_context(site.console(tmp_path, "--root-path", "/mq"))
        plain = console.url.removesuffix("mq/")
        url = running.enter_context(prefix_proxy(plain, "/mq"))
        log_in(browser, url)
        assert browser.ask("location.pathname") == "/mq/"
        with browser.navigation():
            browser.click("nav a[href='/mq/audit']")
        with browser.navigation():
            browser.click(".themes button[value=light]")
        assert browser.ask("location.pathname") == "/mq/audit"
        links = browser.ask("[...document.links].map((link) => link.pathname)")
        assert [link for link in links if not link.startswith("/mq/")] == []
        assert_quiet(browser, url)
