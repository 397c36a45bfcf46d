"""Memory of a Python worker of Spark as the store grows."""

from pathlib import Path

from benchmarks import stores, timing
from reput.spark.session import local_session

NAME = "spark_memory"
QUESTION = "peak resident MB of a Python worker for a store and for one eight times as large"


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Read two stores in separate sessions; return the peak memory of the workers."""
    small = 20_000 if quick else 100_000
    peaks = {}
    for count in (small, 8 * small):
        root = stores.make(folder / f"memory-{count}", count, 1024)
        with local_session("reput benchmark", folder / "spark.log", "local[1]") as spark:
            frame = spark.read.format("rocketmq").load(str(root))
            frame.write.format("noop").mode("overwrite").save()
            peaks[f"{count}_messages"] = round(timing.peak_mb_of("pyspark.daemon"), 1)
    low, high = peaks.values()
    return {"peak_mb": peaks, "growth": round(high / low, 2)}
