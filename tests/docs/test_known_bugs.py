"""docs/known-bugs.md: every citation has a row, and every row has an existing test or script."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/known-bugs.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| <a ")]
SLUGS = {match[1] for row in ROWS if (match := re.match(r'\| <a id="([a-z0-9-]+)"></a>', row))}
CITATION = re.compile(r"known-bugs\.md#([a-z0-9-]+)")


def cited() -> dict[str, set[str]]:
    """Return the cited rows of each file."""
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "tests").rglob("*.script"),
        *(ROOT / "tests/sim/scenarios").glob("*.txt"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
    ]
    texts = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
    return {file: slugs for file, text in texts.items() if (slugs := {*CITATION.findall(text)})}


def test_every_citation_has_a_row() -> None:
    citations = cited()
    assert len(citations) > 40
    assert {file: slugs - SLUGS for file, slugs in citations.items() if slugs - SLUGS} == {}


def test_rows_have_unique_names() -> None:
    assert len(SLUGS) == len(ROWS) >= 39


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split('"')[1])
def test_a_row_names_a_test_that_exists(row: str) -> None:
    """A row names a test function, a step of a script, or a script or scenario that cites it."""
    file, *names = re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1])
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".py"):
        (name,) = names
        assert re.search(rf"def {name}\(", text)
    elif names:
        assert re.search(rf"(?m)^# {names[0]}", text)
    else:
        slug = row.split('"')[1]
        assert f"known-bugs.md#{slug}" in text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split('"')[1])
def test_links_lead_to_the_named_issues(row: str) -> None:
    links = re.findall(r"\[#(\d+)\]\(https://github\.com/apache/rocketmq/issues/(\d+)\)", row)
    assert all(shown == target for shown, target in links)
    assert row.count("[#") == len(links)
