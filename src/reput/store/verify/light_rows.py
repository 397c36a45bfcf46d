"""Units in light queues (LMQ): the queues that a record names besides its own."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput.format import kernels, message as record, names, properties as props
from reput.store.log.commit_log_view import LogBatch
from reput.store.writing.dispatch import light_queues_of

_MARK = props.INNER_MULTI_DISPATCH.encode()


class LightRow(NamedTuple):
    """The place of a record in a light queue."""

    row: int
    """Row of the record in its columns."""
    topic: str
    queue_id: int
    queue_offset: int


def light_rows(
    batch: LogBatch, columns: kernels.Columns, rows: npt.NDArray[np.int64]
) -> list[LightRow]:
    """Return the places of records in light queues, in log order.

    Only records with the property INNER_MULTI_DISPATCH are decoded. Records of retry topics go to
    no light queue.

    Args:
        batch: A window of the log.
        columns: Its records.
        rows: The rows of the records that belong into queues.
    """
    texts = columns.raw_properties()
    data = texts.data.tobytes()
    marked: set[int] = set()
    position = data.find(_MARK)
    while position >= 0:
        marked.add(int(np.searchsorted(texts.offsets, position, "right")) - 1)
        position = data.find(_MARK, position + 1)
    places: list[LightRow] = []
    for row in sorted(marked.intersection(rows.tolist())):
        message = record.decode(batch.buffer, int(batch.positions[row]), check_crc=False)
        if not message.topic.startswith(names.RETRY_PREFIX):
            places += [LightRow(row, *place) for place in light_queues_of(message) if place[1] >= 0]
    return places
