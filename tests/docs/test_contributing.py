"""The statements of CONTRIBUTING.md are true: commands, folders, markers, and checked rules."""

import contextlib
import re
import tomllib
from pathlib import Path

from scripts import runner

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE = ROOT / "src/reput"
VAGUE = {"manager", "helper", "helpers", "util", "utils", "impl", "base"}


def section(heading: str) -> str:
    match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert match, f"no heading: {heading}"
    return match[1]


def test_commands_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    commands = set(re.findall(r"`make ([a-z-]+)`", DOCUMENT))
    assert len(commands) > 5
    assert commands <= targets


def test_make_check_runs_the_documented_steps() -> None:
    (recipe,) = re.findall(r"^check:(.*(?:\n\t.*)*)", MAKEFILE, re.MULTILINE)
    for part in ("lint", "types", "layers", "tests/unit", "tests/scripts", "tests/docs"):
        assert part in recipe


def test_each_folder_of_tests_has_its_line() -> None:
    folders = {
        path.name
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and any(path.rglob("test_*.py"))
    }
    assert {f for f in folders if f"`tests/{f}`" not in section("Where things go")} == set()


def test_each_module_that_tests_share_is_in_the_map_of_helpers() -> None:
    modules = {path.stem for path in (ROOT / "tests").glob("*.py")} - {"conftest", "skips"}
    rows = re.search(r"^### Helpers\n(.*?)^### ", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert rows
    named = {
        word
        for row in re.findall(r"^\|.*\|(.*)\|$", rows[1], re.MULTILINE)
        for word in re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row))
    }
    assert named == modules


def test_paths_exist() -> None:
    paths = re.findall(r"`((?:tests|docs|src|scripts)/[\w./-]+)`", DOCUMENT)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_markers_are_those_of_pytest() -> None:
    markers = {line.split(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    named = re.search(r"Markers: (.*?)\.\n", section("Tests"), re.DOTALL)
    assert named
    assert set(re.findall(r"`(\w+)`", named[1])) == markers


def test_names_in_parentheses_are_in_their_file() -> None:
    pairs = re.findall(r"`([A-Z_]+)`(?:, `([A-Z_]+)`)? in\s+`(tests/[\w/.]+)`", DOCUMENT)
    assert pairs
    for *names, path in pairs:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert all(name in text for name in names if name)


def test_the_example_is_a_script_that_passes(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```\n(.*?)^```$", section("Tests"), re.MULTILINE | re.DOTALL)
    path = runner.SCRIPTS / "store/example.script"
    commands = runner.commands_class(path)(tmp_path, "")
    with contextlib.closing(runner.Run(commands, path)) as run:
        assert runner.render(run.run(runner.parse(text))) == text


def test_no_module_has_a_vague_name() -> None:
    stems = [set(path.stem.split("_")) for path in PACKAGE.rglob("*.py")]
    assert len(stems) > 100
    assert not any(stem & VAGUE for stem in stems)
