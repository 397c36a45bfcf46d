"""Stream a topic of running brokers into Parquet files, each message exactly once.

    python examples/spark_stream.py 127.0.0.1:9876 Orders /data/orders

Each run appends the messages since the run before: the checkpoint, beside the files, has the
positions. A schedule can run it; with --follow it runs until it is stopped.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    """Run the stream, and print the number of all rows written so far."""
    parser = argparse.ArgumentParser(description="Append the messages of a topic to Parquet files.")
    parser.add_argument("namesrv", help="name servers: host:port;host:port")
    parser.add_argument("topic")
    parser.add_argument("folder", type=Path, help="folder of the rows and of the checkpoint")
    parser.add_argument("--follow", action="store_true", help="continue, every 10 seconds")
    arguments = parser.parse_args()
    rows = str(arguments.folder / "rows")

    spark = SparkSession.builder.appName("messages to Parquet").getOrCreate()
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", arguments.namesrv)
        .option("topic", arguments.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100000")
        .load()
    )
    writer = (
        messages.select("queue_id", "queue_offset", "tags", "keys", "body", "store_timestamp")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(arguments.folder / "checkpoint"))
    )
    if arguments.follow:
        writer = writer.trigger(processingTime="10 seconds")
    else:
        writer = writer.trigger(availableNow=True)
    writer.start(rows).awaitTermination()
    print(f"{spark.read.parquet(rows).count()} rows in {rows}")
    spark.stop()


if __name__ == "__main__":
    main()
