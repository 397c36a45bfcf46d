"""Time of ``reput store info`` on a folder of 1,000 log files."""

import subprocess
import sys
from pathlib import Path

from benchmarks import stores, timing

NAME = "store_info"
QUESTION = "seconds of the whole command on 1,000 files of 1 MB"


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure the process from outside."""
    files = 100 if quick else 1000
    file_bytes = 1 << 20
    count = files * (file_bytes // 1000) * 65 // 100
    root = stores.make(
        folder / f"info-{files}", count, 1200, topic_count=20, log_file_bytes=file_bytes
    )
    command = [sys.executable, "-m", "reput", "store", "info", str(root), "--json"]
    wall = timing.seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    made = len(list((root / "commitlog").iterdir()))
    return {"log_files": made, "seconds": round(wall, 3)}
