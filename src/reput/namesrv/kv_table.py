"""Settings that clients share through the name server: namespace, key, value, saved in a file.

The only namespace in use is ``ORDER_TOPIC_CONFIG``: the brokers of an ordered topic with their
numbers of queues, ``broker-a:4;broker-b:4``.

The file is RocketMQ's kvConfig.json, ``{"configTable":{namespace:{key:value}}}``. It is written
completely before a change can be read: replies contain only values that are on disk. Changes that
arrive during a write are written together by ``kv_saver``. A file that cannot be read makes the
start fail, and is never overwritten. Source: rocketmq 4.9.7 ``KVConfigManager``.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from reput import small_file
from reput.errors import InvalidBody, InvalidHeader, InvalidOption, excerpt
from reput.format import bodies
from reput.limits import Limit
from reput.namesrv import limits

_PAIR_BYTES = 8
"""Bytes of a pair in the file besides name and value, approximately."""

_log = logging.getLogger(__name__)

Pairs = dict[str, dict[str, str]]
"""Namespace -> key -> value."""


class _KvFile(bodies.Body, kw_only=True):
    """Content of the file."""

    config_table: Pairs


@dataclass(frozen=True, slots=True)
class KvChange:
    """A value that is set, or a key that is removed."""

    namespace: str
    key: str
    value: str | None
    """None to remove the key."""


class KvTable:
    """All namespaces: the saved state, and the state with the changes to be saved next.

    Args:
        path: The file; it need not exist.
        size_limit: Largest size of the table; a larger existing file is accepted.

    Raises:
        InvalidOption: The file exists and cannot be read.
    """

    def __init__(self, path: str, size_limit: Limit = limits.KV_TABLE_BYTES) -> None:
        self.path = path
        self._size_limit = size_limit
        self._saved = _load(path)
        self._staged: Pairs = {}
        self._size = self._count = 0
        self.forget_staged()

    @property
    def key_count(self) -> int:
        """Number of keys and namespaces, including staged changes."""
        return self._count

    @property
    def size(self) -> int:
        """Approximate size of the file in bytes, including staged changes."""
        return self._size

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._saved.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return a namespace by key; None if it never had a key."""
        pairs = self._saved.get(namespace)
        return None if pairs is None else dict(sorted(pairs.items()))

    # Staged changes ---------------------------------------------------------------------------

    def stage(self, change: KvChange) -> bool:
        """Stage a change to be saved; return False if it changes nothing.

        A namespace is kept when its last key is removed, as long as there is room.

        Raises:
            InvalidHeader: A name or value cannot be encoded.
            LimitExceeded: There is no room.
        """
        _check(change)
        pairs = self._staged.get(change.namespace, {})
        old = pairs.get(change.key)
        if old == change.value:
            return False
        if change.value is None:
            del pairs[change.key]
            self._count -= 1
            self._size -= _size(change.key, old or "")
            return True
        self._make_room(change, old)
        self._count += (old is None) + (change.namespace not in self._staged)
        self._size += _growth(change, old, is_new=change.namespace not in self._staged)
        self._staged.setdefault(change.namespace, {})[change.key] = change.value
        return True

    def staged(self) -> Pairs:
        """Return a copy of all settings, including staged changes."""
        return {namespace: dict(pairs) for namespace, pairs in self._staged.items()}

    def write(self, pairs: Pairs) -> None:
        """Write the file; can run in any thread.

        Raises:
            WriteFailed: It was not written.
        """
        # ASCII only: name servers read it with the encoding of their JVM, which varies.
        text = json.dumps({"configTable": pairs}, indent="\t", sort_keys=True)
        small_file.replace_file(self.path, text.encode("ascii"))

    def saved(self, pairs: Pairs) -> None:
        """Record the content of the file."""
        self._saved = pairs

    def forget_staged(self) -> None:
        """Discard the staged changes."""
        self._staged = {namespace: dict(pairs) for namespace, pairs in self._saved.items()}
        self._count = sum(1 + len(pairs) for pairs in self._staged.values())
        self._size = sum(
            _size(namespace) + sum(_size(key, value) for key, value in pairs.items())
            for namespace, pairs in self._staged.items()
        )

    def _make_room(self, change: KvChange, old: str | None) -> None:
        """Refuse a value if there is no room even without empty namespaces."""
        for is_last in (False, True):
            is_new = change.namespace not in self._staged
            size = self._size + _growth(change, old, is_new=is_new)
            count = self._count + (old is None) + is_new
            if size <= self._size_limit.maximum and count <= limits.KV_KEYS.maximum:
                return
            if is_last:
                self._size_limit.check(size)
                limits.KV_KEYS.check(count)
            for namespace in [name for name, pairs in self._staged.items() if not pairs]:
                del self._staged[namespace]
                self._count -= 1
                self._size -= _size(namespace)


def _check(change: KvChange) -> None:
    for name in (change.namespace, change.key):
        limits.NAMESRV_NAME_LETTERS.check(len(name))
    try:
        f"{change.namespace}{change.key}{change.value}".encode()
    except UnicodeEncodeError as error:
        text = f"Kv: {excerpt(repr(error.object))} contains invalid characters"
        raise InvalidHeader(text) from None


def _growth(change: KvChange, old: str | None, *, is_new: bool) -> int:
    namespace = _size(change.namespace) if is_new else 0
    old_size = 0 if old is None else _size(change.key, old)
    return namespace + _size(change.key, change.value or "") - old_size


def _size(*texts: str) -> int:
    """Return the size of strings in the file, including separators."""
    return sum(len(json.dumps(text)) for text in texts) + _PAIR_BYTES


def _load(path: str) -> Pairs:
    try:
        data = Path(path).read_bytes()
        return bodies.decode(_KvFile, data).config_table
    except FileNotFoundError:
        backup = small_file.backup_of(path)
        if backup.exists():
            _log.warning("%s is missing and starts empty; an older one is in %s", path, backup)
        return {}
    except (OSError, InvalidBody) as error:
        allowed = f'no file, or one that holds {{"configTable":{{...}}}}, but: {error}'
        raise InvalidOption("kvConfigPath", path, allowed) from error
