"""The official Java store and broker, measured in the same run as ours."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"


def store(version: str = "4.9.7") -> Any:
    """Return the ``JavaStore`` of the tests; None if Java or its jars are missing."""
    return _or_none(lambda: module_of_tests("interop.java_store").JavaStore(version))


def cluster() -> Any:
    """Return the class ``JavaCluster`` of the tests; None if Java or its jars are missing."""

    def find() -> Any:
        module_of_tests("interop.java_oracle").cluster_jars("4.9.7")
        return module_of_tests("interop.java_cluster").JavaCluster

    return _or_none(find)


def ports() -> Any:
    """Return the module of the tests that finds free ports."""
    return module_of_tests("ports")


def load_programs() -> Any:
    """Return the folder with the official load programs of 5.5.0; None if they are missing."""
    return _or_none(lambda: module_of_tests("interop.java_oracle").benchmark_jars())


def proxy_jars() -> Any:
    """Return the folder with the official proxy 5.5.0; None if Java or its jars are missing."""
    return _or_none(lambda: module_of_tests("interop.java_oracle").proxy_jars())


def module_of_tests(name: str) -> Any:
    """Import a module of the tests."""
    sys.path.insert(0, str(TESTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TESTS))


def _or_none(find: Callable[[], Any]) -> Any:
    try:
        return find()
    except Exception as error:  # noqa: BLE001 - without Java, only ours is measured
        print(f"without Java: {error}", file=sys.stderr)
        return None
