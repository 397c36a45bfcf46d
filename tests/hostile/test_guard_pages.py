"""No kernel reads or writes outside of its memory, whatever the memory contains.

A few seconds of hostile input, the same each time; ten minutes of other input with ``REPUT_SOAK``.
A failure names the command that repeats it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import reput
import seeds
from reput.store.kernels import native

TESTS = Path(__file__).parents[1]
PATH = os.pathsep.join([str(Path(reput.__file__).parents[1]), str(TESTS)])
"""The package under test, even if another one is installed."""
IS_SOAK = "REPUT_SOAK" in os.environ
SECONDS = 600 if IS_SOAK else 3

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)


def run(*arguments: str) -> tuple[int, str, str]:
    """Run checks in a separate process; return its exit code, last line, and errors."""
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
    seed = seeds.of("guard pages") % (1 << 40)
    print(f"seed {seed}")  # noqa: T201
    code, last, errors = run(str(SECONDS), str(seed))
    name, _, last_seed = last.partition(" ")
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    again = f"cd tests && PYTHONPATH=. python -m hostile.guard_pages 0 {last_seed} {name}"
    assert code == 0, f"{name} {how}, seed {last_seed}; again: {again}\n{errors}"
    assert name == "done"
    print(last_seed)  # noqa: T201


def test_an_access_out_of_bounds_is_detected() -> None:
    """An access out of bounds is detected on both sides, and its seed is reported."""
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
