"""The pictures in ARCHITECTURE.md and the names in docs/journeys are true."""

import ast
import graphlib
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "reput"
DOCUMENT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


# --- reading the document -----------------------------------------------------


def section(document: str, heading: str) -> str:
    """Return the text below a second-level heading, up to the next one."""
    pattern = rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)"
    match = re.search(pattern, document, re.MULTILINE | re.DOTALL)
    assert match, f"no heading: {heading}"
    return match[1]


def fenced(text: str) -> str:
    """Return the first block between triple backticks."""
    return text.split("```")[1].strip("\n")


def picture_paths(picture: str) -> list[str]:
    """Yield every path of an indented folder picture, whole: ``a/``, ``a/b.py`` ..."""
    paths: list[str] = []
    folders: list[tuple[int, str]] = []
    for line in picture.splitlines():
        indent = len(line) - len(line.lstrip())
        name = line.split()[0]
        folders = [(depth, folder) for depth, folder in folders if depth < indent]
        path = "".join(folder for _, folder in folders) + name
        paths.append(path)
        if name.endswith("/"):
            folders.append((indent, name))
    return paths


# --- reading the folders ------------------------------------------------------


def package_folders(package: Path) -> set[str]:
    """Return folders below a package that hold Python, as ``format/kernels/``."""
    return {f"{file.parent.relative_to(package)}/" for file in package.glob("*/**/*.py")}


def loose_modules(package: Path) -> set[str]:
    """Return the modules beside the folders; dunder files need no line in a picture."""
    return {file.name for file in package.glob("*.py") if not file.name.startswith("__")}


def resolve(path: str) -> Path | None:
    """Return a path of the document: below the package, or from the root."""
    return next((base / path for base in (PACKAGE, ROOT) if (base / path).exists()), None)


@cache
def defined(source: str) -> set[str]:
    """Return every name that a module defines: ``f``, ``C``, ``C.method``, ``CONSTANT``."""

    def names(body: list[ast.stmt], prefix: str) -> set[str]:
        names_of_module: set[str] = set()
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    names_of_module.add(prefix + node.name)
                case ast.ClassDef():
                    names_of_module.add(prefix + node.name)
                    names_of_module |= names(node.body, f"{prefix}{node.name}.")
                case ast.Assign():
                    names_of_module |= {
                        prefix + t.id for t in node.targets if isinstance(t, ast.Name)
                    }
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names_of_module.add(prefix + name)
                case ast.If() | ast.Try():
                    names_of_module |= names([*node.body, *node.orelse], prefix)
        return names_of_module

    return names(ast.parse(source).body, "")


def broken_names(text: str) -> list[str]:
    """Return the names in a text that do not exist.

    A name belongs to the module before it if only white space is between them.
    """
    paths = re.findall(r"`([\w./-]+\.py)`", text)
    wrong = [path for path in paths if resolve(path) is None]
    for path, name in re.findall(r"`([\w./-]+\.py)`\s+`([A-Za-z_][\w.]*)`", text):
        file = resolve(path)
        if file is not None and name not in defined(file.read_text(encoding="utf-8")):
            wrong.append(f"{name}: not in {file.relative_to(ROOT)}")
    return wrong


# --- the document ---------------------------------------------------------

PAGES = sorted((ROOT / "docs/journeys").glob("*.md"))
TREE = picture_paths(fenced(section(DOCUMENT, "The tree")))


def test_the_document_is_short() -> None:
    assert len(DOCUMENT.splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_in_journeys_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"`[\w/]+\.py`", text)) >= 5
    assert [wrong for block in text.split("\n\n") for wrong in broken_names(block)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_journey_is_about_a_page_long(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 80


def test_every_journey_is_listed() -> None:
    listed = (ROOT / "docs/journeys/README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} == {
        *re.findall(r"\]\(([\w-]+\.md)\)", listed),
        "README.md",
    }


def test_tree_names_exist() -> None:
    assert [path for path in TREE if not (ROOT / path).exists()] == []


def test_tree_shows_every_part_of_the_package() -> None:
    shown = {path.removeprefix("src/reput/") for path in TREE if path.startswith("src/reput/")}
    folders = {folder for folder in package_folders(PACKAGE) if folder.count("/") == 1}
    assert {path for path in shown - {""} if path.strip("/").count("/") == 0} == (
        folders | loose_modules(PACKAGE)
    )


def test_tree_shows_every_package() -> None:
    packages = {f"src/{file.parent.name}/" for file in SRC.glob("*/__init__.py")}
    assert packages <= set(TREE)


def test_tree_shows_every_folder_of_the_repository() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    folders = {line.split("/")[0] + "/" for line in listed.stdout.splitlines() if "/" in line}
    assert {folder for folder in folders if not folder.startswith(".")} <= set(TREE)


def test_layers_are_those_of_import_linter() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    assert fenced(section(DOCUMENT, "Layers")).splitlines() == layers


# --- the checks themselves ------------------------------------------------


def test_picture_paths_follow_the_indentation() -> None:
    picture = "src/\n  a/      words\n    b.py  words\n    c/    words\n  d/      words\ntests/"
    assert picture_paths(picture) == [
        "src/",
        "src/a/",
        "src/a/b.py",
        "src/a/c/",
        "src/d/",
        "tests/",
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`pyproject.toml`, `src/reput/__init__.py` `__version__`", []),
        ("`store/no_such_module.py`", ["store/no_such_module.py"]),
        ("`src/reput/__init__.py`\n  `gone`", ["gone: not in src/reput/__init__.py"]),
        ("`anything` and `src/reput/` `anything`", []),
        ("`src/reput/__init__.py`, then `gone`", []),
    ],
)
def test_broken_names_finds_missing_names(text: str, wrong: list[str]) -> None:
    assert broken_names(text) == wrong


def test_defined_names() -> None:
    source = """
LIMIT = 1
size: int = 2
class Reader:
    depth: int
    def message_at(self): ...
async def follow(): ...
if LIMIT:
    def sometimes(): ...
"""
    assert defined(source) == {
        "LIMIT",
        "size",
        "Reader",
        "Reader.depth",
        "Reader.message_at",
        "follow",
        "sometimes",
    }


def test_imports_have_no_cycle() -> None:
    """This covers all files of ``src``; annotations count as imports."""
    graph = grimp.build_graph("reput", "pyspark_rocketmq", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 300
    assert list(graphlib.TopologicalSorter(imports).static_order())  # Raises CycleError.


def test_no_class_name_in_three_modules() -> None:
    """Each name has one meaning: a search for a class finds at most two."""
    places: dict[str, list[str]] = {}
    for file in SRC.rglob("*.py"):
        for name in re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            places.setdefault(name, []).append(str(file.relative_to(SRC)))
    assert len(places) > 500
    assert {name: files for name, files in places.items() if len(files) > 2} == {}
