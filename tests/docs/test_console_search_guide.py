"""The guide of the console's search: its parameters, paths and settings are those of the code."""

import re
from pathlib import Path
from urllib.parse import parse_qs

from typer.main import get_command

from reput.cli.app import build_app
from reput.console import bodies, live_rows, resending, resends, scan, search, settings
from reput.console.actions import dead_letters as actions
from reput.console.app import CHANGES, ROUTES, WORK
from reput.console.pages import dead_letters, messages
from reput.console.search import Budget

PAGE = (
    Path(__file__).parents[2] / "docs" / "how-to" / "search-messages-in-the-console.md"
).read_text()


LIMITS = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_has_each_parameter_of_a_search() -> None:
    table = PAGE.partition("| parameter | finds |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(
        (*messages.FIELDS, *messages.LIMITS)
    )


def test_limits_are_those_of_the_code() -> None:
    budget = Budget()
    assert f"{budget.message_count:,} messages, {budget.byte_count >> 20:,} MiB" in PAGE
    assert f"{budget.duration_ms // 1000} s |" in PAGE
    question = search.Question(topic="Orders")
    assert f"{question.row_count}, at most {search.ROWS_MAX} |" in PAGE
    assert (bodies.SHOWN_BYTES_MAX, bodies.HEX_BYTES_MAX) == (64 * 1024, 4 * 1024)
    assert "Over 64 KiB (hex: 4 KiB)" in PAGE
    assert (scan.SEARCHES_PER_USER_MAX, scan.SEARCHES_MAX, messages.PAGE_MS) == (2, 4, 1000)
    assert f"`{resends.RESENT}`" in PAGE


def test_limits_of_resends_are_those_of_the_code() -> None:
    listed = LIMITS.partition("\n## Console\n")[2]
    counted = f"{actions.COUNTED_MAX:,} letters"
    size = f"{actions.COUNTED_BYTES_MAX >> 20} MiB"
    assert f"reads {counted} or {size}, for at most {actions.COUNTING_S} s" in listed
    assert f"({size})" in PAGE
    assert counted.split()[0] in PAGE
    rate = f"({resending.RATE} a second by default, at most {resending.RATE_MAX:,})"
    assert rate in PAGE
    assert f"{resending.RATE_MAX:,} letters a second" in listed
    *pauses, last = resending.PAUSES_S
    assert f"after {', '.join(map(str, pauses))} and {last} s" in PAGE
    assert resending.REFUSED_MAX == 20
    assert "Twenty consecutive letters" in PAGE
    assert f"the first {resending.PROBLEMS_MAX} problems" in PAGE
    assert resending.RUNNING_MAX == 2
    assert f"Two jobs run at once, and one of a group; {resending.KEPT_MAX} that" in PAGE
    assert f"{resending.KEPT_MAX} ended ones" in listed
    for text in (PAGE, listed):
        assert f"{actions.LETTERS_MAX:,} letters" in text
        assert f"{resends.MARKS_MAX:,}" in text
    assert f"{resends.RECEIPTS_MAX:,} are shown with time and user" in listed
    assert f"{dead_letters.SELECTED_MAX} selected ones" in listed
    assert f"follow the cluster: {live_rows.STREAM_COUNT_MAX}" in listed
    for name in dead_letters.FILTER:
        assert f"`{name}`" in PAGE.partition("## Dead letters")[2]


def test_paths_are_pages() -> None:
    known = {re.sub(r"\{\w+\}", "*", path) for path in (*ROUTES, *CHANGES, *WORK)}
    paths = re.findall(r"`(/[\w/]*)`", PAGE)
    assert len(paths) > 6
    for path in paths:
        assert re.sub(r"\b[A-Z]+\b", "*", path) in known


def test_the_example_is_a_search() -> None:
    (query,) = re.findall(r"/messages\?([^' ]+)'", PAGE)
    values = {name: texts[-1] for name, texts in parse_qs(query).items() if name != "format"}
    assert search.plan(search.question_of(values, 0)).ways == (search.Way.KEY,)


def test_the_settings_are_read(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    file = tmp_path / "console.toml"
    file.write_text(text)
    stores = settings.load(file).stores
    assert [(place.name, place.may_be_live) for place in stores.values()] == [
        ("old-broker", False),
        ("running", True),
    ]


def test_options_exist() -> None:
    command = get_command(build_app()).commands["console"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert set(re.findall(r"(?<!\S)`?(--[a-z-]+)", PAGE)) <= options
