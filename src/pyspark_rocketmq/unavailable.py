"""The data source where reput cannot be imported: every use raises the reason."""

from typing import Any


def unavailable(reason: Exception) -> type:
    """Return a data source of the same name whose use is an ``ImportError`` with a reason."""
    try:
        from pyspark.sql.datasource import DataSource as parent
    except Exception:  # noqa: BLE001 - no PySpark, or one before 4.0: Spark looks for no sources
        parent = object  # type: ignore[misc, assignment]
    # The text of reput.extras, which may be what cannot be imported.
    install = "pip install '.[spark]' in a clone of reput"
    text = f"format('rocketmq') needs PySpark 4.0 or later and {install}: {reason}"

    class Unavailable(parent):
        """Named like the data source."""

        def __init__(self, options: Any = None) -> None:
            raise ImportError(text)

        @classmethod
        def name(cls) -> str:
            """Return ``rocketmq``."""
            return "rocketmq"

    return Unavailable
