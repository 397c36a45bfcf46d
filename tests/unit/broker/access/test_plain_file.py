"""Files of access control 1.0: loading, reloading and updating them."""

import logging
import stat
from pathlib import Path

import pytest

from reput.broker.access.plain_accounts import load_yaml
from reput.broker.access.plain_file import RELOAD_MS, PlainFiles
from reput.errors import InvalidOption, WriteFailed

ACCOUNT = "- accessKey: {0}\n  secretKey: secret-of-{0}\n"
NOW_MS = 1_795_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "conf/acl/deeper").mkdir(parents=True)
    write(tmp_path / "conf/plain_acl.yml", "first-user")
    return tmp_path


def write(path: Path, *access_keys: str) -> None:
    path.write_text("accounts:\n" + "".join(map(ACCOUNT.format, access_keys)))


@pytest.fixture
def files(home: Path) -> PlainFiles:
    files = PlainFiles(str(home))
    files.load(0)
    return files


def names(files: PlainFiles) -> list[str]:
    return sorted(files.accounts.accounts)


def test_all_files_are_read_and_the_default_one_last(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(home / "conf/acl/b.yaml", "first-user", "user-b1")
    write(home / "conf/acl/deeper/c.yml", "user-c1")
    (home / "conf/acl/..data").mkdir()
    write(home / "conf/acl/..data/hidden.yml", "hidden-user")
    write(home / "conf/acl/notes.txt", "no-user")
    write(home / "conf/tools.yml", "tool-user")
    files = PlainFiles(str(home))
    files.load(0)
    assert names(files) == ["first-user", "user-b1", "user-c1"]
    assert files.accounts.paths["first-user"] == str(home / "conf/acl/b.yaml")
    assert "'first-user' does not count" in caplog.text


def test_no_file_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"plain_acl\.yml.*existing file"):
        PlainFiles(str(tmp_path)).load(0)


def test_the_default_file_can_have_another_name(home: Path) -> None:
    write(home / "other.yml", "other-user")
    files = PlainFiles(str(home), "other.yml")
    files.load(0)
    assert names(files) == ["other-user"]


def test_changed_new_and_deleted_files_count_after_five_seconds(
    home: Path, files: PlainFiles
) -> None:
    write(home / "conf/plain_acl.yml", "first-user", "second-user")
    assert files.reload(RELOAD_MS - 1) is None
    assert files.reload(RELOAD_MS) is files.accounts
    assert names(files) == ["first-user", "second-user"]
    write(home / "conf/acl/a.yml", "user-a1")
    files.reload(2 * RELOAD_MS)
    assert names(files) == ["first-user", "second-user", "user-a1"]
    (home / "conf/acl/a.yml").unlink()
    write(home / "conf/plain_acl.yml", "second-user")
    files.reload(3 * RELOAD_MS)
    assert names(files) == ["second-user"]
    assert files.reload(4 * RELOAD_MS) is None


