"""Check the language of docstrings, comments, messages, documents and names; part of ``make lint``.

The words to avoid are the last table of docs/glossary.md; names must not contain them either, nor
the words of ``NAME_WORDS``. Four more rules: a function's docstring starts with a verb, an
attribute's with a noun, nothing is called by a word of ``VAGUE_NAMES`` alone, and the last word of
a class is none of ``VAGUE_CLASSES``.

``python scripts/check_prose.py [--count] [PATH ...]``; exit code 1 if there are findings. Code in
backticks, code blocks and lines with the comment ``sic`` (another program's words) are skipped.
"""

import ast
import collections
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
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
VAGUE_FUNCTIONS = VAGUE_NAMES - {"at"} | {"again", "those", "what"}
VAGUE_CLASSES = frozenset({
    "again", "asked", "called", "given", "look", "looked", "seen", "taken", "taking", "told",
    "wanted", "what",
})  # fmt: skip
"""Last words of a class that do not say what its objects are."""
NAME_WORDS = {
    "asker": "client, requester",
    "heard": "received",
    "look at": "read, check",
    "looks at": "uses, reads",
    "ones": "the noun",
    "said": "sent, reported",
    "say": "send, report",
    "says": "sends, reports, contains",
    "stuff": "the noun",
    "sums": "totals",
    "thing": "the noun",
    "things": "the noun",
}
"""Words that are plain English in prose, but vague in names, each with what to write instead."""
NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
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


def avoided_words() -> list[tuple[str, str]]:
    """Read the words to avoid from the glossary, each with what to write instead."""
    _, _, table = GLOSSARY.read_text().partition(AVOIDED_HEADING)
    rows = re.findall(r"^\| (?!avoid \||-)(.+?) \| (.+?) \|$", table, re.MULTILINE)
    return [(word, instead) for words, instead in rows for word in words.split(", ")]


def patterns_of(avoided: list[tuple[str, str]]) -> list[tuple[re.Pattern[str], str]]:
    """Return a pattern for each word to avoid, with the text of its finding."""
    return [
        (re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE), f'"{word}": {instead}')
        for word, instead in avoided
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


class Name(NamedTuple):
    """A name where it is bound: its line, what it names, and the name itself."""

    line: int
    kind: str  # "function", "class", "variable"; arguments and attributes are variables
    name: str


def bound_names(nodes: list[ast.AST]) -> Iterator[Name]:
    """Yield the names that a module binds, without its imports."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Name(node.lineno, "function", node.name)
        elif isinstance(node, ast.ClassDef):
            yield Name(node.lineno, "class", node.name)
        elif isinstance(node, ast.arg):
            yield Name(node.lineno, "variable", node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Name(node.lineno, "variable", node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield Name(node.lineno, "variable", node.attr)


def _pattern_of(words: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"(?<=_)(?:{'|'.join(map(re.escape, longest_first))})(?=_)")


class NameRules:
    """The rules of names; the result for a name is computed once.

    A test's name is a sentence: only the single words to avoid count there.
    """

    def __init__(self, avoided: list[tuple[str, str]]):
        words = [*NAME_WORDS.items(), *avoided]
        self._advice = {word.lower().replace(" ", "_"): instead for word, instead in words}
        self._pattern = _pattern_of(self._advice)
        self._pattern_of_tests = _pattern_of(word for word, _ in avoided if " " not in word)
        self.problem = functools.cache(self._problem)
        """The rule that a name of a kind breaks; None if it breaks none."""

    def _problem(self, kind: str, name: str) -> str | None:
        parts = [part.lower() for part in NAME_PART.findall(name)]
        if kind == "variable" and name in VAGUE_NAMES:
            return f"variable {name!r}: name it by what it holds"
        if kind == "function" and name.strip("_") in VAGUE_FUNCTIONS:
            return f"function {name!r}: name it by what it does or returns"
        if kind == "class" and parts and parts[-1] in VAGUE_CLASSES:
            return f"class {name!r}: its last word is no noun"
        is_test = kind == "function" and parts[:1] == ["test"]
        pattern = self._pattern_of_tests if is_test else self._pattern
        match = pattern.search(f"_{'_'.join(parts)}_")
        if match is None:
            return None
        word = match[0]
        return f"{kind} {name!r} has {word.replace('_', ' ')!r}: write {self._advice[word]}"


def check(
    path: Path, patterns: list[tuple[re.Pattern[str], str]], name_rules: NameRules
) -> Iterator[Finding]:
    """Yield the findings of a file."""
    source = path.read_text()
    is_python = path.suffix == ".py"
    sic = {number for number, line in enumerate(source.splitlines(), 1) if "# sic" in line}
    nodes = list(ast.walk(ast.parse(source))) if is_python else []
    for text in texts_of_python(source, nodes) if is_python else texts_of_markdown(source):
        prose = CODE.sub(lambda code: re.sub(r"[^\n]", "_", code[0]), text.words)
        if text.kind == "message":
            prose = text.words
        for pattern, advice in patterns:
            for match in pattern.finditer(prose):
                line = text.line + prose.count("\n", 0, match.start())
                if line not in sic:
                    yield Finding(path, line, advice)
        if is_python and "src" in path.parts:
            yield from _check_first_word(path, text)
    for line, kind, name in bound_names(nodes):
        problem = name_rules.problem(kind, name)
        if problem is not None and line not in sic:
            yield Finding(path, line, problem)


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
    patterns, name_rules = patterns_of(avoided), NameRules(avoided)
    findings: list[Finding] = []
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in (".py", ".md") and "golden" not in file.parts:
                findings += check(file.resolve(), patterns, name_rules)
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
