"""The console of ``reput up``, in its child process; ``child_console`` starts it."""

import os
import signal
import sys
import threading

from reput.cli import main as command_line


def main() -> None:
    """Run the console in the child process, with changes allowed."""
    namesrv, listen = sys.argv[1:]
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    audit = os.devnull  # a development cluster keeps no audit log
    arguments = ["console", "-n", namesrv, "--listen", listen, "--allow", "operate"]
    sys.exit(command_line.run([*arguments, "--audit", audit]))


def _end_with_stdin() -> None:
    # Unbuffered: the lock of a buffer that waits aborts the interpreter at its end.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
