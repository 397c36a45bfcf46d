"""The sample of docstrings that people judge, over a small module."""

from pathlib import Path

import pytest

from scripts import sample_docstrings as sampling

SOURCE = '''"""A module."""

LIMIT = 1
"""Maximum number."""


class Box:
    """A container."""

    def put(self):
        """Add an item."""
        # a comment, no docstring
        raise ValueError("a message, no docstring")
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    return path


def test_docstrings_of_all_but_the_module(module: Path) -> None:
    drawn = sampling.docstrings([module.parent])
    assert [(line, kind, words) for _, line, kind, words in drawn] == [
        (4, "attribute", "Maximum number."),
        (8, "class", "A container."),
        (11, "function", "Add an item."),
    ]


def test_a_seed_gives_one_sample(module: Path) -> None:
    samples = {tuple(sampling.sample([module], 2, seed)) for seed in range(20)}
    assert len(samples) == 3
    assert all(len(sample) == 2 and list(sample) == sorted(sample) for sample in samples)
    assert sampling.sample([module], 2, 7) == sampling.sample([module], 2, 7)
