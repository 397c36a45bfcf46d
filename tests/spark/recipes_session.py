"""Runs sections of docs/how-to/decode-bodies.md with jars: run by ``test_recipes.py``.

python recipes_session.py PAGE DATA JARS SECTION ...

Prints a JSON object: the rows of each frame of the page by its name.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def main(page: str, data: str, jars: str, *sections: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    if jars:
        builder = builder.config("spark.jars", jars)
    builder.getOrCreate()
    names: dict[str, Any] = {}
    text = Path(page).read_text().replace("/data/", f"{data}/").replace(".show()", ".collect()")
    for section in text.split("\n## ")[1:]:
        title, _, blocks = section.partition("\n")
        if title in sections:
            for block in re.findall(r"^```python\n(.*?)^```", blocks, re.MULTILINE | re.DOTALL):
                exec(compile(block, title, "exec"), names)
    frames = {name: frame for name, frame in names.items() if isinstance(frame, DataFrame)}
    rows = {
        name: [row.asDict(recursive=True) for row in frame.collect()]
        for name, frame in frames.items()
    }
    sys.stdout.write(json.dumps(rows, default=lambda value: bytes(value).hex()))


main(*sys.argv[1:])
