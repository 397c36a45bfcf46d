"""Logging in and out, the limit of wrong passwords, and forms that another site sends."""

import base64
from collections.abc import Mapping
from pathlib import Path

import pytest

from asgi import Answer, call
from reput.clock import ManualClock
from reput.console import sessions
from reput.console.access import Proxy
from reput.console.app import Console
from reput.console.parts import ConsoleParts
from reput.console.users import BadUsers, load, make, save

SAME_SITE = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8080"}
PASSWORD = "correct horse"


@pytest.fixture
def console(parts_with_users: ConsoleParts) -> Console:
    return Console(parts_with_users)


def token_of(answer: Answer) -> str:
    _, _, rest = answer.text.partition('name="csrf" value="')
    return rest.partition('"')[0]


async def log_in(
    console: Console,
    password: str = PASSWORD,
    *,
    name: str = "ann",
    headers: Mapping[str, str] = SAME_SITE,
    token: str | None = None,
    to: str = "/audit",
) -> Answer:
    if token is None:
        token = token_of(await call(console, "/login"))
    form = {"name": name, "password": password, "csrf": token, "to": to}
    return await call(console, "/login", method="POST", headers=headers, form=form)


def cookie_of(answer: Answer) -> dict[str, str]:
    return {"cookie": answer.header("set-cookie").partition(";")[0]}


async def test_a_page_without_login_leads_to_the_login(console: Console) -> None:
    answer = await call(console, "/audit?q=a")
    assert answer.status == 303
    assert answer.header("location") == "/login?to=%2Faudit%3Fq%3Da"
    assert (await call(console, "/audit?format=json")).status == 401


async def test_a_login_leads_back_and_its_cookie_opens_pages(console: Console) -> None:
    answer = await log_in(console)
    assert answer.status == 303
    assert answer.header("location") == "/audit"
    flags = answer.header("set-cookie")
    assert "HttpOnly" in flags
    assert "SameSite=lax" in flags
    page = await call(console, "/audit", headers=cookie_of(answer))
    assert page.status == 200
    assert "ann" in page.text


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example/", "/\\evil.example", ""])
async def test_a_login_never_leads_to_another_site(console: Console, to: str) -> None:
    assert (await log_in(console, to=to)).header("location") == "/"


async def test_a_session_ends_at_logout_and_after_twelve_hours(
    console: Console, clock: ManualClock
) -> None:
    first, second = cookie_of(await log_in(console)), cookie_of(await log_in(console))
    page = await call(console, "/audit", headers=first)
    form = {"csrf": token_of(page)}
    out = await call(console, "/logout", method="POST", headers={**SAME_SITE, **first}, form=form)
    assert out.header("location") == "/login"
    assert (await call(console, "/audit", headers=first)).status == 303
    assert (await call(console, "/audit", headers=second)).status == 200
    clock.advance(sessions.LIFETIME_MS)
    assert (await call(console, "/audit", headers=second)).status == 303


@pytest.mark.parametrize(
    ("name", "password"), [("ann", "wrong"), ("nobody", PASSWORD), ("vic", ""), ("vic", "-")]
)
async def test_a_wrong_login_is_refused_and_written_down(
    console: Console, parts: ConsoleParts, name: str, password: str
) -> None:
    answer = await log_in(console, password, name=name)
    assert answer.status == 401
    assert "the name or the password is wrong" in answer.text
    (entry,) = parts.audit.newest()
    assert (entry.user, entry.action, entry.outcome) == (name, "login", "refused")


async def test_after_five_wrong_passwords_an_address_waits(
    console: Console, clock: ManualClock
) -> None:
    for _ in range(sessions.WRONG_COUNT_MAX):
        assert (await log_in(console, "wrong")).status == 401
    answer = await log_in(console)
    assert answer.status == 429
    assert "wait 60 s" in answer.text
    clock.advance(sessions.WRONG_WINDOW_MS)
    assert (await log_in(console)).status == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1:8080"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {},
    ],
)
async def test_a_form_of_another_site_is_refused(
    console: Console, headers: Mapping[str, str]
) -> None:
    answer = await log_in(console, headers=headers)
    assert answer.status == 403
    assert "set-cookie" not in dict(answer.headers)


