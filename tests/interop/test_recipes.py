"""The examples of tests in other languages run as their pages say: ``reput up -- COMMAND``."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
UP = "reput up --port 0 --broker-port 0 --test-controls 0 --"
TIMEOUT_S = 120

pytestmark = pytest.mark.rotating


@pytest.mark.parametrize(
    ("folder", "prepare", "command", "passed"),
    [
        ("tests_in_java", "", "mvn -B test", "Tests run: 1, Failures: 0, Errors: 0, Skipped: 0"),
        ("tests_in_go", "", "go test", "ok  \texample.com/orders"),
        ("tests_in_node", "npm install --no-audit --no-fund", "npm test", "# pass 1"),
    ],
)
def test_an_example_in_another_language_passes(
    folder: str, prepare: str, command: str, passed: str, tmp_path: Path
) -> None:
    program = command.split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"missing {program}: it runs the tests of the example")
    project = shutil.copytree(EXAMPLES / folder, tmp_path / folder)
    if prepare:
        subprocess.run(prepare.split(), cwd=project, check=True, timeout=TIMEOUT_S)
    up = [sys.executable, "-m", *UP.split(), *command.split()]
    done = subprocess.run(
        up, cwd=project, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert passed in done.stdout
