"""Programs of users pass Pyright, and mistakes do not; ``make types`` checks them with mypy.

The programs mark each mistake with ``type: ignore``; an unused mark is an error.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted((ROOT / "tests/programs").glob("*.py"))


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
