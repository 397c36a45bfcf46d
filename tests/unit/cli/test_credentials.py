"""Credentials of commands: where they come from, and that nothing shows them."""

import sys
from pathlib import Path

import pytest
import typer.main

from reput.cli import connecting
from reput.cli.app import build_app
from reput.cli.credentials import CommandCredentials, find_credentials
from reput.errors import InvalidOption, broker_error
from reput.secret import Secret
from reput.testing.local_broker import LocalBroker
from wire_command import Command

SECRET, TOKEN = "hunter2 é=", "token2"


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "conf").mkdir()
    return tmp_path


def tools(home: Path, text: str) -> CommandCredentials:
    (home / "conf/tools.yml").write_text(text, encoding="utf-8")
    return find_credentials(None, None, {"ROCKETMQ_HOME": str(home)})


def test_nothing_given() -> None:
    assert find_credentials(None, None, {}) == CommandCredentials("", Secret(), Secret())
    assert find_credentials(None, None, {"ROCKETMQ_HOME": "/nonexistent"}) == CommandCredentials()


def test_options_and_variables(key_file: str) -> None:
    assert find_credentials("AK", key_file, {}) == CommandCredentials("AK", Secret(SECRET))
    variables = {"REPUT_SECRET_KEY": "other", "REPUT_SECURITY_TOKEN": TOKEN}
    assert find_credentials("AK", None, variables) == CommandCredentials(
        "AK", Secret("other"), Secret(TOKEN)
    )
    assert find_credentials("AK", key_file, variables) == CommandCredentials(
        "AK", Secret(SECRET), Secret(TOKEN)
    )


def test_options_win_over_the_file_of_mqadmin(home: Path, key_file: str) -> None:
    (home / "conf/tools.yml").write_text("not: [yaml", encoding="utf-8")
    environment = {"ROCKETMQ_HOME": str(home)}
    assert find_credentials("AK", key_file, environment) == CommandCredentials("AK", Secret(SECRET))


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        # Texts as SnakeYAML reads them for mqadmin: YAML 1.1.
        ("12345678", "12345678"),
        ("a b", "a b"),
        ("5f3ac2", "5f3ac2"),
        ("'it''s # \"so\" 012'", 'it\'s # "so" 012'),
        ('"012 # é" # comment', "012 # é"),
        ("x#y  # comment", "x#y"),
        ("a:b/c+d=", "a:b/c+d="),
        ("yesterday", "yesterday"),
        ('"a\\tb"', "a\tb"),
    ],
)
def test_the_file_of_mqadmin(home: Path, text: str, secret: str) -> None:
    file = f"# credentials\n---\naccessKey: rocketmq2 \n\nsecretKey:   {text}\n"
    assert tools(home, file) == CommandCredentials("rocketmq2", Secret(secret))


def test_the_file_of_mqadmin_needs_a_package(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InvalidOption, match=r"pip install '\.\[acl\]'"):
        tools(home, "accessKey: AK\nsecretKey: hunter2\n")
    assert find_credentials("AK", None, {"REPUT_SECRET_KEY": "a"}) == CommandCredentials(
        "AK", Secret("a")
    )
    assert find_credentials(None, None, {"ROCKETMQ_HOME": "/nonexistent"}) == CommandCredentials()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "other: value\n",
        "accessKey:\nsecretKey:\n",
        "accounts:\n- accessKey: AK\n  secretKey: hunter2\n",
    ],
)
def test_a_file_of_mqadmin_without_keys(home: Path, text: str) -> None:
    assert tools(home, text) == CommandCredentials()


@pytest.mark.parametrize(
    "value",
    # Numbers, dates and others of YAML 1.1, whose text in Java is another one.
    ["012345", "0x1F", "1_000", "1.5e3", "12e5", "1:30", "+7", "true", "No", "~", "2026-11-23",
     "[a]", "{a: b}", "*a", "|", "'open", "a: b", "- a", "%x", "!!binary YQ=="],
)  # fmt: skip
def test_values_that_yaml_changes_must_be_in_quotes(home: Path, value: str) -> None:
    with pytest.raises(InvalidOption, match=r"line 2.*quotes") as caught:
        tools(home, f"accessKey: AK\nsecretKey: {value}\n")
    assert value not in str(caught.value).partition("allowed")[0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("accessKey: AK\n", "both"),
        ("secretKey: hunter2\n", "both"),
        ("accessKey: AK\naccessKey: B\nsecretKey: hunter2\n", "line 2"),
        ("- accessKey: AK\n- secretKey: hunter2\n", "accessKey: NAME"),
        ("accessKey: AK\nsecretKey: [hunter2\n", "YAML"),
        ("[" * 30_000 + "hunter2", "YAML"),
    ],
)
def test_other_files_are_errors_without_the_secret(home: Path, text: str, match: str) -> None:
    with pytest.raises(InvalidOption, match=match) as caught:
        tools(home, text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("access_key", "text", "variables", "match"),
    [
        ("AK", None, {}, "--secret-key-file, REPUT_SECRET_KEY_FILE or REPUT_SECRET_KEY"),
        (None, "hunter2", {}, "REPUT_ACCESS_KEY"),
        (None, None, {"REPUT_SECRET_KEY": "hunter2"}, "REPUT_ACCESS_KEY"),
        ("AK", "", {}, "only line"),
        ("AK", "hunter2\nmore\n", {}, "only line"),
        ("AK", b"hunter2\xff", {}, "UTF-8"),
        ("AK", "hunter2" * 10_000, {}, "65536 bytes"),
    ],
)
def test_wrong_credentials_are_errors_without_the_secret(
    tmp_path: Path,
    access_key: str | None,
    text: str | bytes | None,
    variables: dict[str, str],
    match: str,
) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidOption, match=match) as caught:
        find_credentials(access_key, None if text is None else str(path), variables)
    assert "hunter2" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="No such file"):
        find_credentials("AK", str(tmp_path / "none"), {})


def test_no_option_takes_a_secret() -> None:
    """Arguments are visible to all users of a machine."""
    seen = set()

    def look(command: typer.main.TyperCommand) -> None:
        for child in getattr(command, "commands", {}).values():
            look(child)
        seen.update(name for option in command.params for name in option.opts)

    look(typer.main.get_command(build_app()))  # type: ignore[arg-type]
    words = ("secret", "token", "password")
    files, flags = {"--secret-key-file", "--password-file"}, {"--new-password"}
    assert {name for name in seen if any(word in name for word in words)} == files | flags


def test_commands_accept_credentials(
    rocketmq: LocalBroker,
    capsys: pytest.CaptureFixture[str],
    key_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = Command(rocketmq.namesrv_addr, capsys)
    given = ("--access-key", "AK", "--secret-key-file", key_file)
    assert command.json("topic", "list", *given)["topics"] is not None
    monkeypatch.setenv("REPUT_ACCESS_KEY", "AK")
    assert "REPUT_SECRET_KEY" in command.complaint("topic", "list")
    monkeypatch.setenv("REPUT_SECRET_KEY", SECRET)
    assert SECRET not in command("topic", "list") + command.notes
    out = command("bench", "produce", "Signed", "--count", "50", "--batch", "2")
    assert SECRET not in out + command.notes


def test_a_refusal_names_the_options() -> None:
    error = broker_error(16, "username cannot be null.", "127.0.0.1:10911")
    text = connecting.explained(error, "127.0.0.1:9876")
    assert "--access-key and --secret-key-file (REPUT_ACCESS_KEY)" in text
