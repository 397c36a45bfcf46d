"""Copy the timer log of RocketMQ 5.x, whose units name messages by their physical offset.

    SIZE | PREVPOS | MAGIC | WRITETIME | DELAY | PHYSICALOFFSET | RECORDSIZE | HASH | RESERVED

A file ends with a unit of another magic. Source: rocketmq 5.5.0 ``TimerLog``.
"""

import os
import struct
from collections.abc import Iterator

from reput.spark.jobs.convert.records import Places
from reput.spark.jobs.draft_store import DraftStore
from reput.store.files.disk import Disk
from reput.store.files.files import Folder, data_bytes

_UNIT = struct.Struct(">iqiqiqiiq")
_OFFSET = struct.Struct(">q")
_OFFSET_POSITION = struct.calcsize(">iqiqi")
_WINDOW_UNITS = 1 << 16


def copy_timer_log(folder: Folder, path: str, draft: DraftStore, places: Places) -> Iterator[str]:
    """Copy a file of the timer log, with the new places of messages.

    Args:
        folder: The source.
        path: Path of the file.
        draft: The new store.
        places: New places of records.

    Yields:
        A sentence for each kind of unit that stays as it is.
    """
    entry = folder.entry(path)
    assert entry is not None
    disk, target = Disk(), f"{draft.path}/{path}"
    disk.make_folder(os.path.dirname(target), is_durable=False)  # noqa: PTH120
    descriptor = disk.create(target, entry.size, is_durable=False)
    lost = 0
    try:
        end = data_bytes(folder, path, entry.size)
        for position in range(0, end, _WINDOW_UNITS * _UNIT.size):
            data = bytearray(folder.read(path, position, _WINDOW_UNITS * _UNIT.size))
            for place in range(0, len(data) - _UNIT.size + 1, _UNIT.size):
                size = _UNIT.unpack_from(data, place)[0]
                if size != _UNIT.size:
                    continue  # zeros, or the end of the file
                (old,) = _OFFSET.unpack_from(data, place + _OFFSET_POSITION)
                new = places.new_of(old)
                if new is None:
                    lost += 1
                else:
                    _OFFSET.pack_into(data, place + _OFFSET_POSITION, new)
            disk.write(descriptor, target, position, memoryview(data))
    finally:
        os.close(descriptor)
    if lost:
        yield f"{lost} units of {path} name messages that are not in the log: they are unchanged"
