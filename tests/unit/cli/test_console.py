"""``reput console``: its options, its users, and the console of ``reput up``."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ports import free_port
from reput.cli.console import Role
from reput.cli.main import run
from reput.console.access import ROLES
from reput.console.users import load


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--listen", "0.0.0.0:0"], "an address of loopback; any with --users or --insecure"),
        (["--listen", "8080"], "allowed: HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "allowed: HOST:PORT"),
        (["--allow", "all"], "allowed: operate"),
        (["--root-path", "mq"], "a path that begins with /"),
        (["--proxy", "10.0.0.7"], "a proxy of the users in --users"),
        (["--proxy", "proxy.example"], "IP addresses, separated by commas"),
        (["--users", "/nonexistent/users"], "cannot read the users file"),
    ],
)
def test_a_wrong_option_is_named(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn", reason="the console's server is not installed")
    assert run(["console", *options]) == 2
    assert text in capsys.readouterr().err


def test_a_user_is_added_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPUT_USER_PASSWORD", "correct horse")
    file = str(tmp_path / "users")
    for role in ("reader", "admin"):
        assert run(["console", "user", "add", "ann", "--users", file, "--role", role]) == 0
    proxied = ["--proxied", "--topics", "Orders*,Bills", "--groups", "b-*"]
    assert run(["console", "user", "add", "bob", "--users", file, *proxied]) == 0
    accounts = load(tmp_path / "users")
    assert {name: account.role for name, account in accounts.items()} == {
        "ann": "admin",
        "bob": "viewer",
    }
    assert accounts["bob"].user.topics == ("Orders*", "Bills")
    assert accounts["bob"].password_hash == "-"


def status_of(url: str, headers: dict[str, str]) -> int:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_proxy_of_users_sets_header_and_addresses(tmp_path: Path) -> None:
    file = str(tmp_path / "users")
    name = "ann@example.com"
    assert run(["console", "user", "add", name, "--users", file, "--proxied"]) == 0
    command = [sys.executable, "-m", "reput", "console", "-n", "127.0.0.1:1", "--users", file]
    options = ["--listen", "127.0.0.1:0", "--proxy", "127.0.0.1,::1", "--user-header", "X-User"]
    with subprocess.Popen(
        [*command, *options, "--audit", str(tmp_path / "audit.jsonl")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split("console: ")[1].strip()
            for header, status in (({"X-User": name}, 200), ({"X-User": "bob"}, 403), ({}, 403)):
                assert status_of(f"{url}topics?format=json", header) == status
        finally:
            process.terminate()


def test_a_short_password_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPUT_USER_PASSWORD", "short")
    assert run(["console", "user", "add", "ann", "--users", str(tmp_path / "users")]) == 2
    assert "allowed: 8 to 1000" in capsys.readouterr().err
    assert not (tmp_path / "users").exists()


def test_the_roles_of_the_option_are_those_of_the_console() -> None:
    assert [role.value for role in Role] == list(ROLES)


@pytest.mark.slow
def test_up_starts_a_console_that_ends_with_it(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the console's server is not installed")
    # The console's port is asked for again when it is closed: no other test may get it.
    console = str(free_port())
    ports = ["--port", "0", "--broker-port", "0", "--grpc-port", "0", "--console", console]
    process = subprocess.Popen(
        [sys.executable, "-m", "reput", "up", "--store", tmp_path / "data", "--json", *ports],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert process.stdout is not None
    try:
        addresses = json.loads(process.stdout.readline())
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", addresses["console"])
        with urllib.request.urlopen(f"{addresses['console']}?format=json") as page:
            assert json.load(page)["namesrv"] == addresses["nameServer"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(addresses["console"])
