"""``reput access`` against brokers with access control 2.0."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from access_broker import ROOT, ROOT_PASSWORD, access_broker, client_of
from reput.cli import access
from reput.client import Message, blocking
from reput.client.core.retry import SendFailed
from reput.secret import Secret
from reput.testing.local_broker import LocalBroker
from wire_command import Command

PASSWORD = "word of a user"


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalBroker]:
    """Start a broker that all tests of this module share; each has separate users."""
    with access_broker("Orders", authorizationEnabled="true") as running:
        yield running


@pytest.fixture(scope="module")
def target() -> Iterator[LocalBroker]:
    """Start a broker to copy to."""
    with access_broker() as running:
        yield running


@pytest.fixture
def command(
    secured: LocalBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Commands of the super user; the password of new users is in the environment."""
    sign_as(monkeypatch, ROOT, ROOT_PASSWORD)
    monkeypatch.setenv("REPUT_USER_PASSWORD", PASSWORD)
    return Command(secured.namesrv_addr, capsys)


def sign_as(monkeypatch: pytest.MonkeyPatch, user: str, password: str) -> None:
    monkeypatch.setenv("REPUT_ACCESS_KEY", user)
    monkeypatch.setenv("REPUT_SECRET_KEY", password)


def password_of(broker: LocalBroker, user: str) -> Secret:
    """Return the password that the broker has."""
    with blocking.Admin(client=client_of(broker, ROOT, ROOT_PASSWORD)) as admin:
        known = admin.user(user)
    assert known is not None
    return known.password


def send(broker: LocalBroker, user: str, topic: str) -> None:
    with blocking.Producer("p", client=client_of(broker, user, PASSWORD)) as producer:
        producer.send(Message(topic, b"x"))


def row(user: str, type_: str = "Normal", status: str = "enable") -> dict[str, str]:
    return {"broker_name": "broker-a", "user": user, "type": type_, "status": status}


# --- users ------------------------------------------------------------------------------


def test_a_user_is_created_changed_and_deleted(
    command: Command, secured: LocalBroker, tmp_path: Path
) -> None:
    assert command.json("access", "user", "create", "ann") == {"users": [row("ann")]}
    assert password_of(secured, "ann") == Secret(PASSWORD)
    assert command.json("access", "user", "get", "ann") == {"users": [row("ann")]}
    changed = command.json("access", "user", "update", "ann", "--status", "disable")
    assert changed == {"users": [row("ann", status="disable")]}
    assert password_of(secured, "ann") == Secret(PASSWORD)
    file = tmp_path / "password"
    file.write_text("word of a file\n")
    changed = command.json(
        "access", "user", "update", "ann", "--type", "super", "--password-file", file
    )
    assert changed == {"users": [row("ann", "Super", "disable")]}
    assert password_of(secured, "ann") == Secret("word of a file")
    preview = command.json("access", "user", "delete", "ann")
    assert preview == {"is_deleted": False, "users": [row("ann", "Super", "disable")]}
    assert command.json("access", "user", "delete", "ann", "--yes")["is_deleted"]
    assert "no broker has user ann" in command.complaint("access", "user", "get", "ann")


def test_users_are_listed_without_passwords(command: Command) -> None:
    command("access", "user", "create", "ben")
    listed = command.json("access", "user", "list")["users"]
    assert row("ben") in listed
    assert row(ROOT, "Super") in listed
    assert command.json("access", "user", "list", "--filter", "en") == {"users": [row("ben")]}
    outputs = [
        command("access", "user", *words, *form)
        for words in (["list"], ["get", "ben"])
        for form in ([], ["--json"])
    ]
    assert all("ben" in text for text in outputs)
    assert PASSWORD not in "".join(outputs)
    assert ROOT_PASSWORD not in "".join(outputs)


def test_a_password_is_typed_twice(
    command: Command, secured: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("access", "user", "create", "cid")
    monkeypatch.delenv("REPUT_USER_PASSWORD")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    typed = ["new word", "new word", "secret-1", "secret-2", ""]
    monkeypatch.setattr(access.getpass, "getpass", lambda prompt: typed.pop(0))
    command("access", "user", "update", "cid", "--new-password")
    for _ in range(2):
        refused = command.complaint("access", "user", "update", "cid", "--new-password")
        assert "the password is empty, or the second one is not the same" in refused
        assert "secret-" not in refused
    assert typed == []
    assert password_of(secured, "cid") == Secret("new word")


def test_no_password_and_no_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPUT_USER_PASSWORD")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert "REPUT_USER_PASSWORD" in command.complaint("access", "user", "create", "dan")


def test_no_error_has_the_password_of_a_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hidden-1\nhidden-2\n")
    refused = command.complaint("access", "user", "create", "dan", "--password-file", file)
    assert "a file whose only line is the password" in refused
    assert "hidden" not in refused


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["user", "create", ROOT], "`reput access user update`"),
        (["user", "update", "stranger", "--status", "enable"], "no broker has user stranger"),
        (["user", "update", ROOT], "give an option to change"),
        (["user", "delete", "stranger"], "no broker has user stranger"),
        (["acl", "create", ROOT, "--resource", "Topic:T"], "give an --action"),
        (["acl", "create", ROOT, "--resource", "T", "--action", "Pub"], "Topic: or Group:"),
        (["acl", "create", ROOT, "--resource", "Topic:T", "--action", "Any"], "'any'"),
        (["acl", "create", "stranger", "--resource", "*", "--action", "Pub"], "no user stranger"),
        (["acl", "update", ROOT, "--resource", "Topic:T", "--deny"], "no rule of Topic:T"),
        (["acl", "update", ROOT, "--resource", "Topic:T"], "give an option to change"),
        (["acl", "delete", ROOT, "--resource", "Topic:T"], "no Custom rule of Topic:T"),
        (["acl", "get", "stranger"], "no user stranger"),
    ],
)
def test_refusals_are_one_line(command: Command, words: list[str], text: str) -> None:
    assert text.lower() in command.complaint("access", *words).lower()


