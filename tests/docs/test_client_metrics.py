"""The reference page of client metrics has every metric, with its kind, unit and labels.

python tests/docs/test_client_metrics.py    prints the right table
"""

from pathlib import Path

from reput.client.core.send_counts import TOPICS_MAX
from reput.client.metrics import METRICS, Metric

PAGE = Path(__file__).parents[2] / "docs/reference/client-metrics.md"


def row(metric: Metric) -> str:
    """Return the row of a metric."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} | {metric.help} |"


def test_the_table_has_every_metric_and_no_other() -> None:
    lines = PAGE.read_text().splitlines()
    documented = [line for line in lines if line.startswith("| `reput_client_")]
    assert documented == [row(metric) for metric in METRICS]


def test_the_number_of_topics_is_that_of_the_code() -> None:
    assert f"The first {TOPICS_MAX} topics of a client" in " ".join(PAGE.read_text().split())


if __name__ == "__main__":
    print("\n".join(map(row, METRICS)))  # noqa: T201
