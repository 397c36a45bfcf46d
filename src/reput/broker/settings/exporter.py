"""Settings of the exporter with RocketMQ's names of metrics: ``metricsExporterType=PROM``.

Source: rocketmq 5.5.0 ``MetricsExporterType``, ``BrokerMetricsManager``.
"""

import enum
import re

from reput.errors import InvalidOption

PORT = 5557
"""Default of ``metricsPromExporterPort``."""
COMMON_LABELS = ("cluster", "node_type", "node_id", "otel_scope_name")
"""Labels of every metric."""
LABELS = frozenset(
    {
        *COMMON_LABELS,
        *("consume_mode", "consumer_group", "folder", "group", "invocation_status"),
        *("is_long_polling", "is_retry", "is_system", "language", "le", "message_type", "part"),
        *("processor", "protocol_type", "put_status", "queue_id", "request_code", "response_code"),
        *("result", "revive_message_type", "storage_medium", "storage_type", "timer_bound_s"),
        *("topic", "version"),
    }
)
"""Names that ``metricsLabel`` cannot use: with two labels of a name no metric can be read."""

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class MetricsExporter(enum.StrEnum):
    """How RocketMQ's metrics are exported."""

    DISABLE = "DISABLE"
    OTLP_GRPC = "OTLP_GRPC"
    PROM = "PROM"
    LOG = "LOG"


def check_exporter(exporter: MetricsExporter) -> None:
    """Refuse exporters other than Prometheus' one. Raises ``InvalidOption``."""
    if exporter not in (MetricsExporter.DISABLE, MetricsExporter.PROM):
        allowed = "DISABLE or PROM: metrics are scraped; a collector can scrape them for others"
        raise InvalidOption("metricsExporterType", exporter, allowed)


def parse_labels(text: str) -> dict[str, str]:
    """Return the labels of ``metricsLabel``: ``instance_id:a,uid:b``.

    Raises:
        InvalidOption: A pair is incomplete, its name is not one of a label, or is in use.
    """
    labels = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, value = (word.strip() for word in pair.partition(":"))
        if not _NAME.fullmatch(name) or name.startswith("__") or not value:
            allowed = "name:value pairs separated by commas; names of letters, digits and _"
            raise InvalidOption("metricsLabel", pair, allowed)
        if name in LABELS:
            raise InvalidOption("metricsLabel", pair, f"a name other than {name}, which is in use")
        labels[name] = value
    return labels