async def test_a_form_without_the_token_of_its_session_is_refused(
    console: Console, parts: ConsoleParts
) -> None:
    assert (await log_in(console, token="0" * 64)).status == 403
    cookie = cookie_of(await log_in(console))
    stale = token_of(await call(console, "/login"))  # without a session
    answer = await call(
        console, "/logout", method="POST", headers={**SAME_SITE, **cookie}, form={"csrf": stale}
    )
    assert answer.status == 403
    (entry,) = parts.audit.newest()
    assert (entry.user, entry.action, entry.outcome) == ("ann", "/logout", "refused")


async def test_scripts_send_the_password_with_a_request(
    console: Console, parts: ConsoleParts
) -> None:
    def basic(text: str) -> dict[str, str]:
        return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}

    url = "/audit?format=json"
    assert (await call(console, url, headers=basic(f"ann:{PASSWORD}"))).status == 200
    assert (await call(console, url, headers=basic("ann:wrong"))).status == 401
    assert (await call(console, url, headers={"authorization": "Basic ???"})).status == 401
    (entry,) = parts.audit.newest()
    assert entry.action == "login"


async def test_a_proxy_names_users_from_its_address_only(parts_with_users: ConsoleParts) -> None:
    parts_with_users.proxy = Proxy(frozenset({"10.0.0.1"}))
    console = Console(parts_with_users)
    by_ann = {"x-forwarded-user": "ann"}
    assert (await call(console, "/audit", headers=by_ann, client="10.0.0.1")).status == 200
    assert (await call(console, "/audit", headers=by_ann, client="10.0.0.2")).status == 303
    unknown = await call(console, "/audit", headers={"x-forwarded-user": "x"}, client="10.0.0.1")
    assert unknown.status == 403
    assert (await call(console, "/audit", client="10.0.0.1")).status == 403


async def test_a_header_that_a_proxy_has_not_replaced_is_refused(
    parts_with_users: ConsoleParts,
) -> None:
    parts_with_users.proxy = Proxy(frozenset({"10.0.0.1"}))
    console = Console(parts_with_users)
    twice = {"x-forwarded-user": "vic", "X-Forwarded-User": "ann"}
    answer = await call(console, "/audit", headers=twice, client="10.0.0.1")
    assert answer.status == 403
    assert "is there 2 times" in answer.text


async def test_cookies_need_tls_with_a_proxy_that_has_tls(parts_with_users: ConsoleParts) -> None:
    parts_with_users.is_https = True
    console = Console(parts_with_users)
    form = {"csrf": token_of(await call(console, "/login")), "name": "ann", "password": PASSWORD}
    entered = await call(console, "/login", method="POST", headers=SAME_SITE, form=form)
    assert "; Secure" in entered.header("set-cookie")


async def test_the_theme_is_kept_in_a_cookie(console: Console) -> None:
    form = {"csrf": token_of(await call(console, "/login")), "theme": "dark", "to": "/login"}
    answer = await call(console, "/theme", method="POST", headers=SAME_SITE, form=form)
    page = await call(console, "/login", headers=cookie_of(answer))
    assert 'data-theme="dark"' in page.text


def test_a_users_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "users"
    accounts = [
        make("ann", "admin", PASSWORD),
        make("bob", "reader", None, topics=("Orders*", "B?"), groups=("g-*",)),
    ]
    save(path, {account.user.name: account for account in accounts})
    assert load(path) == {account.user.name: account for account in accounts}
    assert path.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in path.read_text()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("ann admin", "allowed is NAME ROLE HASH"),
        ("ann king -", "role 'king': allowed is viewer, reader, operator, admin"),
        ("a/b admin -", "name 'a/b': allowed are 1 to 64"),
        ("ann admin md5$x", "the hash is not scrypt"),
        ("ann admin scrypt$1073741824$8$1$YQ==$YQ==", "the hash is not scrypt"),
        ("ann admin - topic=x", "allowed are topics=PATTERNS"),
        ("bob admin -", "user bob is there twice"),
    ],
)
def test_a_wrong_line_of_the_users_file_is_named(tmp_path: Path, line: str, text: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"# users\nbob viewer -\n{line}\n")
    with pytest.raises(BadUsers, match="line 3: ") as caught:
        load(path)
    assert text in str(caught.value)