def test_a_file_that_cannot_be_read_leaves_the_accounts_and_is_logged_once(
    home: Path, files: PlainFiles, caplog: pytest.LogCaptureFixture
) -> None:
    path = home / "conf/plain_acl.yml"
    for turn in range(1, 4):
        path.write_text("accounts:\n- accessKey: short\n")
        assert files.reload(turn * RELOAD_MS) is None
    (home / "conf/acl/a.yml").write_text("accounts: [}")
    files.reload(4 * RELOAD_MS)
    path.unlink()
    (home / "conf/acl/a.yml").unlink()
    files.reload(5 * RELOAD_MS)
    assert names(files) == ["first-user"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 3
    write(path, "third-user")
    files.reload(6 * RELOAD_MS)
    assert names(files) == ["third-user"]


def test_an_update_keeps_order_mode_and_what_it_does_not_change(
    home: Path, files: PlainFiles
) -> None:
    path = home / "conf/plain_acl.yml"
    path.write_text(
        "dataVersion: [{counter: 3, timestamp: 5}]\n"
        "globalWhiteRemoteAddresses: [10.0.3.*]\n"
        "accounts:\n"
        "- {secretKey: 12345678, accessKey: 87654321, topicPerms: [A=PUB], admin: true}\n"
        + ACCOUNT.format("last-user")
    )
    path.chmod(0o640)
    files.load(0)
    files.put_account("87654321", {"admin": False, "defaultTopicPerm": "SUB"}, NOW_MS)
    content = load_yaml(path.read_bytes())
    assert list(content) == ["dataVersion", "globalWhiteRemoteAddresses", "accounts"]
    assert content["dataVersion"] == [{"counter": 4, "timestamp": NOW_MS}]
    assert list(content["accounts"][0].items()) == [
        ("secretKey", 12345678),
        ("accessKey", 87654321),
        ("topicPerms", ["A=PUB"]),
        ("admin", False),
        ("defaultTopicPerm", "SUB"),
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert not files.accounts.accounts["87654321"].is_admin
    assert files.reload(RELOAD_MS) is None  # an own update is no change


def test_a_new_account_goes_to_the_default_file_and_a_change_to_its_own(
    home: Path, files: PlainFiles
) -> None:
    write(home / "conf/acl/a.yml", "user-a1")
    (home / "conf/plain_acl.yml").unlink()
    files.load(0)
    files.put_account("new-user", {"secretKey": "1e1234567"}, NOW_MS)
    files.put_account("user-a1", {"secretKey": "other-secret"}, NOW_MS)
    default = home / "conf/plain_acl.yml"
    assert stat.S_IMODE(default.stat().st_mode) == 0o600
    assert "new-user" in default.read_text()
    assert "other-secret" in (home / "conf/acl/a.yml").read_text()
    again = PlainFiles(str(home))
    assert again.load(0).accounts == files.accounts.accounts
    assert again.accounts.accounts["new-user"].secret_key.reveal() == "1e1234567"


def test_a_deleted_account_is_gone_from_all_files(home: Path, files: PlainFiles) -> None:
    write(home / "conf/acl/a.yml", "first-user", "first-user", "user-a1")
    files.load(0)
    assert files.delete_account("first-user", NOW_MS)
    assert names(files) == ["user-a1"]
    assert not files.delete_account("first-user", NOW_MS)
    assert "first-user" not in (home / "conf/plain_acl.yml").read_text()


def test_white_addresses_are_changed_in_a_loaded_file_only(home: Path, files: PlainFiles) -> None:
    assert files.put_white_addresses(["10.0.3.*"], "", NOW_MS)
    assert files.accounts.white_addresses.contains("10.0.3.7")
    stranger = home / "stranger.yml"
    stranger.write_text("a: b\n")
    for path in (stranger, home / "conf/../stranger.yml", home / "conf/acl/new.yml"):
        assert not files.put_white_addresses(["*"], str(path), NOW_MS)
    assert stranger.read_text() == "a: b\n"
    assert files.put_white_addresses([], files.default_path, NOW_MS)
    assert not files.accounts.white_addresses


def test_a_wrong_update_changes_nothing(home: Path, files: PlainFiles) -> None:
    path = home / "conf/plain_acl.yml"
    before = path.read_bytes()
    with pytest.raises(InvalidOption, match=r"10\.0\.3"):
        files.put_white_addresses(["10.0.3"], "", NOW_MS)
    with pytest.raises(InvalidOption, match="secretKey") as refused:
        files.put_account("first-user", {"secretKey": "short"}, NOW_MS)
    assert "short" not in str(refused.value)
    assert path.read_bytes() == before
    path.write_text("accounts: [}")
    with pytest.raises(InvalidOption, match="YAML"):
        files.delete_account("first-user", NOW_MS)
    assert path.read_text() == "accounts: [}"
    assert names(files) == ["first-user"]


def test_a_file_that_cannot_be_written_stays(home: Path, files: PlainFiles) -> None:
    (home / "conf/plain_acl.yml").unlink()
    (home / "conf/plain_acl.yml").mkdir()
    with pytest.raises((InvalidOption, WriteFailed)):
        files.put_account("first-user", {"admin": True}, NOW_MS)
    assert not files.accounts.accounts["first-user"].is_admin


def test_a_link_is_followed(home: Path, files: PlainFiles) -> None:
    path, target = home / "conf/plain_acl.yml", home / "elsewhere.yml"
    path.rename(target)
    path.symlink_to(target)
    files.put_account("first-user", {"admin": True}, NOW_MS)
    assert path.is_symlink()
    assert "admin: true" in target.read_text()
