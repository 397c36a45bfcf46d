"""Shared parts of the dispatch tests: runners that fail, stores with small files, comparisons."""

import dataclasses
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import store_builder
from reput.format import cq_unit
from reput.spark.jobs.running import Done, Task
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.message_store import MessageStore

FAMILIES = (paths.CONSUME_QUEUE, paths.INDEX)


class Here:
    """Runs tasks in this process, in random order, some of them twice.

    Args:
        seed: Seed of the order and of the failures.
        failing: Share of the tasks that fail, half of them after their work is done.
    """

    def __init__(self, seed: int = 0, failing: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._failing = failing
        self.runs = 0

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        done: dict[int, Done] = {}
        order = [*range(len(tasks)), *range(0, len(tasks), 3)]
        self._random.shuffle(order)
        for i in order:
            is_killed = self._random.random() < self._failing
            if is_killed and self._random.random() < 0.5:
                raise Killed(stage)
            done[i] = function(tasks[i])
            self.runs += 1
            if is_killed:
                raise Killed(stage)
        return [done[i] for i in range(len(tasks))]

    def report(self, stage: str, done: int, count: int) -> None:
        pass


class Killed(Exception):
    pass


def files_of(root: Path, family: str) -> dict[str, bytes]:
    """Path below the family to bytes; index files by their number, as names are times."""
    files = sorted(path for path in (root / family).rglob("*") if path.is_file())
    if family == paths.INDEX:
        return {str(i): path.read_bytes() for i, path in enumerate(files)}
    return {str(path.relative_to(root / family)): path.read_bytes() for path in files}


def assert_same(target: Path, expected: Path, families: Sequence[str] = FAMILIES) -> None:
    for family in families:
        theirs, ours = files_of(expected, family), files_of(target, family)
        assert sorted(ours) == sorted(theirs)
        wrong = [path for path, data in theirs.items() if ours[path] != data]
        assert wrong == []


def engine(store: Path, into: Path, options: StoreConfig) -> Path:
    """Return what the store engine derives from a log alone."""
    copy = into / "engine"
    shutil.copytree(store, copy)
    for family in FAMILIES:
        shutil.rmtree(copy / family, ignore_errors=True)
    (copy / paths.QUEUE_SUMMARY).unlink(missing_ok=True)
    with MessageStore.open(config=dataclasses.replace(options, store_path_root_dir=str(copy))):
        pass
    return copy


SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 10 * cq_unit.SIZE,
    "max_hash_slot_num": 16,
    "max_index_num": 40,
    "max_message_size": 1000,
}


def small(root: Path, **more: Any) -> StoreConfig:
    return StoreConfig(store_path_root_dir=str(root), **(SMALL | more))


def build(root: Path, count: int = 120, **more: Any) -> store_builder.Built:
    """Build a store with several files of each kind; some messages have several keys."""
    messages = store_builder.messages(count, topics=3)
    return store_builder.build(root, messages, queue_file_units=10, entries=40, **more)
