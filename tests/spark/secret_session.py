"""Everything that Spark does with options that have secrets: run by ``test_secrets.py``.

python secret_session.py FOLDER NAMESRV STORE SECRET TOKEN PASSWORD

FOLDER has a certificate and its encrypted key: client.pem, client.key.
"""

import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reput.spark.jobs.compare import compare

LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.err.ref = err
logger.spark.name = org.apache.spark
logger.spark.level = info
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %p %c: %m%n%ex
"""


def show(*values: object) -> None:
    sys.stdout.write(" ".join(map(str, values)) + "\n")


def main(folder: str, namesrv: str, store: str, secret: str, token: str, password: str) -> None:
    events = Path(folder, "events")
    events.mkdir()
    logging = Path(folder, "log4j2.properties")
    logging.write_text(LOGGING)
    java_options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={logging}"
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", events.as_uri())
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    connection = {
        "nameServer": namesrv,
        "accessKey": "an-access-key",
        "secretKey": secret,
        "securityToken": token,
        "tls.enable": "true",
        "tls.client.certPath": f"{folder}/client.pem",
        "tls.client.keyPath": f"{folder}/client.key",
        "tls.client.keyPassword": password,
    }

    def tried(what: str, call: Any) -> None:
        try:
            show(what, call())
        except PySparkException as error:
            show(what, "fails:", error)

    frame = spark.read.format("rocketmq").options(**connection).load(topic="Orders")
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.groupBy("queue_id").count().explain(mode)
    show("rows", frame.count(), frame, frame.schema)
    frame.createOrReplaceTempView("orders")
    spark.sql("DESCRIBE EXTENDED orders").show(100, truncate=False)
    settings = ", ".join(f"{name} '{value}'" for name, value in connection.items())
    sql = f"CREATE TEMPORARY VIEW listed USING rocketmq OPTIONS ({settings}, topic 'Orders')"
    spark.sql(sql)
    spark.sql("EXPLAIN EXTENDED SELECT count(*) FROM listed").show(100, truncate=False)
    show("rows of SQL", spark.sql("SELECT count(*) FROM listed").collect())

    body = spark.createDataFrame([(b"x",)], "body binary")
    writer = body.write.format("rocketmq").mode("append").options(**connection)
    show("written", writer.save(topic="Orders"))

    source = spark.readStream.format("rocketmq").options(**connection)
    stream = source.load(topic="Orders", startingOffsets="earliest").select("body")
    sink = stream.writeStream.format("rocketmq").options(**connection).option("topic", "Copies")
    query = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    running = query.start()
    running.awaitTermination()
    show("stream", running.recentProgress, running.status, running.exception())
    running.explain(True)

    other = {**connection, "nameServer": "127.0.0.1:1", "fetchOffset.numRetries": "0"}
    reader = spark.read.format("rocketmq")
    tried("no server", lambda: reader.options(**other).load(topic="Orders").count())
    wrong = {**connection, "pullBatchSize": "none"}
    tried("wrong", lambda: spark.read.format("rocketmq").options(**wrong).load().count())
    tried("folder", lambda: spark.read.format("rocketmq").options(**connection).load(store))
    tried("unknown", lambda: spark.read.format("rocketmq").load(secretKeys=secret, path=store))
    result = compare(spark, store, connection)
    show("compare", result, result.as_json())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
