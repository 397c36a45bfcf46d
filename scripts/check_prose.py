"""Check the language of docstrings, comments, messages and documents; part of ``make lint``.

The words to avoid are the last table of docs/glossary.md. Three more rules: a function's docstring
starts with a verb, an attribute's with a noun, and no variable or argument is called "one",
"found", "at", "thing", "said" or "told".

``python scripts/check_prose.py [--count] [PATH ...]``; exit code 1 if there are findings. Code in
backticks, code blocks and lines with the comment ``sic`` (another program's words) are skipped.
"""

import ast
import collections
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_PATHS = (
    "src", "tests", "demo", "benchmarks", "scripts", "examples", "docs",
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md",
)  # fmt: skip
GLOSSARY = ROOT / "docs" / "glossary.md"
AVOIDED_HEADING = "## Words to avoid"
VAGUE_NAMES = frozenset({"one", "found", "at", "thing", "said", "told"})
PREPOSITIONS = frozenset({"Of", "By", "For", "With", "As", "In", "On", "At", "To", "From"})
NOT_VERBS = PREPOSITIONS | {
    "Whether", "How", "What", "Which", "Who", "Whose", "Where", "When", "Why", "The", "A", "An",
    "That", "Those", "This", "These", "All", "Each", "Every", "No", "Not", "Nothing", "One", "Two",
    "Only", "So", "If", "It", "Its", "They", "Same", "Like", "Also",
}  # fmt: skip
NOT_NOUNS = PREPOSITIONS | {"That", "Who", "Whose", "If"}
CODE = re.compile(r"``.*?``|`[^`]*`|\"[^\"]*\"", re.DOTALL)


class Text(NamedTuple):
    """A stretch of prose: its first line, what it is, and its words."""

    line: int
    kind: str  # "function", "attribute", "property", "class", "comment", "message", "document"
    words: str


class Finding(NamedTuple):
    """A place that breaks a rule."""

    path: Path
    line: int
    rule: str


def avoided_words() -> list[tuple[re.Pattern[str], str]]:
    """Read the words to avoid from the glossary, each with what to write instead."""
    _, _, table = GLOSSARY.read_text().partition(AVOIDED_HEADING)
    rows = re.findall(r"^\| (?!avoid \||-)(.+?) \| (.+?) \|$", table, re.MULTILINE)
    return [
        (re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE), f'"{word}": {instead}')
        for words, instead in rows
        for word in words.split(", ")
    ]


def texts_of_python(source: str, nodes: list[ast.AST]) -> Iterator[Text]:
    """Yield docstrings, attribute docs, comments and messages of a module."""
    documented: set[int] = set()
    for node in nodes:
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for number, statement in enumerate(body):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            words = statement.value.value
            if isinstance(words, str):
                documented.add(id(statement.value))
                yield Text(statement.lineno, _kind_of(node, number), words)
    for node in nodes:
        if not isinstance(node, ast.Constant) or id(node) in documented:
            continue
        if isinstance(node.value, str) and " " in node.value:
            yield Text(node.lineno, "message", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], "comment", token.string)


def _kind_of(node: ast.AST, number: int) -> str:
    if number:
        return "attribute"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
        return "property" if any("property" in name for name in names) else "function"
    return "class"


def texts_of_markdown(source: str) -> Iterator[Text]:
    """Yield the lines of a document that are no code."""
    is_code = False
    for number, line in enumerate(source.split(AVOIDED_HEADING)[0].splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield Text(number, "document", line)


def vague_names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield variables and arguments with a vague name, where they are bound."""
    for node in nodes:
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        else:
            continue
        if name in VAGUE_NAMES:
            yield node.lineno, name


def check(path: Path, avoided: list[tuple[re.Pattern[str], str]]) -> Iterator[Finding]:
    """Yield the findings of a file."""
    source = path.read_text()
    is_python = path.suffix == ".py"
    sic = {number for number, line in enumerate(source.splitlines(), 1) if "# sic" in line}
    nodes = list(ast.walk(ast.parse(source))) if is_python else []
    for text in texts_of_python(source, nodes) if is_python else texts_of_markdown(source):
        prose = CODE.sub(lambda code: re.sub(r"[^\n]", "_", code[0]), text.words)
        if text.kind == "message":
            prose = text.words
        for pattern, advice in avoided:
            for match in pattern.finditer(prose):
                line = text.line + prose.count("\n", 0, match.start())
                if line not in sic:
                    yield Finding(path, line, advice)
        if is_python and "src" in path.parts:
            yield from _check_first_word(path, text)
    if is_python:
        for line, name in vague_names(nodes):
            yield Finding(path, line, f"variable {name!r}: name it by what it holds")


def _check_first_word(path: Path, text: Text) -> Iterator[Finding]:
    first = text.words.split(maxsplit=1)[0].rstrip(".,:;") if text.words.strip() else ""
    if text.kind == "function" and first in NOT_VERBS:
        yield Finding(path, text.line, f"docstring starts with {first!r}: start with a verb")
    if text.kind in ("attribute", "property") and first in NOT_NOUNS:
        yield Finding(path, text.line, f"attribute doc starts with {first!r}: start with a noun")


def main(arguments: list[str]) -> int:
    """Check the given paths, or everything; print findings or their counts."""
    is_counted = "--count" in arguments
    names = [name for name in arguments if not name.startswith("--")]
    paths = [Path(name) for name in names] or [ROOT / name for name in DEFAULT_PATHS]
    avoided = avoided_words()
    findings: list[Finding] = []
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in (".py", ".md") and "golden" not in file.parts:
                findings += check(file.resolve(), avoided)
    if is_counted:
        by_folder = collections.Counter(str(f.path.parent.relative_to(ROOT)) for f in findings)
        by_rule = collections.Counter(f.rule for f in findings)
        for key, count in [*by_folder.most_common(), *by_rule.most_common()]:
            print(f"{count:6} {key}")
    else:
        for path, line, rule in findings:
            print(f"{path.relative_to(ROOT)}:{line}: {rule}")
    print(f"prose: {len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
