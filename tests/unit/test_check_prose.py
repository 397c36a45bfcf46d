"""The check of language: for each rule text that breaks it, and text that does not."""

from pathlib import Path

import pytest

from scripts import check_prose as prose


def rules(folder: Path, source: str, name: str = "src/module.py") -> list[str]:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    avoided = prose.avoided_words()
    findings = prose.check(path, prose.patterns_of(avoided), prose.NameRules(avoided))
    return [rule for _, _, rule in findings]


@pytest.mark.parametrize(
    ("wrong", "right", "rule"),
    [
        ("# It stands here.\n", "# It is here.\n", '"stands": is, is at, contains'),  # sic
        ('X = "lies behind it"\n', 'X = "follows it"\n', '"behind": after'),  # sic
        ('def f():\n    """The end."""\n', 'def f():\n    """Return it."""\n', "with a verb"),
        ('X = 1\n"""Of a queue."""\n', 'X = 1\n"""Size."""\n', "with a noun"),
        ("found = 1\n", "FOUND = 1\n", "variable 'found': name it by what it holds"),
        ("def f(at): ...\n", "def f(active_at): ...\n", "variable 'at'"),
        ("def _told(): ...\n", "def at(): ...\n", "function '_told': name it by what it does"),
        ("class Wanted: ...\n", "class WantedRows: ...\n", "class 'Wanted': its last word"),
        ("class FileTwin: ...\n", "class FileCopy: ...\n", "class 'FileTwin' has 'twin'"),  # sic
        ("BYTES_BEHIND = 1\n", "BYTES_AFTER = 1\n", "variable 'BYTES_BEHIND' has 'behind'"),  # sic
        ("def f(told_ms): ...\n", "def f(untold_ms): ...\n", "'told_ms' has 'told'"),  # sic
        ("x.is_common = 1\n", "x.common_prefix = 1\n", "'is_common' has 'is common'"),  # sic
        ("def look_at(): ...\n", "def lookup(): ...\n", "'look_at' has 'look at': write read"),
        ("def test_it_is_told(): ...\n", "def test_it_says_so(): ...\n", "has 'told'"),  # sic
    ],
)  # fmt: skip
def test_each_rule(tmp_path: Path, wrong: str, right: str, rule: str) -> None:
    (text,) = rules(tmp_path, wrong)
    assert rule in text
    assert rules(tmp_path, right) == []


def test_another_programs_names_are_marked(tmp_path: Path) -> None:
    assert rules(tmp_path, "BEHIND_MS = 1\n") != []
    assert rules(tmp_path, "BEHIND_MS = 1  # sic\n") == []


def test_imported_names_are_not_checked(tmp_path: Path) -> None:
    assert rules(tmp_path, "from other import tell") == []  # sic


def test_a_document_has_no_names(tmp_path: Path) -> None:
    assert rules(tmp_path, "It stands here.\n", "src/page.md") != []  # sic
    assert rules(tmp_path, "`told_ms` is here.\n", "src/page.md") == []
