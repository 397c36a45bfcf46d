"""RocketMQ stores as Spark DataFrames: ``spark.read.format("rocketmq")``."""


def explain(path: str, **options: object) -> str:
    """Return what a read with these options would read and skip, without Spark.

    Args:
        path: The store folder, as for ``load``.
        **options: Options of the source: ``explain(path, topic="orders", startingTimestamp=0)``.

    Raises:
        ReputError: As the read itself would.
    """
    from reput.spark import options as option_texts, rows
    from reput.spark.scan import MessageScan

    texts = {name: str(value) for name, value in options.items()}
    parsed = option_texts.parse({**texts, "path": path})
    scan = MessageScan(parsed, list(rows.message_fields(parsed)))
    scan.tasks()
    return "\n".join(scan.summary.lines)
