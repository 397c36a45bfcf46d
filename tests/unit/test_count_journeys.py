"""The counts of ``scripts/count_journeys.py``, over two small modules."""

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from scripts import count_journeys as counting

CLERK = '''
def note(order):
    """Return a note."""
    return order


def numbers():
    yield 1
    yield 2
'''
DESK = """
import clerk


def take(order):
    copies = [number for number in range(3)]
    clerk.note(order)
    return inner(order)


def inner(order):
    return clerk.note(order)


def count():
    return sum(clerk.numbers())
"""


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module ``desk``, which calls the module ``clerk``."""
    for name, source in (("clerk", CLERK), ("desk", DESK)):
        (tmp_path / f"{name}.py").write_text(source)
    clerk = load(tmp_path / "clerk.py")
    monkeypatch.setitem(sys.modules, "clerk", clerk)
    return load(tmp_path / "desk.py")


def test_calls_files_lines_and_moves(desk: ModuleType, tmp_path: Path) -> None:
    """Functions: take (4 lines), note (3), inner (2), note again."""
    recorder = counting.Recorder(str(tmp_path))
    recorder.start()
    desk.take("order")
    count = recorder.stop()
    assert count == counting.Count(calls=4, files=2, lines=9, moves=3)
    desk.take("order")
    assert recorder.take() == counting.Count(4, 2, 9, 3), "calls after the stop are not recorded"


def test_the_calls_of_a_count_are_listed_in_order(desk: ModuleType, tmp_path: Path) -> None:
    """The lines are those of ``def`` in the sources above."""
    recorder = counting.Recorder(str(tmp_path))
    recorder.start()
    desk.take("order")
    assert recorder.calls_of[recorder.stop()] == [
        "desk.py:5 take",
        "  clerk.py:2 note",
        "  desk.py:11 inner",
        "    clerk.py:2 note",
    ]


def test_a_generator_counts_each_time_it_is_resumed(desk: ModuleType, tmp_path: Path) -> None:
    recorder = counting.Recorder(str(tmp_path))
    recorder.start()
    assert desk.count() == 3
    assert recorder.stop() == counting.Count(calls=4, files=2, lines=5, moves=1)


def test_other_folders_are_not_counted(desk: ModuleType) -> None:
    recorder = counting.Recorder()
    recorder.start()
    desk.take("order")
    assert recorder.stop() == counting.Count(0, 0, 0, 0)


def test_threads_that_are_started_are_recorded(desk: ModuleType, tmp_path: Path) -> None:
    recorder = counting.Recorder(str(tmp_path))
    recorder.start()
    thread = threading.Thread(target=desk.take, args=("order",))
    thread.start()
    thread.join()
    assert recorder.stop().calls == 4


def test_the_most_frequent_count_is_shown() -> None:
    often, once = counting.Count(3, 1, 9, 0), counting.Count(2, 1, 6, 0)
    assert counting.usual([once, often, often]) == often
    assert counting.usual([often, once]) == once, "of several the smallest"
