"""Print the path of the jar: ``spark-submit --jars "$(python -m reput.spark.accelerator)" ...``."""

import argparse
import sys
from pathlib import Path

from reput.errors import ReputError
from reput.spark.accelerator.building import jar


def main() -> None:
    """Compile the jar if necessary, and print its path."""
    parser = argparse.ArgumentParser(prog="python -m reput.spark.accelerator", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to keep the jar; by default a cache")
    try:
        print(jar(parser.parse_args().folder))  # noqa: T201 - the result of the command
    except ReputError as error:
        sys.exit(f"reput: {error}")


if __name__ == "__main__":
    main()
