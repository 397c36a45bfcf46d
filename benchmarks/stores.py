"""Stores of any size for measurements, with the bytes that a broker would have written.

Bodies are printable noise, cut from a pool because that is cheap: 256 different ones, which Parquet
keeps in a dictionary, or a different one in each message. Topics and queues alternate, so a topic's
messages are spread over the whole log as on a busy broker.
"""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from reput.format import body as bodies, cq_unit, message as record, properties
from reput.store.files import paths

HOST = record.Host(bytes([192, 0, 2, 1]), 10911)
FIRST_TIME_MS = 1_700_000_000_000
QUEUE_FILE_UNITS = 300_000
LOG_FILE_BYTES = 1 << 30
_POOL_BYTES = 1 << 24
_STEP = 7_368_787
"""Distance of consecutive bodies in the pool; odd, so that all of them differ."""


def topic_name(number: int) -> str:
    """Return the name of a topic."""
    return f"bench-{number:02d}"


def make(
    root: Path,
    message_count: int,
    body_bytes: int,
    *,
    topic_count: int = 50,
    queue_count: int = 4,
    log_file_bytes: int = LOG_FILE_BYTES,
    is_distinct: bool = False,
) -> Path:
    """Write a store into ``root`` unless it exists; return it.

    Args:
        root: The store's folder.
        message_count: Number of messages.
        body_bytes: Size of each body.
        topic_count: Number of topics.
        queue_count: Number of queues of a topic.
        log_file_bytes: Size of a log file.
        is_distinct: Give each message another body, up to 16 million.
    """
    done = root / "made.json"
    wanted = [message_count, body_bytes, topic_count, queue_count, log_file_bytes]
    wanted += [1] if is_distinct else []
    if done.exists() and json.loads(done.read_text()) == wanted:
        return root
    log = root / paths.COMMIT_LOG
    log.mkdir(parents=True)
    starts = [i * body_bytes for i in range(256)]
    if is_distinct:
        starts = [n * _STEP % _POOL_BYTES for n in range(min(message_count, _POOL_BYTES))]
    pool_bytes = max(starts) + body_bytes
    pool = np.random.default_rng(7).integers(32, 127, pool_bytes, np.uint8).tobytes()
    crcs = [bodies.crc(pool[start : start + body_bytes]) for start in starts]
    units: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    offset, start, file = 0, 0, None
    for n in range(message_count):
        topic, queue_id = topic_name(n % topic_count), n // topic_count % queue_count
        queue = units[topic, queue_id]
        tags = f"Tag{n % 5}"
        which = n % len(starts)
        data = record.encode(
            record.StoredMessage(
                topic=topic,
                body=pool[starts[which] : starts[which] + body_bytes],
                queue_id=queue_id,
                queue_offset=len(queue),
                physical_offset=offset,
                born_timestamp=FIRST_TIME_MS + n // 10,
                born_host=HOST,
                store_timestamp=FIRST_TIME_MS + n // 10 + 1,
                store_host=HOST,
                body_crc=crcs[which],
                property_bytes=properties.encode(
                    {
                        "UNIQ_KEY": f"7F0000015EF818B4AAC2{n:012X}",
                        "KEYS": f"order-{n}",
                        "TAGS": tags,
                        "WAIT": "true",
                        "CLUSTER": "DefaultCluster",
                    }
                ),
            )
        )
        if file is None or offset + len(data) + 8 > start + log_file_bytes:
            if file is not None:
                file.write(record.pack_blank(start + log_file_bytes - offset))
                file.truncate(log_file_bytes)
                file.close()
                start += log_file_bytes
            file = (log / paths.offset_name(start)).open("wb")
            if offset != start:
                offset = start
                data = data[:28] + offset.to_bytes(8, "big") + data[36:]
        file.write(data)
        queue.append(cq_unit.UNIT.pack(offset, len(data), cq_unit.tags_code(tags)))
        offset += len(data)
    if file is not None:
        file.truncate(log_file_bytes)
        file.close()
    for (topic, queue_id), queue in units.items():
        folder = root / paths.queue_folder(topic, queue_id)
        folder.mkdir(parents=True)
        for first in range(0, len(queue), QUEUE_FILE_UNITS):
            path = folder / paths.offset_name(first * cq_unit.SIZE)
            with path.open("wb") as out:
                out.write(b"".join(queue[first : first + QUEUE_FILE_UNITS]))
                out.truncate(QUEUE_FILE_UNITS * cq_unit.SIZE)
    done.write_text(json.dumps(wanted))
    return root
