"""The document ``tests/PROTECTION.md``, from the list of mutants and the results of their runs."""

import datetime
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mutation_places import AREAS, Mutant

SUITES = ("scripts", "behaviour", "model", "sim", "fuzz", "crash", "faults", "interop", "spark")
"""Folders of ``tests`` that have a row each, after those of ``tests/unit``."""
LOWEST_MAX = 20

Results = Mapping[str, Any]


def suite_of(test: str) -> str:
    """Return the suite of a test: ``unit/store``, ``model``."""
    parts = test.partition("::")[0].removeprefix("tests/").split("/")
    return "/".join(parts[: 2 if parts[0] == "unit" else 1])


def state(mutant: Mutant, result: Results | None, source: str | None) -> str:
    """Return the state of a mutant, a column of the table of areas."""
    if source is None or not mutant.is_in(source):
        return "lost"
    if mutant.equivalent:
        return "equivalent"
    if not result or not any(result["stages"].values()):  # no test in the stages so far
        return "not played"
    return "killed" if result["killer"] else "survived"


def document(
    mutants: Sequence[Mutant], results: Results, sources: Mapping[str, str], tests: Path, seed: int
) -> str:
    """Return the text of the document.

    Args:
        mutants: All mutants.
        results: ``mutants`` has the results by id, ``suites`` the CPU seconds of suites, and
            ``coverage`` the lines that unit tests reach and all lines, by module.
        sources: The sources by path.
        tests: The folder of tests.
        seed: The seed with which the mutants were drawn.
    """
    played = results.get("mutants", {})
    states = {each.id: state(each, played.get(each.id), sources.get(each.file)) for each in mutants}
    parts = [
        f"# What the suite notices\n\n{_introduction(played, states, seed)}",
        "## Suites\n\n" + "\n".join(_suite_rows(mutants, results, states, tests)),
        "## Areas\n\n" + "\n".join(_area_rows(mutants, states)),
        "## Operators\n\n" + "\n".join(_operator_rows(mutants, states)),
        "## Survivors\n\n" + "\n".join(_survivor_rows(mutants, played, states, sources)),
        "## Equivalent mutants\n\n" + "\n".join(_equivalent_rows(mutants, states, sources)),
        "## Coverage\n\n" + "\n".join(_coverage_rows(results.get("coverage", {}))),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(played: Results, states: Mapping[str, str], seed: int) -> str:
    counts = Counter(states.values())
    commits = sorted({result["commit"] for result in played.values()})
    whole = sum(bool(row["killer"] or "others" in row["stages"]) for row in played.values())
    return f"""Written by `scripts/mutants.py report`; do not edit it.
[mutants.toml](mutants.toml) has {len(states)} changes of the source, drawn with seed {seed}.
`make mutants` plays each against the tests, the cheapest first, until one fails; the tests' seed is
the same. [mutants.json](mutants.json) has the results, of the commits {", ".join(commits)}.
The document was written on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} on a machine with
{os.cpu_count()} processors.

{counts["killed"] + counts["survived"]} of {len(states)} were played, and {whole} of these until a
test failed or all stages had passed. {counts["killed"]} are killed, {counts["survived"]} survived
so far, and {counts["equivalent"]} are equivalent: no test can notice them. A survivor whose row
does not name the stage `others` may be killed by a later stage that was not played yet.

Kernels are compiled again with each mutant of theirs. A suite is the first to kill a mutant if
those before it in the order of `STAGES` in `scripts/mutants.py` do not. CPU seconds are those of
the suite alone, without a mutant (`scripts/mutants.py cost`); an empty cell was not measured."""


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _head(*titles: str) -> list[str]:
    return [_row(*titles), f"|{'---|' * len(titles)}"]


def _suite_rows(
    mutants: Iterable[Mutant], results: Results, states: Mapping[str, str], tests: Path
) -> Iterator[str]:
    played = results.get("mutants", {})
    killers = [played[each.id]["killer"] for each in mutants if states[each.id] == "killed"]
    first = Counter(suite_of(killer) for killer in killers)
    units = sorted(f"unit/{path.name}" for path in (tests / "unit").iterdir() if path.is_dir())
    yield from _head("suite", "lines", "test functions", "CPU seconds", "first to kill")
    for suite in [*(name for name in units if "__" not in name), *SUITES]:
        texts = [path.read_text(encoding="utf-8") for path in (tests / suite).rglob("*.py")]
        functions = sum(
            len(re.findall(r"^ *(?:async )?def test_", text, re.MULTILINE)) for text in texts
        )
        lines = sum(text.count("\n") for text in texts)
        seconds = results.get("suites", {}).get(suite)
        yield _row(suite, lines, functions, "" if seconds is None else round(seconds), first[suite])
    if first["compiler"]:
        yield _row("the compiler of kernels", "", "", "", first["compiler"])


def _area_rows(mutants: Sequence[Mutant], states: Mapping[str, str]) -> Iterator[str]:
    columns = ("killed", "survived", "equivalent", "lost", "not played")
    yield from _head("area", "mutants", *columns)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        counts[mutant.area][states[mutant.id]] += 1
        counts["all"][states[mutant.id]] += 1
    for area in (*AREAS, "all"):
        yield _row(area, counts[area].total(), *(counts[area][column] for column in columns))


def _operator_rows(mutants: Sequence[Mutant], states: Mapping[str, str]) -> Iterator[str]:
    yield from _head("operator", "killed", "survived")
    counts = Counter((each.operator, states[each.id]) for each in mutants)
    for operator in sorted({each.operator for each in mutants}):
        yield _row(operator, counts[operator, "killed"], counts[operator, "survived"])


def _change(mutant: Mutant, sources: Mapping[str, str]) -> tuple[str, str]:
    source = sources[mutant.file]
    number = mutant.line_in(source)
    pairs = zip(mutant.before.splitlines(), mutant.after.splitlines(), strict=False)
    old, new = next((old.strip(), new.strip()) for old, new in pairs if old != new)
    return f"{mutant.file.removeprefix('src/reput/')}:{number}", f"`{old}` → `{new}`"


def _survivor_rows(
    mutants: Iterable[Mutant],
    played: Results,
    states: Mapping[str, str],
    sources: Mapping[str, str],
) -> Iterator[str]:
    yield from _head("mutant", "place", "change", "survived")
    for mutant in mutants:
        if states[mutant.id] == "survived":
            stages = played[mutant.id]["stages"]
            names = [name + (", cut" if "cut" in stages[name] else "") for name in stages]
            last = [name for name, stage in zip(names, stages.values(), strict=True) if stage]
            yield _row(mutant.id, *_change(mutant, sources), ", ".join(last))


def _equivalent_rows(
    mutants: Iterable[Mutant], states: Mapping[str, str], sources: Mapping[str, str]
) -> Iterator[str]:
    yield from _head("mutant", "place", "change", "why")
    for mutant in mutants:
        if states[mutant.id] == "equivalent":
            yield _row(mutant.id, *_change(mutant, sources), mutant.equivalent)


def _coverage_rows(modules: Mapping[str, Sequence[int]]) -> Iterator[str]:
    if not modules:
        yield (
            "It was not measured: `scripts/mutants.py coverage unit` needs the package coverage, "
            "and takes more than fifteen minutes."
        )
        return
    reached, lines = (sum(row[column] for row in modules.values()) for column in (0, 1))
    yield f"Unit tests reach {100 * reached / lines:.0f} % of {lines} lines. The lowest modules:\n"
    yield from _head("module", "lines", "reached, %")
    lowest = sorted(modules, key=lambda name: (modules[name][0] / modules[name][1], name))
    for name in lowest[:LOWEST_MAX]:
        yield _row(name, modules[name][1], round(100 * modules[name][0] / modules[name][1]))
