"""Limits of the source for Spark."""

from reput.limits import declare

# --- Spark -----------------------------------------------------------------------------------

LIVE_PARTITIONS = declare(
    "live_partitions", "partitions of a read from brokers, by the ends that these report", 200_000
)
