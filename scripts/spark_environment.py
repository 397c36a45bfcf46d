"""Create the environment of another PySpark for tests: ``.venv-spark-4.0`` for 4.0.5.

python scripts/spark_environment.py 4.0.5

The other packages have the versions of ``.venv``, which are in pyproject.toml.
"""

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("pytest", "pytest-asyncio", "pytest-xdist", "hypothesis", "moto", "flask", "flask-cors")
CONNECT = "4.2"
"""Version with Spark Connect, which needs pandas: the others show that nothing else does."""


def create(version: str) -> None:
    """Create the environment, or complete it."""
    minor = version.rpartition(".")[0]
    folder = ROOT / f".venv-spark-{minor}"
    if not folder.exists():
        venv.create(folder, with_pip=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [pin for pin in extras["optional-dependencies"]["dev"] if "==" in pin]
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in pins if not re.match("pyspark==", pin)))
    command = [folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["-c", constraints, "-e", f"{ROOT}[spark,tls]", *TOOLS]
    if minor == CONNECT:
        command += [f"pyspark[connect]=={version}", "pandas<3"]
    else:
        command += [f"pyspark=={version}"]
    # The kernels are compiled in .venv.
    subprocess.run(command, check=True, env=os.environ | {"REPUT_WHEEL": "pure"})


if __name__ == "__main__":
    create(sys.argv[1])
