"""Files of access control 1.0: ``conf/plain_acl.yml`` and ``conf/acl/**/*.yml``.

They are read when their times change, and written by updates. A set of files that cannot be read
as a whole leaves the accounts as they are. Nothing here runs on the event loop, and one thread at a
time: the disk thread.
"""

import contextlib
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reput.broker.access import plain_accounts
from reput.broker.access.plain_accounts import (
    ACCESS_KEY,
    ACCOUNTS,
    DATA_VERSION,
    WHITE_ADDRESSES,
    PlainAccounts,
    PlainFile,
)
from reput.errors import InvalidOption, WriteFailed
from reput.file_sync import sync_data, sync_folder

PLAIN_FILE = "conf/plain_acl.yml"
"""The default file, below the home of RocketMQ."""
FOLDER = "conf/acl"
TOOLS_FILE = "conf/tools.yml"
RELOAD_MS = 5_000
"""Interval of looking for changed files."""

_ENDINGS = (".yml", ".yaml")
_FILES_MAX = 1_000
_FILE_BYTES_MAX = 4 << 20
_NEW_MODE = 0o600

_log = logging.getLogger(__name__)


class _Mark(NamedTuple):
    """State of a file, which differs if it has changed."""

    path: str
    modified_ns: int
    byte_count: int
    inode: int


class PlainFiles:
    """The files of a broker.

    Args:
        home: The home folder of RocketMQ.
        plain_file: Path of the default file, below it.
    """

    def __init__(self, home: str, plain_file: str = PLAIN_FILE) -> None:
        self.default_path = str(Path(home, plain_file))
        self.accounts = PlainAccounts()
        """The accounts that were read last."""
        self._folder = str(Path(home, FOLDER))
        self._tools = str(Path(home, TOOLS_FILE))
        self._marks: tuple[_Mark, ...] = ()
        self._failed = b""  # digest of the content whose failure was logged
        self._looked_ms = 0

    @property
    def are_there(self) -> bool:
        """True if there is at least one."""
        return bool(self._find())

    # Reading ----------------------------------------------------------------------------------

    def load(self, now_ms: int) -> PlainAccounts:
        """Read all files.

        Raises:
            InvalidOption: There is none, or one cannot be read; the accounts stay as they are.
        """
        self._looked_ms = now_ms
        self._marks = self._find()
        return self._load(self._marks)

    def reload(self, now_ms: int) -> PlainAccounts | None:
        """Read all files if one was changed, added or removed; return None if none was.

        Files that cannot be read are logged, once per content, and leave the accounts as they are.
        """
        if now_ms - self._looked_ms < RELOAD_MS:
            return None
        self._looked_ms = now_ms
        try:
            marks = self._find()
            if marks == self._marks:
                return None
            self._marks = marks
            return self._load(marks)
        except InvalidOption as error:
            self._report(error)
            return None

    def _load(self, marks: tuple[_Mark, ...]) -> PlainAccounts:
        if not marks:
            allowed = "an existing file with at least one account, or others in the folder acl"
            raise InvalidOption("access control 1.0", self.default_path, allowed)
        files = [plain_accounts.parse(_read(mark.path), mark.path) for mark in marks]
        return self._take(files)

    def _take(self, files: list[PlainFile]) -> PlainAccounts:
        self.accounts = plain_accounts.merge(files)
        self._failed = b""
        for access_key, path in self.accounts.repeated:
            first = self.accounts.paths[access_key]
            _log.warning("%s: account %r does not count: it is in %s", path, access_key, first)
        return self.accounts

    def _report(self, error: InvalidOption) -> None:
        digest = hashlib.sha256(str(error).encode())
        for mark in self._marks:
            with contextlib.suppress(InvalidOption):
                digest.update(_read(mark.path))
        if digest.digest() != self._failed:
            self._failed = digest.digest()
            _log.error("accounts and white addresses stay as they were: %s", error)

    def _find(self) -> tuple[_Mark, ...]:
        """Return the files in the order in which they are read: the default one is the last."""
        paths = self._order({*_yaml_files(self._folder), self.default_path})
        if len(paths) > _FILES_MAX:
            raise InvalidOption("files in " + self._folder, len(paths), f"at most {_FILES_MAX}")
        marks = (_mark_of(path) for path in paths if path != self._tools)
        return tuple(mark for mark in marks if mark is not None)

    def _order(self, paths: Iterable[str]) -> list[str]:
        return sorted(paths, key=lambda path: (path == self.default_path, path))

    # Writing ----------------------------------------------------------------------------------

    def put_account(
        self, access_key: str, values: Mapping[str, object], now_ms: int
    ) -> PlainAccounts:
        """Create an account in the default file, or change it in its file.

        Args:
            access_key: Its access key.
            values: Values by key of the file; other keys keep theirs.
            now_ms: The time.

        Raises:
            InvalidOption: A value is wrong, or the file has become unreadable.
            WriteFailed: It cannot be written.
        """

        def change(content: dict[str, Any]) -> bool:
            accounts = content[ACCOUNTS] = content.get(ACCOUNTS) or []
            account = _account_of(accounts, access_key)
            if account is None:
                accounts.append({ACCESS_KEY: access_key, **values})
            else:
                account.update(values)
            return True

        path = self.accounts.paths.get(access_key, self.default_path)
        self._change(path, change, now_ms)
        return self.accounts

    def delete_account(self, access_key: str, now_ms: int) -> bool:
        """Delete an account from all files; return False if there is none.

        Raises:
            InvalidOption: The file has become unreadable.
            WriteFailed: It cannot be written.
        """

        def change(content: dict[str, Any]) -> bool:
            accounts = content.get(ACCOUNTS) or []
            content[ACCOUNTS] = [
                account for account in accounts if str(account.get(ACCESS_KEY)) != access_key
            ]
            return len(content[ACCOUNTS]) < len(accounts)

        # Otherwise a second account of that key would count from now on.
        paths = [
            file.path
            for file in self.accounts.files
            if any(account.access_key == access_key for account in file.accounts)
        ]
        for path in paths:
            self._change(path, change, now_ms)
        return bool(paths)

    def put_white_addresses(self, texts: list[str], path: str, now_ms: int) -> bool:
        """Replace the global white addresses of a file; return False if the file is unknown.

        Args:
            texts: The patterns.
            path: The file; if empty, the default one.
            now_ms: The time.

        Raises:
            InvalidOption: A pattern is wrong, or the file has become unreadable.
            WriteFailed: It cannot be written.
        """

        def change(content: dict[str, Any]) -> bool:
            content[WHITE_ADDRESSES] = texts
            return True

        path = path or self.default_path
        # Only a file that was read: any other one may not be of access control.
        if path not in {file.path for file in self.accounts.files}:
            return False
        return self._change(path, change, now_ms)

    def _change(self, path: str, change: Callable[[dict[str, Any]], bool], now_ms: int) -> bool:
        """Change a file; nothing is written if ``change`` returns False, or the result is wrong."""
        data = _read(path) if Path(path).exists() else b""
        before = plain_accounts.parse(data, path)
        content = plain_accounts.load_yaml(data)
        if not change(content):
            return False
        version = {"counter": before.version.counter + 1, "timestamp": now_ms}
        content[DATA_VERSION] = [version]
        changed = plain_accounts.dump_yaml(content)
        after = plain_accounts.parse(changed, path)
        if len(changed) > _FILE_BYTES_MAX:
            raise InvalidOption(path, len(changed), f"at most {_FILE_BYTES_MAX} bytes")
        _replace(path, changed)
        files = {file.path: file for file in self.accounts.files} | {path: after}
        marks = {mark.path: mark for mark in self._marks} | {path: _mark_of(path)}
        self._marks = tuple(mark for name in self._order(marks) if (mark := marks[name]))
        self._take([files[name] for name in self._order(files)])
        return True


