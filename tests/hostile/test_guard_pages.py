"""No kernel reads or writes outside of what it was given, whatever stands there.

A few seconds of hostile input, the same each time; ten minutes of other input with ``REPUT_SOAK``.
What failed is run again with the command that the failure names.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import reput
from reput.store.kernels import native

TESTS = Path(__file__).parents[1]
PATH = os.pathsep.join([str(Path(reput.__file__).parents[1]), str(TESTS)])
"""The package that runs here, also where another one is installed."""
IS_SOAK = "REPUT_SOAK" in os.environ
SECONDS = 600 if IS_SOAK else 6
SEED = random.randrange(1 << 40) if IS_SOAK else 1

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)


def run(*arguments: str) -> tuple[int, str, str]:
    """Run checks in a process of their own; return its code, its last line, and its errors."""
    done = subprocess.run(
        [sys.executable, "-m", "hostile.guard_pages", *arguments],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": PATH},
    )
    return done.returncode, (done.stdout.splitlines() or [""])[-1], done.stderr


def test_kernels_between_guard_pages() -> None:
    seed = int(os.environ.get("REPUT_GUARD_SEED", SEED))
    print(f"seed {seed}")  # noqa: T201
    code, last, errors = run(str(SECONDS), str(seed))
    name, _, one = last.partition(" ")
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    again = f"cd tests && PYTHONPATH=. python -m hostile.guard_pages 0 {one} {name}"
    assert code == 0, f"{name} {how}, seed {one}; again: {again}\n{errors}"
    assert name == "done"
    print(one)  # noqa: T201


def test_a_step_too_far_is_seen() -> None:
    """On both sides, and that with the seed: else the test above would say nothing."""
    code = (
        "from hostile import guard_pages\n"
        "guard_pages.guard()\n"
        "from reput.store.kernels import hot\n"
        "def step_too_far(seed):\n"
        "    guard_pages._SIDE.random = lambda: 0.0 if seed else 1.0\n"
        "    fence = guard_pages.Fence(100)\n"
        "    hot.bytes_at(fence.address, 100)\n"
        "    hot.bytes_at(fence.address - 1 if seed else fence.address + 1, 100)\n"
        "guard_pages.CHECKS = {'step': step_too_far}\n"
        "guard_pages.run(0, %d, ['step'])\n"
    )
    for seed in (0, 1):
        done = subprocess.run(
            [sys.executable, "-c", code % seed],
            cwd=TESTS,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": PATH},
        )
        assert done.returncode == -signal.SIGSEGV
        assert done.stdout == f"step {seed}\n"