def test_a_super_user_changes_its_own_password(
    command: Command, secured: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("access", "user", "create", "ida", "--type", "Super")
    sign_as(monkeypatch, "ida", PASSWORD)
    monkeypatch.setenv("REPUT_USER_PASSWORD", "another word")
    changed = command.json("access", "user", "update", "ida", "--new-password")
    assert changed == {"users": [row("ida", "Super")]}
    assert password_of(secured, "ida") == Secret("another word")


# --- rules ------------------------------------------------------------------------------


def test_rules_decide_what_a_user_may_do(command: Command, secured: LocalBroker) -> None:
    command("access", "user", "create", "eve")
    with pytest.raises(SendFailed, match="no permission for Topic:Orders"):
        send(secured, "eve", "Orders")
    created = command.json(
        *("access", "acl", "create", "eve", "--resource", "Topic:Orders"),
        *("--resource", "Group:p*", "--action", "Pub", "--action", "sub"),
    )
    rule = {
        "broker_name": "broker-a",
        "user": "eve",
        "policy": "Custom",
        "resource": "Topic:Orders",
        "actions": ["Pub", "Sub"],
        "decision": "Allow",
        "sources": [],
    }
    of_group = {**rule, "resource": "Group:p*"}
    assert created == {"rules": [rule, of_group]}
    send(secured, "eve", "Orders")
    again = ("--resource", "topic:Orders", "--action", "Pub")
    exists = "already has a rule of Topic:Orders"
    assert exists in command.complaint("access", "acl", "create", "eve", *again)

    changed = command.json(
        "access", "acl", "update", "eve", "--resource", "Topic:Orders", "--source", "10.0.0.0/8"
    )
    narrow = {**rule, "sources": ["10.0.0.0/8"]}
    assert changed == {"rules": [narrow, of_group]}
    with pytest.raises(SendFailed, match="no permission for Topic:Orders"):
        send(secured, "eve", "Orders")
    denied = command.json("access", "acl", "update", "eve", "--resource", "Group:p*", "--deny")
    of_group["decision"] = "Deny"
    assert denied == command.json("access", "acl", "get", "eve") == {"rules": [narrow, of_group]}

    by_resource = ("access", "acl", "list", "--filter", "eve", "--resource", "Orders")
    assert command.json(*by_resource) == {"rules": [narrow]}
    preview = command.json("access", "acl", "delete", "eve", "--resource", "Group:p*")
    assert preview == {"is_deleted": False, "rules": [of_group]}
    command("access", "acl", "delete", "eve", "--resource", "Group:p*", "--yes")
    assert command.json("access", "acl", "get", "eve") == {"rules": [narrow]}
    command("access", "acl", "delete", "eve", "--yes")
    assert command.json("access", "acl", "get", "eve") == {"rules": []}


def test_default_rules_are_separate(command: Command) -> None:
    command("access", "user", "create", "fay")
    rule = ("--resource", "Topic:Orders", "--action", "Pub")
    command("access", "acl", "create", "fay", *rule)
    command("access", "acl", "create", "fay", *rule, "--policy", "Default", "--deny")
    rules = command.json("access", "acl", "get", "fay")["rules"]
    assert {(entry["policy"], entry["decision"]) for entry in rules} == {
        ("Custom", "Allow"), ("Default", "Deny")
    }  # fmt: skip
    command("access", "acl", "delete", "fay", *rule[:2], "--policy", "Default", "--yes")
    (left,) = command.json("access", "acl", "get", "fay")["rules"]
    assert left["policy"] == "Custom"


# --- copies -----------------------------------------------------------------------------


def test_users_and_rules_are_copied(
    command: Command, secured: LocalBroker, target: LocalBroker
) -> None:
    command("access", "user", "create", "gil", "--status", "disable")
    command("access", "acl", "create", "gil", "--resource", "Topic:Orders", "--action", "All")
    way = ("gil", "--from", secured.broker_addr, "--to", target.broker_addr)
    missing = command.complaint("access", "acl", "copy", *way)
    assert "`reput access user copy`" in missing
    preview = command.json("access", "user", "copy", *way)
    assert not preview["is_done"]
    assert [user["is_new"] for user in preview["users"]] == [True]
    command("access", "user", "copy", *way, "--yes")
    assert password_of(target, "gil") == Secret(PASSWORD)
    command("access", "user", "update", "gil", "--status", "enable")
    (copied,) = command.json("access", "user", "copy", *way, "--yes")["users"]
    assert (copied["status"], copied["is_new"]) == ("enable", False)
    command("access", "acl", "copy", *way, "--yes")
    (user,) = command.json("access", "user", "get", "gil", "--broker", target.broker_addr)["users"]
    assert user["status"] == "enable"
    (rule,) = command.json("access", "acl", "get", "gil", "--broker", target.broker_addr)["rules"]
    assert (rule["resource"], rule["actions"]) == ("Topic:Orders", ["All"])


def test_only_super_users_copy_users(
    command: Command, secured: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("access", "user", "create", "hal")
    command("access", "acl", "create", "hal", "--resource", "Cluster:*", "--action", "All")
    sign_as(monkeypatch, "hal", PASSWORD)
    way = ("hal", "--from", secured.broker_addr, "--to", secured.broker_addr)
    refused = command.complaint("access", "user", "copy", *way, "--yes")
    assert "--access-key must be that of a super user" in refused


def test_a_stranger_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_as(monkeypatch, "stranger", "x")
    command("access", "user", "list", code=2)
    assert "does not know access key stranger" in command.notes
