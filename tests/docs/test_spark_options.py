"""The tables of the reference page of Spark's options are generated from the table of the code.

python tests/docs/test_spark_options.py    writes them into the page
"""

import dataclasses
import re
from pathlib import Path

import pytest

from reput.errors import InvalidOption
from reput.spark import option_table, options
from reput.spark.importing import options as import_options
from reput.spark.importing.options import ImportOptions
from reput.spark.option_table import (
    FILES,
    NOT_YET,
    OPTIONS,
    READS,
    SECTIONS,
    WRITES,
    Option,
    Source,
)
from reput.spark.options import LiveOptions, ReadOptions, TriggerLimits
from reput.spark.sending import options as write_options
from reput.spark.sending.options import RowOptions, SendOptions

PAGE = Path(__file__).parents[2] / "docs/reference/spark-options.md"
HEAD = "| option | values | default | applies to | meaning |\n|---|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\|\n)*")
OF_READS: tuple[type, ...] = (ReadOptions, LiveOptions, TriggerLimits)
OF_SENDS: tuple[type, ...] = (RowOptions, SendOptions)
MORE_THAN_ONE = ("corrupt_column", "start_offsets", "end_offsets")
"""Fields that depend on more than one option."""
SECTION = re.compile(r"^## (.+)\n(?:(?!^## )[\s\S])*", re.MULTILINE)


def applies_to(option: Option) -> str:
    """Return the uses and sources of an option, empty if it has all those of its section."""
    is_read = bool(option.uses & READS)
    words = [
        {option_table.Use.READ: "batch", option_table.Use.WRITE: "batch"}.get(use, "stream")
        for use in option.uses
    ]
    words_of_option = words if len(words) == 1 else []
    everything = option_table.ANYWHERE if is_read else Source.FOLDER | Source.BROKERS
    if option.sources != everything:
        names = {Source.FOLDER: "folders", Source.ARCHIVE: "archives", Source.BROKERS: "brokers"}
        words_of_option += [name for source, name in names.items() if source & option.sources]
    return ", ".join(words_of_option)


def row(option: Option) -> str:
    """Return the row of an option."""
    names = ", ".join(f"`{name}`" for name in option.names.split())
    allowed = option.kind.allowed.replace(f" to {(1 << 63) - 1}", " on")
    default = option.without or (f"`{option.default}`" if option.default else "")
    cells = (names, allowed, default, applies_to(option), option.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n".replace(
        "|  |", "| |"
    )


def page() -> str:
    """Return the page with the right tables."""

    def section(match: re.Match[str]) -> str:
        rows = HEAD + "".join(map(row, SECTIONS.get(match[1], ())))
        return TABLE.sub(lambda _: rows, match[0])

    return SECTION.sub(section, PAGE.read_text())


def test_the_tables_equal_those_of_the_code() -> None:
    assert page() == PAGE.read_text(), f"run python {__file__}"
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert [heading for heading in headings if heading in SECTIONS] == [*SECTIONS]


def test_options_that_are_not_supported_are_named() -> None:
    text = PAGE.read_text()
    assert all(f"`{name}`" in text for name in NOT_YET)


def test_each_name_means_one_thing_for_a_use_and_a_source() -> None:
    for uses in option_table.Use:
        for source in Source:
            keys = [
                key
                for option in OPTIONS
                if option.uses & uses and option.sources & source
                for key in option.keys
            ]
            assert len(keys) == len({*keys}), (uses, source)


def test_an_unknown_name_is_refused_with_all_known_names() -> None:
    for parse, uses, sources, given in (
        (options.parse, READS, FILES, {"path": "x"}),
        (options.parse, READS, Source.BROKERS, {"nameServer": "a:1"}),
        (write_options.parse, WRITES, Source.BROKERS, {"nameServer": "a:1"}),
        (import_options.parse, WRITES, Source.FOLDER, {"path": "/x"}),
    ):
        with pytest.raises(InvalidOption) as refused:
            parse({**given, "noSuchOption": "1"})  # type: ignore[operator]
        names = {
            name
            for option in OPTIONS
            if option.uses & uses and option.sources & sources
            for name in option.names.split()
        }
        assert {*refused.value.allowed.removeprefix("one of ").split(", ")} == names | {
            "nameServer"
        }


def test_defaults_of_the_code_equal_those_of_the_table() -> None:
    defaults = {
        kind: {field.name: field.default for field in dataclasses.fields(kind)}
        for kind in (
            ReadOptions,
            LiveOptions,
            TriggerLimits,
            RowOptions,
            SendOptions,
            ImportOptions,
        )
    }
    compared = 0
    for option in OPTIONS:
        if option.default is None or option.field in (
            "corrupt_column",
            "start_offsets",
            "end_offsets",
        ):
            continue
        is_read = bool(option.uses & READS)
        kinds = (ReadOptions, LiveOptions, TriggerLimits)
        if not is_read:
            kinds = (
                (RowOptions, SendOptions) if option.sources & Source.BROKERS else (ImportOptions,)
            )
        values = [defaults[kind][option.field] for kind in kinds if option.field in defaults[kind]]
        assert values == [option.kind.decode(option.default)], option.name
        compared += 1
    assert compared > 35


if __name__ == "__main__":
    PAGE.write_text(page())
