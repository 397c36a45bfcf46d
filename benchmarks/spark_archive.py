"""Archiving log files with Spark, and looking messages up in an archive of many rows."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame, SparkSession

import reput.spark
from benchmarks import stores
from reput.format import body as bodies, message as record, properties
from reput.spark.jobs.archive import archive
from reput.spark.session import local_session
from reput.store.files import paths

NAME = "spark_archive"
QUESTION = "log to zstd Parquet on two cores; one message by id, key and time of many; few columns"
_TOPICS = 8
_QUEUES = 4
_BODY_CRC, _QUEUE_OFFSET, _PHYSICAL_OFFSET = 8, 20, 28
_BORN_TIME, _STORE_TIME, _BODY = 40, 56, 88
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_WORDS = 4096


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure wall time without Spark's start."""
    large = make(folder / f"archive-1k-{quick}", 4, 50_000 if quick else 200_000, 1024)
    many = make(folder / f"archive-rows-{quick}", 5 if quick else 50, 200_000, 100)
    rows = (5 if quick else 50) * 200_000
    with local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
        kept = folder / "archive-warm"
        for _ in range(2):  # the first warms up workers and page cache
            shutil.rmtree(kept, ignore_errors=True)
            before = time.perf_counter()
            result = archive(spark, str(large), str(kept), include_last=True)
            wall_s = time.perf_counter() - before
        shutil.rmtree(kept)
        wide = folder / f"archive-of-{rows}"
        archive(spark, str(many), str(wide), include_last=True)
        return {
            "archive": {
                "log_mb": round(result.log_bytes / 1e6),
                "wall_s": round(wall_s, 2),
                "mb_per_s": round(result.log_bytes / 1e6 / wall_s, 1),
                "size_over_log": round(result.archive_bytes / result.log_bytes, 2),
            },
            "rows": rows,
            "lookups_s": _lookups(spark, wide, rows),
        }


def _lookups(spark: SparkSession, archived: Path, rows: int) -> dict[str, float]:
    def load(**options: object) -> DataFrame:
        return reput.spark.read(spark, str(archived), **options)

    number = rows * 7 // 10
    time_ms = stores.FIRST_TIME_MS + number
    before = f"timestamp_millis({time_ms})"
    columns = spark.read.format("rocketmq").options(columns="topic,queue_id")
    asked = {
        "by_key": (load(key=key_of(number)), 1),
        "by_unique_key": (load(uniqKey=unique_key_of(number)), 1),
        "by_message_id": (load().where(f"msg_id = '{unique_key_of(number)}'"), 1),
        "by_time": (load().where(f"store_timestamp = {before}"), 1),
        "count": (columns.load(str(archived)), rows),
    }
    results = {}
    for name, (frame, count) in asked.items():
        for _ in range(2):  # the first compiles the plan
            start = time.perf_counter()
            got = frame.count() if count > 1 else len(frame.collect())
            results[name] = round(time.perf_counter() - start, 2)
        if got != count:
            raise AssertionError(f"{name}: {got} rows, not {count}")
    return results


def key_of(number: int) -> str:
    """Return the key of a message."""
    return f"order-{number:08X}"


def unique_key_of(number: int) -> str:
    """Return the unique key of a message."""
    return f"7F0000015EF818B4AAC20000{number:08X}"


def make(root: Path, log_files: int, rows: int, body_bytes: int) -> Path:
    """Write the log of a store, with full files, unless it exists; return its folder.

    All records have the same size, so a file of them is an array: ten million rows take a minute.
    """
    done, wanted = root / "made.json", [log_files, rows, body_bytes]
    if done.exists() and json.loads(done.read_text()) == wanted:
        return root
    log = root / paths.COMMIT_LOG
    log.mkdir(parents=True)
    text = _text(32 << 20)
    windows = np.lib.stride_tricks.sliding_window_view(text, body_bytes)
    templates = [_template(n, body_bytes) for n in range(_TOPICS * _QUEUES)]
    size = len(templates[0])
    file_bytes = rows * size + record.BLANK.size
    numbers = np.arange(rows, dtype=np.int64)
    data = np.stack([np.frombuffer(template, np.uint8) for template in templates])[
        numbers % len(templates)
    ]
    key_at, unique_at = (templates[0].find(template) for template in (b"order-", b"7F0000015EF8"))
    for file in range(log_files):
        all_numbers = numbers + file * rows
        starts = (all_numbers * 2_654_435_761) % (len(text) - body_bytes)
        data[:, _BODY : _BODY + body_bytes] = windows[starts]
        crcs = [bodies.crc(template[_BODY : _BODY + body_bytes].tobytes()) for template in data]
        _put(data, _BODY_CRC, np.array(crcs, np.int64), 4)
        _put(data, _QUEUE_OFFSET, all_numbers // len(templates), 8)
        _put(data, _PHYSICAL_OFFSET, file * file_bytes + numbers * size, 8)
        _put(data, _BORN_TIME, stores.FIRST_TIME_MS + all_numbers - 1, 8)
        _put(data, _STORE_TIME, stores.FIRST_TIME_MS + all_numbers, 8)
        for position in (key_at + len("order-"), unique_at + len("7F0000015EF818B4AAC20000")):
            for digit in range(8):
                data[:, position + digit] = _HEX[all_numbers >> (28 - 4 * digit) & 15]
        with (log / paths.offset_name(file * file_bytes)).open("wb") as out:
            out.write(data.data)
            out.write(record.pack_blank(record.BLANK.size))
    done.write_text(json.dumps(wanted))
    return root


def _template(number: int, body_bytes: int) -> bytes:
    return record.encode(
        record.StoredMessage(
            topic=stores.topic_name(number % _TOPICS),
            body=bytes(body_bytes),
            queue_id=number // _TOPICS,
            queue_offset=0,
            physical_offset=0,
            born_timestamp=stores.FIRST_TIME_MS,
            born_host=stores.HOST,
            store_timestamp=stores.FIRST_TIME_MS,
            store_host=stores.HOST,
            body_crc=0,
            property_bytes=properties.encode(
                {"UNIQ_KEY": unique_key_of(0), "KEYS": key_of(0), "TAGS": f"Tag{number % 5}"}
            ),
        )
    )


def _put(
    data: npt.NDArray[np.uint8], position: int, values: npt.NDArray[np.int64], width: int
) -> None:
    for i in range(width):
        data[:, position + i] = values >> (8 * (width - 1 - i)) & 0xFF


def _text(byte_count: int) -> npt.NDArray[np.uint8]:
    """Return words with a distribution as in text: few are frequent, many are rare."""
    random = np.random.default_rng(7)
    letters = random.integers(97, 123, (_WORDS, 9), np.uint8)
    letters[:, 8] = ord(" ")
    ranks = np.minimum(random.zipf(1.3, byte_count // 9 + 1) - 1, _WORDS - 1)
    return letters[ranks].reshape(-1)[:byte_count]
