"""Infer a store's settings from its files, for stores without their broker's settings."""

import contextlib

from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format import index_entry, message as record, names
from reput.store.config import END_OF_FILE_BYTES, StoreConfig
from reput.store.files import paths
from reput.store.reader import StoreReader

_SMALLEST_RECORD_BYTES = record.FIXED_BYTES_V1 + 1


def infer_settings(reader: StoreReader, config: StoreConfig | None) -> StoreConfig:
    """Return the given settings of a store's broker, or infer them from the files.

    Raises:
        StoreUnavailable: Log files have sizes or names that do not fit together.
        InvalidOption: The settings do not fit the files, or are needed to find out sizes.
    """
    log_bytes = max((file.nominal_size for file in reader.log.files), default=0)
    if config is None:
        config = _inferred(reader, log_bytes)
    file_bytes = config.mapped_file_size_commit_log
    for file in reader.log.files:
        if file.size > file_bytes:
            raise InvalidOption(
                "mappedFileSizeCommitLog", file_bytes, f"{file.size}, as {file.name} has"
            )
        if (file.start - reader.log.min_offset) % file_bytes:
            raise StoreUnavailable(
                f"log file {file.name} of {reader.location} does not start a multiple of "
                f"{file_bytes} bytes after the first one; pass the broker's settings"
            )
    return config


def _inferred(reader: StoreReader, log_bytes: int) -> StoreConfig:
    default = StoreConfig()
    log_bytes = log_bytes or default.mapped_file_size_commit_log
    room = log_bytes - END_OF_FILE_BYTES - _SMALLEST_RECORD_BYTES
    slots, entries = _index_sizes(reader)
    units = max(
        (file.size for queue in reader.queues() for file in queue.files),
        default=default.mapped_file_size_consume_queue,
    )
    batch_queues = [
        reader.batch_queue(topic, queue_id)
        for topic, queue_ids in reader.batch_queue_ids.items()
        for queue_id in queue_ids
    ]
    batch_units = max(
        (file.size for queue in batch_queues for file in queue.files),
        default=default.mapper_file_size_batch_consume_queue,
    )
    return StoreConfig(
        mapped_file_size_commit_log=log_bytes,
        mapped_file_size_consume_queue=units,
        mapper_file_size_batch_consume_queue=batch_units,
        max_hash_slot_num=slots or default.max_hash_slot_num,
        max_index_num=entries or default.max_index_num,
        max_message_size=min(default.max_message_size, room),
        enable_multi_dispatch=any(topic.startswith(names.LMQ_PREFIX) for topic in reader.queue_ids),
        enable_consume_queue_ext=reader.folder.entry(paths.CONSUME_QUEUE_EXT) is not None,
    )


def _index_sizes(reader: StoreReader) -> tuple[int, int]:
    """Return the numbers of slots and entries of an index file; 0 if there is none.

    Raises:
        InvalidOption: There are index files, and their sizes cannot be found out.
    """
    files = [file for file in reader.index.files if file.size]
    for file in files:
        with contextlib.suppress(CorruptRecord):
            slots = file.slot_count
            rest = file.size - index_entry.HEADER.size - slots * index_entry.SLOT.size
            if slots:
                return slots, rest // index_entry.ENTRY.size
    if files:
        allowed = "the broker's settings: maxHashSlotNum and maxIndexNum cannot be inferred"
        raise InvalidOption("config", "none", allowed)
    return 0, 0
