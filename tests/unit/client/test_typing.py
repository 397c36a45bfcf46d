"""Programs of users and examples pass type checkers, and mistakes do not.

The programs mark each mistake with ``type: ignore``; an unused mark is an error.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted((ROOT / "tests/programs").glob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.slow
def test_programs_of_users_pass_mypy_strict() -> None:
    done = subprocess.run(
        # The settings and the cache of `make types`, which has the types of the package.
        [
            *(sys.executable, "-m", "mypy", "--strict"),
            *("--python-executable", sys.executable, *PROGRAMS, *EXAMPLES),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(PROGRAMS) + len(EXAMPLES)} source files" in done.stdout


@pytest.mark.soak
@pytest.mark.slow
def test_programs_of_users_pass_pyright(tmp_path: Path) -> None:
    tmp_path.joinpath("pyrightconfig.json").write_text(
        '{"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}'
    )
    for program in PROGRAMS:
        tmp_path.joinpath(program.name).write_bytes(program.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
