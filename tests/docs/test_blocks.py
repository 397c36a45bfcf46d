"""Each block of Python in the documents is a program, or a part of a named one.

A part has the name of its file in its first line, and continues the blocks of that name before it::

    # orders.py
    # orders.py, continued
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PART = re.compile(r"# (\w+\.py)(, continued)?\n")
RULES = "F704,F706,F821,PLE1142"
"""Undefined names; return, yield and await outside of a function."""


def programs(text: str) -> dict[str, str]:
    """Return the programs of a page: the name of each file, or its number, and its source.

    Raises:
        AssertionError: A part continues a file that has not begun.
    """
    files: dict[str, str] = {}
    for number, source in enumerate(BLOCK.findall(text)):
        part = PART.match(source)
        name = part[1] if part else f"block_{number}.py"
        is_continued = part is not None and part[2] is not None
        assert is_continued == (name in files), f"{name}: the first block, or a continued one?"
        files[name] = files.get(name, "") + source
    return files


def problems(folder: Path) -> str:
    """Return what the linter says about the programs in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--preview", "--select", RULES,
         "--output-format", "concise", folder],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout if done.returncode else ""


def test_every_block_is_a_program_or_a_part_of_one(tmp_path: Path) -> None:
    count = 0
    for page in PAGES:
        folder = tmp_path / page.relative_to(ROOT).with_suffix("")
        for name, source in programs(page.read_text(encoding="utf-8")).items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(source, encoding="utf-8")
            count += 1
    assert count > 50
    assert problems(tmp_path) == ""


@pytest.mark.parametrize(
    "source", ["print(mq)\n", "await mq.send()\n", "# a.py, continued\nprint()\n"]
)
def test_a_block_that_is_no_program_fails(tmp_path: Path, source: str) -> None:
    def check() -> None:
        for name, program in programs(f"```python\n{source}```\n").items():
            (tmp_path / name).write_text(program)
        assert problems(tmp_path) == ""

    with pytest.raises(AssertionError):
        check()
