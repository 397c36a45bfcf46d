"""Draw docstrings at random and print them, so that a person can judge their language.

``python -m scripts.sample_docstrings [--count N] [--seed SEED] [PATH ...]``; the same seed and the
same sources give the same sample. Docstrings of modules are left out.
"""

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.check_prose import ROOT, texts_of_python


class Docstring(NamedTuple):
    """A docstring of a function, class or attribute, with its place."""

    path: Path
    line: int
    kind: str
    words: str


def docstrings(paths: list[Path]) -> Iterator[Docstring]:
    """Yield the docstrings of all modules below some paths, in a fixed order."""
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            tree = ast.parse(file.read_text())
            for line, kind, words in texts_of_python(file.read_text(), list(ast.walk(tree))):
                if kind not in ("message", "comment") and line > 1:
                    yield Docstring(file, line, kind, words)


def sample(paths: list[Path], count: int, seed: int) -> list[Docstring]:
    """Draw docstrings without repetition, sorted by place."""
    return sorted(random.Random(seed).sample(list(docstrings(paths)), count))


def main(arguments: list[str]) -> int:
    """Print a sample with file, line and kind."""
    parser = argparse.ArgumentParser(description="Draw docstrings at random.")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "src"])
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args(arguments)
    drawn = sample(options.paths, options.count, options.seed)
    print(f"{len(drawn)} docstrings, seed {options.seed}")
    for number, (path, line, kind, words) in enumerate(drawn, 1):
        print(f"\n{number} {path.resolve().relative_to(ROOT)}:{line} ({kind})\n{words.rstrip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