def _mark_of(path: str) -> _Mark | None:
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    return _Mark(path, status.st_mtime_ns, status.st_size, status.st_ino)


def _account_of(accounts: list[dict[str, Any]], access_key: str) -> dict[str, Any] | None:
    """Return the first account of an access key, which may be a number in the file."""
    for account in accounts:
        if str(account.get(ACCESS_KEY)) == access_key:
            return account
    return None


def _yaml_files(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder, followlinks=True):
        # A mounted folder keeps its versions in hidden ones, and links to the current files.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if parent.count(os.sep) - folder.count(os.sep) > 8:
            folders.clear()
        yield from (str(Path(parent, name)) for name in names if name.endswith(_ENDINGS))


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > _FILE_BYTES_MAX:
        raise InvalidOption(
            "access control 1.0", path, f"a file of at most {_FILE_BYTES_MAX} bytes"
        )
    return data


def _unreadable(path: str, error: OSError) -> InvalidOption:
    allowed = f"a readable file: {error.strerror or error}"
    return InvalidOption("access control 1.0", path, allowed)


def _replace(path: str, data: bytes) -> None:
    """Replace a file durably and keep its permissions; a new file is for its owner only."""
    target = Path(os.path.realpath(path))
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _NEW_MODE
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _NEW_MODE)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
            file.write(data)
            os.fchmod(descriptor, mode)
            file.flush()
            sync_data(descriptor)
        draft.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise WriteFailed(path, f"cannot write: {error.strerror or error}") from error
