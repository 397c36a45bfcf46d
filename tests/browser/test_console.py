"""The console in a real browser: access, layout, and what people do with its pages."""

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
from browser.console_site import PASSWORDS, Site
from browser.driver import Browser
from browser.prefix_proxy import prefix_proxy
from reput.console.app import CHANGES, ROUTES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]

WIDTHS = {"desktop": 1280, "phone": 400}
PAGES = (
    *("", "topics", "topics/Orders", "groups", "groups/billing", "brokers", "brokers/broker-a"),
    *("messages", "messages?topic=Orders&rows=80", "messages/{message}", "dlq", "dlq/billing"),
    *("stores", "audit"),
)
"""Pages, as paths below the console; ``{message}`` is the one with the hostile contents."""


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
        pytest.skip(f"no {name}: its file axe.min.js checks the accessibility")
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


@pytest.mark.parametrize("page", PAGES)
def test_a_read_only_console_has_no_buttons_of_changes(
    browser: Browser, site: Site, page: str
) -> None:
    browser.open(site.url(page))
    forms = "[...document.forms].map((form) => [form.method, new URL(form.action).pathname])"
    posts = {path for method, path in browser.ask(forms) if method == "post"}
    assert posts == {"/theme"}
    assert "read-only" in browser.ask("document.querySelector('.mode').textContent")


@pytest.mark.parametrize("path", CHANGES)
def test_a_read_only_console_has_no_changes(browser: Browser, site: Site, path: str) -> None:
    browser.open(site.read_only.url)
    token = browser.ask("document.querySelector('[name=csrf]').value")
    place = path.replace("{topic}", console_site.TOPIC).replace("{group}", console_site.GROUP)
    status = browser.ask(
        f"fetch({json.dumps(place)}, {{method: 'POST', body: new URLSearchParams("
        f"{{csrf: {json.dumps(token)}}})}}).then((response) => response.status)"
    )
    assert status == 404


# --- layout -------------------------------------------------------------------------------------


def test_every_page_is_in_the_list() -> None:
    """A new page must be seen in a browser, too."""
    paths = {f"/{page.partition('?')[0]}" for page in PAGES}
    patterns = {path: re.compile(re.sub(r"{\w+}", "[^/]+", path)) for path in ROUTES}
    unseen = [
        path
        for path, pattern in patterns.items()
        if path not in paths and not any(map(pattern.fullmatch, paths - {*ROUTES}))
    ]
    assert unseen == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_light_and_dark_on_a_desk_and_a_phone(
    browser: Browser, site: Site, page: str
) -> None:
    url = site.url(page)
    for scheme, (name, width) in zip(("light", "dark"), WIDTHS.items(), strict=True):
        browser.open(url, width, scheme)
        assert browser.ask("document.documentElement.scrollWidth") <= width, name
        outside = (
            "[...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, "
            "thead, svg, .sr') && one.getBoundingClientRect().right > innerWidth + 1)"
            ".map((one) => one.outerHTML.slice(0, 100))"
        )
        assert browser.ask(outside) == [], name
        background = browser.ask("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in background[4:-1].split(",")) / 3
        assert brightness < 60 if scheme == "dark" else brightness > 200
        assert browser.ask("document.querySelectorAll('h1').length") == 1
        assert_quiet(browser, url)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_the_same_without_javascript(browser: Browser, site: Site, page: str) -> None:
    url = site.url(page)
    heads = "[...document.querySelectorAll('h1, h2, caption, th')].map((one) => one.textContent)"
    browser.open(url)
    expected = browser.ask(heads)
    browser.open(url, scripts=False)
    assert browser.ask(heads) == expected
    assert_quiet(browser, url)


def test_a_user_logs_in_and_chooses_colors_without_javascript(browser: Browser, site: Site) -> None:
    log_in(browser, site.operating.url, scripts=False)
    with browser.navigation():
        browser.click(".themes button[value=dark]")
    assert browser.ask("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert browser.ask("document.querySelector('.user') !== null")


@pytest.mark.parametrize("page", [*PAGES, "login"])
def test_a_page_is_accessible(browser: Browser, site: Site, axe: str, page: str) -> None:
    for scheme in ("light", "dark"):
        browser.open(site.url(page), scheme=scheme)
        assert browser.violations(axe) == [], scheme


# --- journeys -----------------------------------------------------------------------------------


def test_a_console_works_behind_a_proxy_with_a_prefix(
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
