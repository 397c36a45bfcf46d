"""Shards: each file has one worker, and the workers have equal times."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import golden
import shards
from shards import Shards

ROOT = Path(__file__).parents[2]
SECONDS = {"tests/a.py": 8.0, "tests/b/c.py": 5.0, "tests/b/d.py": 4.0, "tests/e.py": 3.0}


def test_the_workers_have_equal_times() -> None:
    dealt = Shards(SECONDS).deal(dict.fromkeys(SECONDS, 0.0), 2)
    assert dealt == {"tests/a.py": 0, "tests/b/c.py": 1, "tests/b/d.py": 1, "tests/e.py": 0}


def test_rotating_tests_of_the_day_count() -> None:
    dealt = Shards(SECONDS).deal({"tests/a.py": 0.0, "tests/e.py": 6.0}, 1)
    assert dealt == {"tests/a.py": 0, "tests/e.py": 0}
    dealt = Shards(SECONDS).deal({"tests/e.py": 6.0, "tests/a.py": 0.0, "tests/b/c.py": 0.0}, 2)
    assert dealt == {"tests/e.py": 0, "tests/a.py": 1, "tests/b/c.py": 1}


def test_what_is_together_has_one_worker() -> None:
    table = Shards(SECONDS, [["tests/b", "tests/e.py"]])
    assert {table.unit_of(file) for file in SECONDS} == {"tests/a.py", "tests/b"}
    assert table.deal(dict.fromkeys(SECONDS, 0.0), 2) == {"tests/b": 0, "tests/a.py": 1}


def test_a_worker_that_replaces_a_lost_one_has_its_files() -> None:
    dealer = shards.Dealer(2)
    nodes = [
        SimpleNamespace(gateway=SimpleNamespace(id=f"gw{number}"), workerinput={})
        for number in range(3)
    ]
    for node in nodes[:2]:
        dealer.pytest_configure_node(node)
    dealer.pytest_testnodedown(nodes[0])
    dealer.pytest_configure_node(nodes[2])
    assert [node.workerinput[shards.KEY] for node in nodes] == [(0, 2), (1, 2), (0, 2)]


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_each_test_runs_in_one_worker() -> None:
    folder = "tests/unit/html"  # it has one file: the other worker has none
    (file,) = (ROOT / folder).glob("test_*.py")
    output = run("-v", "-n", "2", "--dist", "each", folder)
    ran = re.findall(r"PASSED \S+::(\w+\S*)", output)
    assert len(ran) == len({*ran}), output
    functions = re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name.partition("[")[0] for name in ran} == {*functions}, output


def test_named_files_are_refused() -> None:
    file = "tests/unit/namesrv/test_server.py"
    assert f"it cannot deal ['{file}']" in run("-n", "2", "--dist", "each", file)
    assert Path(os.environ[golden.ROOT_VARIABLE]).is_dir(), "it has removed the folder of this run"


# --- the table of the project -----------------------------------------------------------


def test_all_rows_name_files() -> None:
    table = shards.load()
    names = [*table.seconds, *(name for group in table.together for name in group)]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_no_file_is_in_two_groups() -> None:
    names = [name for group in shards.load().together for name in group]
    assert len(names) == len(set(names))


def test_each_file_of_tests_is_dealt() -> None:
    table = shards.load()
    files = shards.files_of_today()
    dealt = table.deal(files, 4)
    assert {dealt[table.unit_of(file)] for file in files} == {0, 1, 2, 3}
