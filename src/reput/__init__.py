"""Apache RocketMQ in Python: store, broker, name server, clients, and a data pipeline on Spark.

ARCHITECTURE.md shows the tree, the layers and the invariants.
"""

__version__ = "0.1.0"
