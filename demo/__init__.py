"""The demo that ``make run`` starts: ``python -m demo --help``.

It starts a broker, sends messages, consumes them and streams them into Parquet. Then Spark rebuilds
queues and index of the broker's store, audits it and reports on it. The demo uses only the public
interface of the library.
"""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise SystemExit("the demo needs Spark: pip install '.[spark]'")
