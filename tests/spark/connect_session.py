"""Read, write, stream, call table functions and run jobs by Spark Connect, without a JVM here.

python connect_session.py FOLDER STORE COPY ADDRESS

Run by ``test_versions.py``. Prints one JSON object. STORE is a store of ``store_builder``, COPY the
same with a changed byte, ADDRESS ``sc://...`` of a server.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import reput.spark
from reput.errors import StoreUnavailable
from reput.spark.jobs.archive import archive, verify
from reput.spark.jobs.compare import compare, findings_frame
from reput.spark.jobs.running import TaskFailed, runner_on

WAIT_S = 300


def fails(task: int) -> int:
    if task:
        raise StoreUnavailable(f"task {task} has no store")
    return task


def failure_of(spark: SparkSession) -> str:
    try:
        runner_on(spark, "test", None)("stage", fails, [0, 7])
    except TaskFailed as error:
        return str(error)
    return ""


def stream(spark: SparkSession, folder: Path, store: str) -> Any:
    reader = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    query = (
        reader.load(store)
        .select("topic", "body")
        .writeStream.format("rocketmq")
        .option("path", str(folder / "stream"))
        .option("mappedFileSizeCommitLog", 1 << 20)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(WAIT_S)
    return spark.read.format("rocketmq").load(str(folder / "stream")).count()


def written(spark: SparkSession, folder: Path) -> list[Any]:
    frame = spark.createDataFrame(
        [("Orders", "o-1"), ("Orders", "ö-2")], "topic string, body string"
    )
    target = (
        frame.write.format("rocketmq").mode("append").option("mappedFileSizeCommitLog", 1 << 20)
    )
    target.save(str(folder / "written"))
    rows = reput.spark.read(spark, str(folder / "written")).select("topic", "body").collect()
    return sorted([row.topic, bytes(row.body).decode()] for row in rows)


def main(root: str, store: str, copy: str, address: str) -> None:
    warnings.simplefilter("ignore")  # of settings that a server does not take
    folder = Path(root)
    spark = SparkSession.builder.remote(address).getOrCreate()
    steps: list[tuple[str, int, int]] = []
    result = archive(
        spark,
        store,
        str(folder / "archive"),
        include_last=True,
        progress=lambda *step: steps.append(step),
    )
    reput.spark.register(spark)
    spark.sql(f"CREATE TEMPORARY VIEW messages USING rocketmq OPTIONS (path '{store}')")
    listed = spark.sql(f"SELECT * FROM rocketmq_archive_verify('{folder}/archive')")
    parts = {
        "session": type(spark).__module__,
        "rows": spark.read.format("rocketmq").load(store).count(),
        "archived": [result.messages, verify(spark, str(folder / "archive")).is_whole],
        "steps": [steps[0], steps[-1]],
        "counts": compare(spark, store, copy).counts["messages"],
        "findings": findings_frame(spark, store, copy).count(),
        "failure": failure_of(spark),
        "table function": listed.count(),
        "written": written(spark, folder),
        "view": spark.table("messages").count(),
        "stream": stream(spark, folder, store),
    }
    sys.stdout.write(json.dumps(parts))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
