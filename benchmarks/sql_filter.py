"""SQL92 filters: the expression alone, and the cost of a pull by SQL compared with one by tag."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from reput.broker.filter.filters import Filters
from reput.broker.settings.config import BrokerConfig
from reput.format import cq_unit, properties as props, sql92
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage

NAME = "sql_filter"
QUESTION = "evaluations of cached expressions, and units that a pull checks, per CPU second"
EXPRESSIONS = {
    "number": "n > 94",
    "text_and_number": "region = 'eu' AND amount > 500.0",
    "mixed": "n IN ('1', '2', '3') OR (region = 'eu' AND n BETWEEN 10 AND 12)",
}
BODY_BYTES = 1024


def properties(count: int) -> list[dict[str, str]]:
    """Return the properties of a Java producer's message, and three more to filter by."""
    return [
        {
            props.UNIQ_KEY: f"7F0000010000123400000000{number:08d}",
            props.WAIT: "true",
            props.TAGS: f"Tag{number % 4}",
            props.KEYS: f"key-{number}",
            "n": str(number % 100),
            "region": ("eu", "us")[number % 2],
            "amount": f"{number % 1000}.5",
        }
        for number in range(count)
    ]


def best_rate(count: int, run: Callable[[], None]) -> int:
    """Return the rate per CPU second of the best of three runs."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return round(count / best)


def evaluations(expression: str, messages: list[dict[str, str]], rounds: int) -> int:
    """Return the rate of an expression alone."""
    matches = sql92.compile_filter(expression).matches

    def run() -> None:
        for _ in range(rounds):
            for message in messages:
                matches(message)

    return best_rate(rounds * len(messages), run)


def pulls(folder: Path, messages: list[dict[str, str]]) -> dict[str, int]:
    """Return the rates of pulls of 32 through a queue, by their filter."""
    filters = Filters(BrokerConfig(enable_property_filter=True))
    with MessageStore.open(str(folder), StoreConfig()) as store:
        for begin in range(0, len(messages), 1000):
            store.put_many(
                [
                    IncomingMessage("bench", bytes(BODY_BYTES), 0, props.encode(message))
                    for message in messages[begin : begin + 1000]
                ]
            )
        end = store.max_offset("bench", 0)

        def rate(**wanted: object) -> int:
            def run() -> None:
                queue_offset = 0
                while queue_offset < end:
                    batch = store.get("bench", 0, queue_offset, 32, **wanted)  # type: ignore[arg-type]
                    queue_offset = batch.next_offset

            return best_rate(end, run)

        rates = {"all": rate(), "one_tag_of_4": rate(tags_codes=[cq_unit.tags_code("Tag1")])}
        for name, expression in EXPRESSIONS.items():
            wanted = filters.of_expression("SQL92", expression).message_filter
            rates[f"sql_{name}"] = rate(message_filter=wanted)
    shutil.rmtree(folder)
    return rates


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure both."""
    count = 10_000 if quick else 100_000
    messages = properties(count)
    return {
        "evaluations_per_cpu_s": {
            name: evaluations(expression, messages[:1000], count // 500)
            for name, expression in EXPRESSIONS.items()
        },
        "units_per_cpu_s": pulls(folder / NAME, messages),
    }
