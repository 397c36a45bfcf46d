"""Records the checkpoint of this release: ``python tests/spark/record_checkpoint.py``.

The query was killed in its third micro-batch, over the store of a Java broker 4.9.7. Once per
version of positions: a recorded checkpoint is never replaced, because later releases must continue
it.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import golden
from reput.spark.streaming.positions import FORMAT_VERSION

FOLDER = Path(__file__).parents[1] / "data" / "checkpoints" / f"v{FORMAT_VERSION}"
DONE = 2
"""Number of complete micro-batches."""
LIMIT = 300


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    frame = (
        spark.readStream.format("rocketmq")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", LIMIT)
        .load(str(golden.unpack("4.9.7", "clean")))
    )
    with tempfile.TemporaryDirectory() as work:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", work)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for name in ("metadata", *(f"offsets/{i}" for i in range(DONE + 1))):
            (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(work, name), FOLDER / name)
        for i in range(DONE):
            (FOLDER / "commits").mkdir(exist_ok=True)
            shutil.copy(Path(work, "commits", str(i)), FOLDER / "commits" / str(i))


if __name__ == "__main__":
    main()
