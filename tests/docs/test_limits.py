"""The reference page of limits has every limit of all packages, and no other.

python tests/docs/test_limits.py    prints the right tables
"""

import dataclasses
import re
from pathlib import Path

import all_limits
from reput.broker.settings.config import BrokerConfig
from reput.config import key_of
from reput.controller.config import ControllerConfig
from reput.limits import Limit, declared
from reput.namesrv.config import NamesrvConfig
from reput.store.config import StoreConfig

PAGE = Path(__file__).parents[2] / "docs/reference/limits.md"
SECTION = re.compile(r"^# --- (.+?) -+$", re.MULTILINE)
NAME = re.compile(r"^[A-Z0-9_]+ = declare\(\s*\"(\w+)\"", re.MULTILINE)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \|.*\|$", re.MULTILINE)
SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
CONFIGS = (BrokerConfig, NamesrvConfig, ControllerConfig, StoreConfig)


def maximum(limit: Limit) -> str:
    """Return the readable form of a maximum."""
    if limit.unit == "bytes":
        for size, unit in SIZES:
            if limit.maximum >= size and limit.maximum % size == 0:
                return f"{limit.maximum // size:,} {unit}"
    unit = f" {limit.unit}" if limit.unit else ""
    return f"{limit.maximum:,}{unit}"


def row(limit: Limit) -> str:
    """Return the row of a limit."""
    option = f"`{limit.option}`" if limit.option else ""
    return f"| `{limit.name}` | {limit.subject} | {maximum(limit)} | {limit.scope} | {option} |"


def sections() -> dict[str, list[Limit]]:
    """Return the limits by the sections of the modules."""
    by_name = {limit.name: limit for limit in declared()}
    limits_by_section: dict[str, list[Limit]] = {}
    for module in all_limits.MODULES:
        source = Path(str(module.__file__)).read_text()
        title = ""
        for match in re.finditer(f"{SECTION.pattern}|{NAME.pattern}", source, re.MULTILINE):
            if match[1]:
                title = match[1][0].upper() + match[1][1:]
            else:
                limits_by_section.setdefault(title, []).append(by_name.pop(match[2]))
    assert not by_name, "limits that are not in a section of a module"
    return limits_by_section


def tables() -> str:
    """Return the tables of the page."""
    head = "| limit | what | maximum | per | option |\n|---|---|---|---|---|\n"
    return "\n".join(
        f"## {title}\n\n{head}" + "".join(row(limit) + "\n" for limit in limits_of_title)
        for title, limits_of_title in sections().items()
    )


def test_the_page_has_every_limit_and_no_other() -> None:
    text = PAGE.read_text()
    rows = [match[0] for match in ROW.finditer(text)]
    wanted = [row(limit) for limit in declared()]
    assert [line for line in rows if line not in wanted] == []
    assert [line for line in wanted if line not in rows] == []
    assert len(rows) == len(wanted)


def test_limits_are_below_the_headings_of_the_modules() -> None:
    text = PAGE.read_text()
    parts = re.split(HEADING, text)
    documented = {
        title: [match[1] for match in ROW.finditer(part)]
        for title, part in zip(parts[1::2], parts[2::2], strict=True)
        if ROW.search(part)
    }
    assert documented == {
        title: [limit.name for limit in inside] for title, inside in sections().items()
    }


def test_options_exist_and_have_the_maximum_as_their_default() -> None:
    defaults: dict[str, list[object]] = {}
    for kind in CONFIGS:
        for field in dataclasses.fields(kind):
            defaults.setdefault(key_of(field.name), []).append(field.default)
    for limit in declared():
        if limit.option:
            value = defaults.get(limit.option)
            assert value, f"{limit.name}: no part of the settings has {limit.option}"
            assert set(value) == {limit.maximum}, limit.name


if __name__ == "__main__":
    print(tables(), end="")  # noqa: T201
