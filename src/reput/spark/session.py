"""A quiet local Spark session for commands."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from reput.errors import ReputError

JAVA_ADVICE = (
    "Spark needs Java 17 or later, on PATH or in JAVA_HOME. Debian, Ubuntu: apt-get install"
    " openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; macOS: brew install"
    " openjdk@17"
)


class SparkUnavailable(ReputError):
    """Spark cannot start; the text has the missing part and the command to run."""


@contextmanager
def local_session(
    app_name: str,
    log_file: Path,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Open a session, and stop it at the end.

    Output of the JVM and its Python workers goes to ``log_file``, so that a terminal shows only the
    command's own. ``settings`` are Spark's and override those set here.

    Raises:
        SparkUnavailable: There is no Java, or the JVM does not start.
    """
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise SparkUnavailable(f"there is no Java. {JAVA_ADVICE}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName(app_name)
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    with log_file.open("a", encoding="utf-8") as log, contextlib.redirect_stderr(log):
        with _inherited_stderr(log.fileno()):
            try:
                session = builder.getOrCreate()
            except Exception as error:
                text = log_file.read_text(errors="replace")[-2000:]
                advice = f"\n{JAVA_ADVICE}" if "JAVA_GATEWAY_EXITED" in str(error) else ""
                raise SparkUnavailable(f"Spark did not start: {error}\n{text}{advice}") from error
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def _inherited_stderr(descriptor: int) -> Iterator[None]:
    """Redirect stderr of processes started meanwhile to a file, for as long as they live."""
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
