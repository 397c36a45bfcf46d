"""Options of a write to a store folder: ``df.write.format("rocketmq").save("/data/store")``.

Sizes and limits are the store's, as its broker has them: from a ``broker.conf``, and single ones by
their keys. Names, defaults and meanings are in docs/reference/spark-options.md.
"""

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from reput import config
from reput.errors import InvalidOption
from reput.format import properties as props
from reput.format.message import Host
from reput.spark.options import Texts
from reput.spark.sending.options import RowOptions, row_options
from reput.store.config import RECORD_ROOM_BYTES, StoreConfig

_STORE_KEYS: Final = {
    "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
    "maxMessageSize": "max_message_size",
}
_TRUSTED: Final = frozenset(
    {props.CLUSTER, props.REAL_TOPIC, props.REAL_QUEUE_ID, props.TRANSACTION_PREPARED}
)
"""Properties that brokers look at when they get a message, and not in their log."""
_QUEUE_COUNT = 8
_QUEUE_COUNT_MAX = 65_535
_HOST = Host(b"\x7f\0\0\1", 10911)


@dataclass(frozen=True)
class ImportOptions:
    """How rows become a store."""

    rows: RowOptions
    path: str
    """The store's folder, seen by driver and workers."""
    store: StoreConfig
    """Sizes and limits."""
    queue_count: int = _QUEUE_COUNT
    """Of topics that the store does not have."""
    store_host: Host = _HOST
    """What message ids name, and messages without a sender have as theirs."""
    keeps_store_times: bool = False
    """Column ``store_timestamp`` is when a message was stored, never earlier than those before."""


def parse(options: Mapping[str, str]) -> ImportOptions:
    """Return the options of a write to a store folder.

    Raises:
        InvalidOption: A value is not allowed, or a name is not known.
    """
    texts = Texts(options)
    path = texts.text("path")
    if not path or "://" in path.removeprefix("file://"):
        raise InvalidOption("path", path, "a folder of a file system that is mounted")
    path = path.removeprefix("file://").rstrip("/")
    if not path.startswith("/"):
        raise InvalidOption("path", path, "a whole path: workers have working folders of their own")
    conf = texts.text("config")
    given: dict[str, object] = {
        field: size
        for key, field in _STORE_KEYS.items()
        if (size := texts.number(key, 1)) is not None
    }
    if conf is None and "mapped_file_size_commit_log" in given:
        # Small log files are for tests, which shall not have to set this as well.
        room = int(str(given["mapped_file_size_commit_log"])) - RECORD_ROOM_BYTES
        given.setdefault("max_message_size", min(StoreConfig().max_message_size, max(room, 1)))
    told = config.load(StoreConfig, conf, explicit=given).value
    store = dataclasses.replace(told, store_path_root_dir=path, store_path_commit_log=None)
    if store.enable_consume_queue_ext or store.enable_multi_dispatch:
        key = "enableConsumeQueueExt" if store.enable_consume_queue_ext else "enableMultiDispatch"
        raise InvalidOption(key, "true", "false: an import makes plain queues only")
    rows = dataclasses.replace(row_options(texts), trusted_properties=_TRUSTED)
    parsed = ImportOptions(
        rows=rows,
        path=path,
        store=store,
        queue_count=texts.bounded("queues", 1, _QUEUE_COUNT_MAX, _QUEUE_COUNT),
        store_host=_host(texts),
        keeps_store_times=texts.flag("keepStoreTimestamps", False),
    )
    texts.refuse_unknown()
    return parsed


def _host(texts: Texts) -> Host:
    text = texts.text("storeHost")
    if text is None:
        return _HOST
    address, _, port = text.rpartition(":")
    try:
        packed = ipaddress.ip_address(address.strip("[]")).packed
        number = int(port)
    except ValueError:
        packed, number = b"", 0
    if not packed or not 0 < number < 1 << 16:
        raise InvalidOption("storeHost", text, "ADDRESS:PORT, as in 192.0.2.1:10911")
    return Host(packed, number)
