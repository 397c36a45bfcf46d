"""Files of access control 1.0: content and errors. Java's reading is in tests/interop."""

import pytest
from hypothesis import given, strategies as st

from reput.broker.access import plain_accounts
from reput.broker.access.plain_accounts import Permission, merge, parse
from reput.errors import InvalidOption
from reput.format.bodies import DataVersion

ACCOUNT = "accounts:\n- accessKey: some-user\n  secretKey: some-secret\n"
HIDDEN = "hidden"


def test_a_file_has_accounts_white_addresses_and_a_version() -> None:
    data = b"""\
globalWhiteRemoteAddresses: [10.0.3.*, '']
accounts:
- accessKey: some-user
  secretKey: 12345678
  whiteRemoteAddress: 10.0.4.7
  admin: true
  defaultTopicPerm: PUB|SUB
  topicPerms: [A=DENY, "%RETRY%h=PUB"]
  groupPerms: [g=SUB]
- {accessKey: other-user, secretKey: other-secret}
dataVersion: [{counter: 3, timestamp: 1795348485949}]
"""
    file = parse(data, "f.yml")
    first, second = file.accounts
    assert (first.access_key, first.secret_key.reveal(), first.is_admin) == (
        "some-user", "12345678", True
    )  # fmt: skip
    assert first.default_topic == Permission.PUB | Permission.SUB
    assert first.default_group == Permission.DENY
    assert first.permissions == {
        "A": Permission.DENY, "%RETRY%h": Permission.PUB, "%RETRY%g": Permission.SUB
    }  # fmt: skip
    assert first.white_addresses.contains("10.0.4.7")
    assert not second.is_admin
    assert second.permissions == {}
    assert second.default_topic == Permission.DENY
    assert file.white_texts == ("10.0.3.*",)
    assert file.version == DataVersion(counter=3, timestamp=1795348485949)


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "~", "accounts:\n", "\ufeffaccounts: []"])
def test_an_empty_file_has_nothing(text: str) -> None:
    assert parse(text.encode(), "f.yml") == plain_accounts.PlainFile("f.yml")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("acounts: []", 1, "globalWhiteRemoteAddresses, accounts, dataVersion"),
        ("accounts: []\naccounts: []", 2, "each key once"),
        ("accounts: {}", 1, "accounts.*a list"),
        ("- a", 1, "lines `key: value`"),
        ("accounts:\n- some-user", 2, "lines `key: value`"),
        (ACCOUNT + "  topicPerm: [A=PUB]", 4, "a key.*topicPerms"),
        (ACCOUNT + "  topicPerms: A=PUB", 4, "topicPerms.*a list"),
        (ACCOUNT + "  topicPerms:\n  - A=PUB\n  - B=PUP", 6, r"'PUP'.*PUB, SUB, PUB\|SUB"),
        (ACCOUNT + "  topicPerms: [A]", 4, "a name, =, and a permission"),
        (ACCOUNT + "  topicPerms: [A=B=PUB]", 4, "a name, =, and a permission"),
        (ACCOUNT + "  groupPerms: [[g]]", 4, "groupPerms.*a text"),
        (ACCOUNT + "  defaultGroupPerm: ALL", 4, "defaultGroupPerm.*'ALL'"),
        (ACCOUNT + "  admin: maybe", 4, "true or false"),
        (ACCOUNT + "  whiteRemoteAddress: 10.0.3", 4, r"whiteRemoteAddress.*10\.0\.3\.7"),
        ("globalWhiteRemoteAddresses:\n- 10.0.3.7\n- 10.0.3.1-300", 3, "10.0.3.1-300"),
        ("accounts:\n- accessKey: short1\n  secretKey: some-secret", 2, "'short1'.*7 characters"),
        ("accounts:\n- accessKey: some-user\n  secretKey: short", 3, r"\*\*\*.*7 characters"),
        ("accounts:\n- accessKey: some-user", 2, "secretKey.*None.*7 characters"),
        ("accounts:\n- accessKey: some-user\n  secretKey: 1.5e+99999", 3, "in quotes"),
        (ACCOUNT + "dataVersion: [{counter: many}]", 4, "counter.*a whole number"),
        (ACCOUNT + "\tadmin: true", 4, "YAML"),
        ("accounts: [}", 1, "YAML"),
        ("accounts: *nothing", 1, "YAML"),
        ("a: !!python/object:os.system x", 1, "a key"),
    ],
)
def test_errors_name_the_line_and_what_is_allowed(text: str, line: int, problem: str) -> None:
    with pytest.raises(InvalidOption, match=rf"f\.yml, line {line}.*{problem}"):
        parse(text.encode(), "f.yml")


@pytest.mark.parametrize(
    "secret", [f"*{HIDDEN}", f"&{HIDDEN}\n  x", f"!{HIDDEN} x", f"[{HIDDEN}]", f"{HIDDEN}: x",
               HIDDEN, f"'{HIDDEN}", f"!!binary {HIDDEN}",
               f"{HIDDEN}\0", f"%{HIDDEN}", f"@{HIDDEN}"]
)  # fmt: skip
def test_no_error_shows_a_secret(secret: str) -> None:
    text = f"accounts:\n- accessKey: some-user\n  secretKey: {secret}\n"
    with pytest.raises(InvalidOption) as refused:
        parse(text.encode(), "f.yml")
    assert HIDDEN not in str(refused.value)
    assert HIDDEN not in repr(refused.value)
    assert refused.value.__cause__ is None


def test_accounts_that_are_shown_have_no_secret() -> None:
    assert "some-secret" not in repr(merge([parse(ACCOUNT.encode(), "f.yml")]))


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"accounts: \x80", b"[" * 100_000])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidOption, match=r"f\.yml"):
        parse(data, "f.yml")


def test_the_first_account_of_an_access_key_counts() -> None:
    files = [
        parse(ACCOUNT.replace("some-secret", secret).encode(), f"{secret}.yml")
        for secret in ("secret-1", "secret-2")
    ]
    merged = merge(files)
    assert merged.accounts["some-user"].secret_key.reveal() == "secret-1"
    assert merged.paths == {"some-user": "secret-1.yml"}
    assert merged.repeated == (("some-user", "secret-2.yml"),)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=7)


@given(TEXTS, TEXTS, st.booleans())
def test_what_is_written_is_read(access_key: str, secret_key: str, admin: bool) -> None:
    entry = {"accessKey": access_key, "secretKey": secret_key, "admin": admin}
    (account,) = parse(plain_accounts.dump_yaml({"accounts": [entry]}), "f.yml").accounts
    assert account.access_key == access_key
    assert account.secret_key.reveal() == secret_key
    assert account.is_admin == admin


@given(
    st.binary(max_size=200) | st.text("ab:-[]{},&*!|>'\"% \n\t#?~0", max_size=80).map(str.encode)
)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse(data, "f.yml")
    except InvalidOption as error:
        assert "f.yml" in str(error)  # noqa: PT017 - it may be raised
