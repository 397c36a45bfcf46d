"""The suite itself: what tests start is the same, however the suite was started."""

import signal
import subprocess
import sys

from conftest import STOP_SIGNALS

IN_BACKGROUND = "trap '' INT QUIT HUP TERM; exec \"$@\""
"""What a shell, ``nohup`` or a scheduler does to a job in the background."""


def test_children_have_the_default_signals() -> None:
    numbers = [int(number) for number in STOP_SIGNALS]
    code = f"import signal\nprint(*(n for n in {numbers} if signal.getsignal(n) is signal.SIG_IGN))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_children_have_them_in_the_background_too() -> None:
    name = f"{__file__}::{test_children_have_the_default_signals.__name__}"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(
        ["sh", "-c", IN_BACKGROUND, "sh", *pytest], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
