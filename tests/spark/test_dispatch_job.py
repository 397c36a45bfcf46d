"""The dispatch job on Spark; its results for all kinds of logs are tested in tests/unit."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import golden
import seeds
from reput import config
from reput.format import properties
from reput.spark.jobs.dispatch import dispatch, run_dispatch
from reput.spark.jobs.running import Done, SparkRunner, Task, TaskFailed
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from spark.dispatch_setting import assert_same


def settings(version: str, name: str) -> StoreConfig:
    """Return the configuration of the broker that wrote a store."""
    options = dict(golden.manifest(version, name)["config"])
    for key in ("storePathRootDir", "storePathCommitLog"):
        options.pop(key, None)
    explicit = {"index_tags": version >= "5.4"}
    return config.load(StoreConfig, options, environment={}, explicit=explicit).value


def files_of(root: Path, family: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root / family)): path.read_bytes()
        for path in sorted((root / family).rglob("*"))
        if path.is_file()
    }


def assert_as_java(target: Path, store: Path) -> None:
    queues = paths.CONSUME_QUEUE
    assert files_of(target, queues) == files_of(store, queues)
    files, expected = (list(files_of(folder, paths.INDEX).values()) for folder in (target, store))
    assert files == expected


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"] if golden.IS_SOAK else ["5.5.0"])
def test_spark_writes_the_bytes_of_java(version: str, spark: SparkSession, tmp_path: Path) -> None:
    store, target = golden.unpack(version, "clean"), tmp_path / "target"
    options = settings(version, "clean")
    steps: list[tuple[str, int, int]] = []
    result = dispatch(
        spark, str(store), config=options, target=str(target), range_bytes=100_000,
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert_as_java(target, store)
    assert result.records == golden.manifest(version, "clean")["log"]["records"]
    surveyed = [(done, count) for stage, done, count in steps if stage == "survey"]
    assert (surveyed[0], surveyed[-1]) == ((0, result.ranges), (result.ranges, result.ranges))
    assert {stage for stage, _, _ in steps} == {"survey", "write"}


def dying_once(
    function: Callable[[Any], Any], folder: str, is_after: bool
) -> Callable[[tuple[int, Any]], Any]:
    """Return a task that kills its Python worker once, before or after its work."""

    def run(numbered: tuple[int, Any]) -> Any:  # nested: workers cannot import this module
        number, task = numbered
        mark = Path(folder, str(number))
        if number not in (0, 3) or mark.exists():
            return function(task)
        if is_after:
            function(task)
        mark.touch()
        os._exit(9)

    return run


@dataclass(frozen=True)
class _DyingRunner:
    """Runs tasks on Spark; in one stage two of them kill their workers on the first attempt."""

    spark: SparkSession
    folder: Path
    dying: str
    is_after: bool

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        runner = SparkRunner(self.spark, "dispatch")
        if stage != self.dying:
            return runner(stage, function, tasks)
        dying = dying_once(function, str(self.folder), self.is_after)
        done: list[Done] = runner(stage, dying, list(enumerate(tasks)))
        return done

    def report(self, stage: str, done: int, count: int) -> None:
        pass


@pytest.mark.parametrize(
    ("dying", "is_after"),
    [pytest.param("survey", False, marks=pytest.mark.soak), ("write", True)],
)
def test_a_run_whose_workers_died_is_finished_by_the_next(
    dying: str, is_after: bool, spark: SparkSession, tmp_path: Path
) -> None:
    store, target = golden.unpack("4.9.7", "clean"), tmp_path / "target"
    options = settings("4.9.7", "clean")
    marks = tmp_path / "marks"
    marks.mkdir()
    runner = _DyingRunner(spark, marks, dying, is_after)
    failures = 0
    for _ in range(5):
        try:
            run_dispatch(
                runner, str(store), config=options, target=str(target), range_bytes=150_000
            )
            break
        except TaskFailed:
            failures += 1
            assert any(marks.iterdir())
            assert not (target / paths.CONSUME_QUEUE).exists()
            assert not (target / paths.INDEX).exists()
    assert 0 < failures <= 2
    assert_as_java(target, store)


def fill(store: MessageStore, first: int, stop: int) -> None:
    for number in range(first, stop):
        text = properties.encode({"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number % 7} a"})
        body = bytes(number % 100)
        store.put(IncomingMessage(f"T{number % 3}", body, number % 2, text, 1_700_000_000_000))
        store.step()


def test_the_code_of_the_page_runs_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    with MessageStore.open(str(tmp_path / "store"), StoreConfig()) as store:
        fill(store, 0, 50)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "rebuild-queues-and-index.md"
    text = page.read_text().replace("/data/", f"{tmp_path}/")
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    assert names["done"].records == names["result"].records == 50
    for made in ("rebuilt", "followed"):
        assert_same(tmp_path / made, tmp_path / "store")


KILLED = """
import sys
from pyspark.sql import SparkSession
from reput.spark.jobs.dispatch import dispatch
from reput.spark.jobs.dispatch.follow import follow

kind, store, target = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR").config("spark.speculation", "true")
    .config("spark.speculation.multiplier", "1.01").config("spark.speculation.quantile", "0.1")
    .config("spark.speculation.interval", "10ms").getOrCreate()
)
spark.sparkContext.parallelize(range(4), 4).map(lambda number: number).collect()
print("ready", flush=True)
if kind == "follow":
    follow(spark, store, target, range_bytes=200_000, until=lambda progress: progress.is_caught_up)
else:
    dispatch(spark, store, target=target, range_bytes=200_000)
print("done", flush=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["dispatch", "follow"])
def test_a_run_whose_driver_was_killed_is_finished_by_the_next(kind: str, tmp_path: Path) -> None:
    """Tasks also run twice (speculation); half of the kills end all processes of the driver."""
    root, target = tmp_path / "store", tmp_path / "target"
    choose = seeds.random("killed driver", kind)
    kills = made = 0
    with MessageStore.open(config=StoreConfig(store_path_root_dir=str(root))) as store:
        fill(store, 0, 50_000)
    while kills < 25:
        if kind == "follow" and kills == made:
            with MessageStore.open(config=StoreConfig(store_path_root_dir=str(root))) as store:
                fill(store, 50_000 + made * 2000, 52_000 + made * 2000)
            made += 1
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, kind, str(root), str(target)],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(choose.uniform(0.05, 3.0))
            is_killed = process.poll() is None
            if is_killed:
                kill = os.killpg if choose.random() < 0.5 else os.kill
                kill(process.pid, signal.SIGKILL)
            process.stdout.read()
        kills += is_killed
        if not is_killed:
            assert_same(target, root)
    result = subprocess.run(
        [sys.executable, "-c", KILLED, kind, str(root), str(target)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == "ready\ndone\n"
    assert_same(target, root)
