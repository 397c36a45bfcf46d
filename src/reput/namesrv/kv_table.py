"""Settings that clients share through the name server: namespace, key, value, kept in a file.

The one namespace in use is ``ORDER_TOPIC_CONFIG``: which brokers have how many queues of an ordered
topic, ``broker-a:4;broker-b:4``.

The file is RocketMQ's kvConfig.json, ``{"configTable":{namespace:{key:value}}}``. It is written
whole on each change, before the change is there to be read: what was answered is on disk. A file
that cannot be read stops the start, and is never written to.
Source: rocketmq 4.9.7 ``KVConfigManager``.
"""

import json
import logging
from pathlib import Path

from reput import small_file
from reput.errors import InvalidBody, InvalidOption
from reput.format import bodies

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""The namespace of ordered topics."""

_log = logging.getLogger(__name__)


class _KvFile(bodies.Body, kw_only=True):
    """What the file holds."""

    config_table: dict[str, dict[str, str]]


class KvTable:
    """All namespaces.

    Args:
        path: The file; it need not exist.

    Raises:
        InvalidOption: The file is there and cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._table = _load(path)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all of a namespace, by key; None if it never had a key."""
        pairs = self._table.get(namespace)
        return None if pairs is None else dict(sorted(pairs.items()))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; it is durable on return.

        Raises:
            WriteFailed: It could not be written, and is not set.
        """
        if self.get(namespace, key) != value:
            pairs = {**self._table.get(namespace, {}), key: value}
            self._replace({**self._table, namespace: pairs})

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a key, durably; return whether it was there. Its namespace stays, if empty.

        Raises:
            WriteFailed: It could not be written, and the key is still there.
        """
        if self.get(namespace, key) is None:
            return False
        pairs = {name: one for name, one in self._table[namespace].items() if name != key}
        self._replace({**self._table, namespace: pairs})
        return True

    def _replace(self, table: dict[str, dict[str, str]]) -> None:
        # ASCII alone: name servers read with the encoding of their JVM, whichever that is.
        text = json.dumps({"configTable": table}, indent="\t", sort_keys=True)
        small_file.replace_file(self._path, text.encode("ascii"))
        self._table = table


def _load(path: str) -> dict[str, dict[str, str]]:
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
