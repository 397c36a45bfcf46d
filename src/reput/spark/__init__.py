"""RocketMQ stores as Spark DataFrames: ``spark.read.format("rocketmq")``."""
