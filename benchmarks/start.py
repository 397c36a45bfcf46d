"""Start times: importing the command line, opening a small store."""

import subprocess
import sys
from pathlib import Path

from benchmarks import stores, timing

NAME = "start"
QUESTION = "seconds to import reput.cli beyond an empty interpreter; whole `reput --version`"


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure processes from outside."""

    def python(code: str) -> float:
        return timing.seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True), 9)

    empty = python("pass")
    root = stores.make(folder / "start", 1000, 128)
    info = [sys.executable, "-m", "reput", "store", "info", str(root)]
    return {
        "import_reput_cli_s": round(python("import reput.cli") - empty, 4),
        "empty_interpreter_s": round(empty, 4),
        "store_info_s": round(
            timing.seconds(lambda: subprocess.run(info, check=True, capture_output=True)), 3
        ),
    }
