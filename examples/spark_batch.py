"""Read a topic of running brokers into a DataFrame, and print its messages by tag.

    python examples/spark_batch.py 127.0.0.1:9876 Orders

The read creates no group at the brokers, and commits no offsets.
"""

import argparse

from pyspark.sql import SparkSession, functions as F


def main() -> None:
    """Read the topic, and print the numbers."""
    parser = argparse.ArgumentParser(description="Count the messages of a topic by tag.")
    parser.add_argument("namesrv", help="name servers: host:port;host:port")
    parser.add_argument("topic")
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("messages by tag").getOrCreate()
    messages = (
        spark.read.format("rocketmq")
        .option("nameServer", arguments.namesrv)
        .option("topic", arguments.topic)
        .option("includeBody", "false")  # the numbers need no bodies
        .load()
    )
    by_tag = messages.groupBy("tags").agg(F.count("*").alias("messages")).orderBy("tags")
    for row in by_tag.collect():
        print(f"{row.tags or '(no tag)'}: {row.messages}")
    spark.stop()


if __name__ == "__main__":
    main()
