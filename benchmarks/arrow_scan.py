"""Reading a store as Arrow batches, without Spark, beside pyarrow and the same rows in Parquet."""

import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq

import reput.arrow
from benchmarks import stores

NAME = "arrow_scan"
QUESTION = "batches of a store against pyarrow's of the same rows in uncompressed Parquet"
_REPEATS = 5
_FEW = ["topic", "queue_id", "queue_offset", "tags", "store_timestamp"]


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure wall and CPU time of reads whose batches are dropped, alternating."""
    count = 160_000 if quick else 1_600_000
    root = stores.make(folder / f"distinct-{count}", count, 1024, is_distinct=True)
    parquet = folder / f"distinct-{count}.parquet"
    if not parquet.exists():
        _write_parquet(root, parquet)
    topic = stores.topic_name(7)
    rows = pds.dataset(parquet)

    def store(**settings: object) -> Iterable[pa.RecordBatch]:
        return reput.arrow.scan(root, **settings)  # type: ignore[arg-type]

    reads: dict[str, Callable[[], Iterable[pa.RecordBatch]]] = {
        "store": store,
        "store_unchecked": lambda: store(checkCrc=False),
        "store_one_thread": lambda: store(threads=1),
        "store_five_columns": lambda: store(columns=_FEW),
        "store_one_topic": lambda: store(topic=topic),
        "parquet": lambda: pq.ParquetFile(parquet).iter_batches(),
        "parquet_as_dataset": rows.to_batches,
        "parquet_one_thread": lambda: pq.ParquetFile(parquet).iter_batches(use_threads=False),
        "parquet_five_columns": lambda: rows.to_batches(columns=_FEW),
        "parquet_one_topic": lambda: rows.to_batches(filter=pds.field("topic") == topic),
    }
    wall: dict[str, list[float]] = {name: [] for name in reads}
    cpu: dict[str, list[float]] = {name: [] for name in reads}
    row_counts: dict[str, int] = {}
    for turn in range(_REPEATS + 1):
        for name, read in reads.items():
            cpu_before, before = time.process_time(), time.perf_counter()
            row_counts[name] = sum(batch.num_rows for batch in read())
            if turn:  # the first fills the page cache
                wall[name].append(time.perf_counter() - before)
                cpu[name].append(time.process_time() - cpu_before)
    median = {name: statistics.median(times) for name, times in wall.items()}
    cpu_median = {name: statistics.median(times) for name, times in cpu.items()}
    kinds = ("", "_one_thread", "_five_columns", "_one_topic")
    assert all(row_counts[f"store{kind}"] == row_counts[f"parquet{kind}"] for kind in kinds)
    for times in (median, cpu_median):  # the faster way to read all of it
        times["parquet"] = min(times["parquet"], times["parquet_as_dataset"])
    return {
        "messages": count,
        "body_bytes": 1024,
        "parquet_bytes": parquet.stat().st_size,
        "wall_s": {name: round(value, 3) for name, value in median.items()},
        "cpu_s": {name: round(value, 3) for name, value in cpu_median.items()},
        "parquet_over_store": {
            kind.strip("_") or "all": {
                "wall": round(median[f"parquet{kind}"] / median[f"store{kind}"], 2),
                "cpu": round(cpu_median[f"parquet{kind}"] / cpu_median[f"store{kind}"], 2),
            }
            for kind in kinds
        },
    }


def _write_parquet(root: Path, target: Path) -> None:
    reader = reput.arrow.scan(root)
    with pq.ParquetWriter(target, reader.schema, compression="none") as writer:
        for batch in reader:
            writer.write_batch(batch)
