"""Options of a write to a store folder: ``df.write.format("rocketmq").save("/data/store")``.

Sizes and limits are settings of the store: from a ``broker.conf``, or individually by their keys.
The options are rows of ``option_table``.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from reput import config
from reput.errors import InvalidOption
from reput.format import properties as props
from reput.format.message import Host
from reput.spark import option_kinds as kinds, option_table as table
from reput.spark.option_table import WRITES, Source
from reput.spark.options import made
from reput.spark.sending.options import RowOptions
from reput.store.config import RECORD_ROOM_BYTES, StoreConfig

_STORE_FIELDS: Final = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
    "max_message_size",
)
_TRUSTED: Final = frozenset(
    {props.CLUSTER, props.REAL_TOPIC, props.REAL_QUEUE_ID, props.TRANSACTION_PREPARED}
)
"""Properties that brokers process on receipt, not when reading their log."""
_HOST = Host(b"\x7f\0\0\1", 10911)


@dataclass(frozen=True)
class ImportOptions:
    """Settings of an import."""

    rows: RowOptions
    path: str
    """Folder of the store, visible to driver and workers."""
    store: StoreConfig
    """Sizes and limits."""
    queue_count: int = 8
    """Number of queues of new topics."""
    store_host: Host = _HOST
    """Host in message ids, and born host of messages without one."""
    keeps_store_times: bool = False
    """True to use column ``store_timestamp`` as store time, never earlier than the previous one."""


def parse(options: Mapping[str, str]) -> ImportOptions:
    """Return the options of a write to a store folder.

    Raises:
        InvalidOption: A value is not allowed, or a name is not known.
    """
    values = table.parse(options, WRITES, Source.FOLDER)
    if values["path"] is None:
        raise InvalidOption("path", None, kinds.LOCAL_FOLDER.allowed)
    conf = values["config"]
    given = {field: values[field] for field in _STORE_FIELDS if values[field] is not None}
    if conf is None and "mapped_file_size_commit_log" in given:
        # Small log files are for tests, which should not have to set this too.
        room = given["mapped_file_size_commit_log"] - RECORD_ROOM_BYTES
        given.setdefault("max_message_size", min(StoreConfig().max_message_size, max(room, 1)))
    store_config = config.load(StoreConfig, conf, explicit=given).value
    store = dataclasses.replace(
        store_config, store_path_root_dir=values["path"], store_path_commit_log=None
    )
    if store.enable_consume_queue_ext or store.enable_multi_dispatch:
        key = "enableConsumeQueueExt" if store.enable_consume_queue_ext else "enableMultiDispatch"
        raise InvalidOption(key, "true", "false: an import makes plain queues only")
    rows = dataclasses.replace(made(RowOptions, values), trusted_properties=_TRUSTED)
    return made(ImportOptions, values, rows=rows, store=store)
