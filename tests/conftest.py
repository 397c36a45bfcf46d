"""Shared fixtures: golden stores, stores of a test; skips, seeds and the profile of Hypothesis."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import cpu_times
import golden
import seeds
import shards
import skips
import store_fixture
import turns

WHOLE_RUNS = ("REPUT_SOAK", "REPUT_HOSTILE_SECONDS", "REPUT_INTEROP")
"""Environment variables of runs with all cases of sampled tests, and all rotating tests."""

GC_THRESHOLD = gc.get_threshold()
GOLDEN_FOLDER = pytest.StashKey[str]()

# Examples follow from the seed of the day. On a busy machine they are drawn slowly, which is no
# error of the test.
hypothesis.settings.register_profile(
    "default",
    deadline=None,
    max_examples=40,
    database=None,
    print_blob=True,
    derandomize=False,  # as it is by default, but not where CI is set
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=20_000, derandomize=False)
hypothesis.settings.load_profile("default")


STOP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


def pytest_configure(config: pytest.Config) -> None:
    _give_children_default_signals()
    try:
        config.pluginmanager.register(skips.Budget(config), "skips")
        config.pluginmanager.register(seeds.Plugin(config), "seeds")
    except (skips.BadBudget, seeds.BadSeed) as error:
        raise pytest.UsageError(str(error)) from error
    shards.configure(config)
    if cpu_times.VARIABLE in os.environ:
        plugin = cpu_times.Plugin(Path(os.environ[cpu_times.VARIABLE]))
        config.pluginmanager.register(plugin, "cpu_times")
    # One folder a session: xdist workers inherit the environment of the process that starts them.
    if not hasattr(config, "workerinput"):
        folder = config.stash[GOLDEN_FOLDER] = tempfile.mkdtemp(prefix="golden-")
        os.environ[golden.ROOT_VARIABLE] = folder
        if getattr(config.option, "numprocesses", None):
            golden.prepare()


def _give_children_default_signals() -> None:
    """Let programs that tests start have the signals of a program in the foreground.

    A shell starts background jobs with SIGINT ignored, and ``nohup`` with SIGHUP; children inherit
    that, and Ctrl-C would not end them. A handler is not inherited: with one that does nothing this
    process still ignores the signal, and its children do not.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "REPUT_SOAK" not in os.environ:
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="make soak: it takes minutes"))
    are_named = any("::" in argument for argument in config.args)
    if not are_named and not any(name in os.environ for name in WHOLE_RUNS):
        try:
            left_out = _outside_of_samples(items) | _out_of_turn(items)
        except turns.BadTurn as error:
            raise pytest.UsageError(str(error)) from error
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]


def _outside_of_samples(items: list[pytest.Item]) -> set[str]:
    """Return the ids of the cases of sampled tests that do not run on this day.

    With the seeds of consecutive days each case runs once in as many days as the marker says. The
    first case of a test always runs. Skipped cases are no part of the sample, so that their number
    is the same each day.
    """
    seed = seeds.today()
    tests = set()
    left_out = set()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is not None and not _is_skipped(item):
            (every,) = marker.args
            test = item.nodeid.partition("[")[0]
            # By hash: a step through the product of parameters would repeat some of their values.
            if test in tests and (zlib.crc32(item.nodeid.encode()) + seed) % every:
                left_out.add(item.nodeid)
            tests.add(test)
    return left_out


def _out_of_turn(items: list[pytest.Item]) -> set[str]:
    """Return the ids of the rotating tests that do not run on this day."""
    table, seed = turns.load(), seeds.today()
    rotating = (item.nodeid for item in items if item.get_closest_marker("rotating"))
    return {test for test in rotating if not table.runs(test.partition("@")[0], seed)}


def _is_skipped(item: pytest.Item) -> bool:
    conditions = [mark.args[:1] for mark in item.iter_markers("skipif")]
    return item.get_closest_marker("skip") is not None or (True,) in conditions


def pytest_collection_finish(session: pytest.Session) -> None:
    # Without its groups, xdist starts each broker and each Spark in every worker.
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError("this pytest-xdist does not group tests with this pytest")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    # A server in the process of a test freezes what survives a collection. Hypothesis then finds no
    # object that refers to its own generator of random numbers, and warns: an error here.
    module = "reput.cli.garbage"
    own = [callback for callback in gc.callbacks if getattr(callback, "__module__", "") == module]
    for callback in own:
        gc.callbacks.remove(callback)
    if own:
        gc.set_threshold(*GC_THRESHOLD)
        gc.unfreeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(GOLDEN_FOLDER, None)
    if (
        folder is not None
    ):  # otherwise the variable may name the folder of the run that started this
        os.environ.pop(golden.ROOT_VARIABLE)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def unpack() -> Callable[[str, str], Path]:
    """Return ``unpack(version, name)``: root of a shared golden store. See ``golden.unpack``."""
    return golden.unpack


@pytest.fixture(scope="session")
def manifest() -> Callable[[str, str], dict[str, Any]]:
    """Return ``manifest(version, name)``: Java's view of a store. See ``golden.manifest``."""
    return golden.manifest


@pytest.fixture(scope="session")
def messages() -> Callable[[str, str], list[dict[str, Any]]]:
    """Return ``messages(version, name)``: an entry for each record. See ``golden.messages``."""
    return golden.messages


@pytest.fixture(scope="session")
def torn_variants() -> Callable[[str], dict[str, dict[str, Any]]]:
    """Return ``torn_variants(version)``: damage and outcome. See ``golden.torn_variants``."""
    return golden.torn_variants


@pytest.fixture
def golden_copy(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return ``golden_copy(version, name)``: a copy of a store that the test may damage."""
    return lambda version, name: golden.copy_store(version, name, tmp_path)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[store_fixture.Stores]:
    """Yield a ``Stores``, whose stores are closed and verified at the end of the test."""
    opened = store_fixture.Stores(tmp_path)
    yield opened
    opened.check()


@pytest.fixture(scope="module", autouse=True)
def no_connections_left() -> Iterator[None]:
    """Close the connections that reads of brokers keep for the next task: the next tests differ."""
    yield
    calls = sys.modules.get("reput.spark.live.calls")
    if calls is not None:
        calls.disconnect()
