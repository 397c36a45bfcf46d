"""A driver that streams a store into a table, to be killed: run by ``test_lakes.py``.

python lake_session.py KIND STORE FOLDER JARS ACTION

KIND is parquet, delta or iceberg. ACTION is ``begin``, which reads everything in one micro-batch,
``follow``, which reads small micro-batches until it is killed, or ``end``, which reads the rest and
prints a JSON array of the places in the table.
"""

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

kind, store, folder, jars, action = sys.argv[1:]
SETTINGS = {
    "parquet": {},
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"{folder}/warehouse",
    },
}
PLACES = ("topic", "queue_id", "queue_offset")


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Reporter(StreamingQueryListener):
    def onQueryStarted(self, event: Any) -> None: ...
    def onQueryIdle(self, event: Any) -> None: ...
    def onQueryTerminated(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        report(f"batch {event.progress.batchId}")


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **SETTINGS[kind]}
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings |= {"spark.jars": jars} if jars else {}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.streams.addListener(Reporter())
    reader = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    if action == "follow":
        reader = reader.option("maxOffsetsPerTrigger", 25)
    frame = reader.load(store).select(*PLACES, "body")
    writer = frame.writeStream.format(kind).option("checkpointLocation", f"{folder}/checkpoint")
    if action != "follow":
        writer = writer.trigger(availableNow=True)
    if kind == "iceberg":
        spark.sql(f"CREATE TABLE IF NOT EXISTS lake.db.rows ({_columns(frame)}) USING iceberg")
        query = writer.toTable("lake.db.rows")
    else:
        query = writer.start(f"{folder}/rows")
    query.awaitTermination()
    if action == "end":
        is_named = kind == "iceberg"
        table = (
            spark.table("lake.db.rows")
            if is_named
            else spark.read.format(kind).load(f"{folder}/rows")
        )
        report(json.dumps([list(row) for row in table.select(*PLACES).collect()]))


def _columns(frame: Any) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)


main()
