"""The names in docs/how-to/run-on-a-cluster.md exist; tests/spark/test_cluster.py runs it."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pyarrow.fs
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "run-on-a-cluster.md").read_text(encoding="utf-8")


def test_python_blocks_are_valid() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names)


def test_named_jobs_exist() -> None:
    table = PAGE.split("| | reads | writes |")[1].split("\n\n")[0]
    jobs = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(jobs) == {"dispatch", "audit", "archive", "restore", "salvage", "compare"}
    for job in jobs:
        assert callable(getattr(importlib.import_module(f"reput.spark.jobs.{job}"), job))


def test_dependencies_equal_the_imports_of_workers() -> None:
    match = re.search(r"\(`reput` needs ([^)]*)\)", PAGE)
    assert match is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed, names = [*project["dependencies"], "reput[spark]"], set()
    while needed:
        requirement = needed.pop()
        extras = re.match(r"reput\[([\w,]+)\]", requirement)
        if extras is None:
            names.add(re.split(r"[><=~;\[ ]", requirement)[0])
            continue
        for extra in extras[1].split(","):
            needed += project["optional-dependencies"][extra]
    assert {*match[1].split(", ")} <= names


@pytest.mark.parametrize("query", re.findall(r'"s3://bucket/store(\?[^"]*)"', PAGE))
def test_parameters_of_uris_exist_in_pyarrow(query: str) -> None:
    system, path = pyarrow.fs.FileSystem.from_uri(f"s3://bucket/store{query}")
    assert (system.type_name, path) == ("s3", "bucket/store")
    with pytest.raises(ValueError, match="nosuch"):
        pyarrow.fs.FileSystem.from_uri("s3://bucket/store?region=us-east-1&nosuch=1")


def test_gcs_accepts_a_retry_limit() -> None:
    assert "?retry_limit_seconds=30" in PAGE
    uri = "gs://anonymous@bucket/store"
    system, _ = pyarrow.fs.FileSystem.from_uri(f"{uri}?retry_limit_seconds=30")
    assert system.type_name == "gcs"
    with pytest.raises(ValueError, match="nosuch"):
        pyarrow.fs.FileSystem.from_uri(f"{uri}?nosuch=30")
