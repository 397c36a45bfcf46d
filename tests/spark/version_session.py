"""What must work with every PySpark: run by ``test_versions.py`` in the environment of one version.

python version_session.py FOLDER STORE

Prints one JSON object. STORE is a store of ``store_builder``.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import reput.spark
from reput.spark import datasource_api
from reput.spark.jobs.archive import archive, verify

WAIT_S = 300
ATTEMPTS = 5
LATE = "Python worker failed to connect back"


def failure_of(call: Any) -> str:
    try:
        call()
    except PySparkException as error:
        return str(error)
    return ""


class Warnings(logging.Handler):
    """Warnings, which show that the plan of a query was not understood."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Session:
    """The parts of the test, in one Spark session."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.spark = (
            SparkSession.builder.master("local[1]")
            .config(
                "spark.driver.extraJavaOptions",
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            )
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")
            .config("spark.sql.shuffle.partitions", "1")
            .getOrCreate()
        )

    def load(self, path: str | Path, **options: object) -> DataFrame:
        return self.spark.read.format("rocketmq").options(**options).load(str(path))

    def batch(self) -> Any:
        frame = self.load(self.store, columns="queue_id,queue_offset,body,properties")
        return sorted((row[0], row[1], len(row[2]), len(row[3])) for row in frame.collect())

    def frames(self) -> Any:
        frame = reput.spark.read(self.spark, self.store)
        warnings = Warnings()
        logging.getLogger("reput.spark").addHandler(warnings)
        return {
            "rows": len(frame.collect()),
            "queue": frame.where("queue_id = 0").select("queue_offset").count(),
            "tags": sum(row[1] for row in frame.groupBy("tags").count().collect()),
            "pairs": frame.select("flag").limit(3).crossJoin(frame).count(),
            "is_empty": frame.isEmpty(),
            "warnings": warnings.texts,
        }

    def errors(self) -> Any:
        return {
            "option": failure_of(lambda: self.load(self.store, mode="LOUD")),
            "task": failure_of(lambda: self.load(self.store, sql92="a > 1 AND b >").count()),
        }

    def sink(self) -> Any:
        target = self.folder / "batch"
        frame = self.load(self.store, columns="topic,queue_id,body,keys,tags,properties")
        options = {"queues": 4, "mappedFileSizeCommitLog": 1 << 20}
        writer = frame.write.format("rocketmq").options(**options, ignoreReadColumns=True)
        writer.mode("append").save(str(target))
        return self.load(target).count()

    def jobs(self) -> Any:
        result = archive(self.spark, self.store, str(self.folder / "archive"), include_last=True)
        is_whole = verify(self.spark, str(self.folder / "archive")).is_whole
        return result.messages, is_whole, self.load(self.folder / "archive").count()

    def stream(self, trigger: dict[str, Any], **options: object) -> str:
        """Run a query into the sink for stores until everything is read; return its error."""
        options = {"startingOffsets": "earliest", **options}
        frame = self.spark.readStream.format("rocketmq").options(**options).load(self.store)
        writer = (
            frame.select("topic", "body", "queue_id")
            .writeStream.format("rocketmq")
            .option("mappedFileSizeCommitLog", 1 << 20)
            .option("path", str(self.folder / "stream"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(**trigger)
        )
        for _ in range(ATTEMPTS):
            query = writer.start()
            if "availableNow" in trigger:
                error = failure_of(lambda query=query: query.awaitTermination(WAIT_S))
            else:
                error = failure_of(query.processAllAvailable)
            query.stop()
            if LATE not in error:
                return error
        return LATE

    def streams(self) -> Any:
        now, for_ever = {"availableNow": True}, {"processingTime": "0 seconds"}
        errors = [self.stream(now, maxOffsetsPerTrigger=10), self.stream(now), self.stream(now)]
        count = self.load(self.folder / "stream").count()
        for name in ("checkpoint", "stream"):
            (self.folder / name).rename(self.folder / f"{name}-now")
        # The restarted query finds the other topic, and takes its messages in three micro-batches.
        errors.append(self.stream(for_ever, topic="TopicA"))
        errors.append(self.stream(for_ever, maxOffsetsPerTrigger=25))
        commits = self.folder / "checkpoint" / "commits"
        batches = [int(path.name) for path in commits.glob("*") if path.name.isdecimal()]
        return {
            "errors": errors,
            "count": count,
            "limited_count": self.load(self.folder / "stream").count(),
            "batches": sorted(batches),
        }


def main(folder: str, store: str) -> None:
    session = Session(Path(folder), store)
    parts = {
        "version": pyspark.__version__,
        "has_read_limits": datasource_api.HAS_READ_LIMITS,
        "batch": session.batch(),
        "nothing": session.load(store, startingPhysicalOffset=1 << 50).count(),
        "frames": session.frames(),
        "errors": session.errors(),
        "sink": session.sink(),
        "jobs": session.jobs(),
        "streams": session.streams(),
    }
    sys.stdout.write(json.dumps(parts))
    session.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
