"""Compiles the accelerator's jar with the JDK of this machine.

The wheel carries the sources alone: it is built on machines without Java, and they compile in
seconds, against the classes of the Spark that is installed.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from reput.errors import ReputError
from reput.extras import extra_missing

JAVA_RELEASE = 17
"""Oldest Java that Spark 4 runs on."""
_SOURCES = Path(__file__).with_name("java")
_COMPILE_SECONDS_MAX = 300


class JarUnavailable(ReputError):
    """The jar cannot be compiled; the text has the missing part and the command to run."""


def jar(folder: Path | str | None = None) -> str:
    """Return the path of the jar, compiled at the first call.

    Args:
        folder: Where to keep it; by default the user's cache folder. The name has a hash of the
            sources, so that a new version of reput compiles it again.

    Raises:
        JarUnavailable: There is no Java compiler, or it fails.
    """
    sources = sorted(_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "reput")
    target = Path(folder or root).absolute() / f"reput-accelerator-{digest[:12]}.jar"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            _compile(sources, Path(scratch))
            staged = Path(scratch, target.name)
            with zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as archive:
                for file in sorted(Path(scratch).rglob("*.class")):
                    archive.write(file, file.relative_to(scratch))
            staged.replace(target)
    return str(target)


def _compile(sources: list[Path], classes: Path) -> None:
    command = [
        _compiler(),
        *("-source", str(JAVA_RELEASE), "-target", str(JAVA_RELEASE), "-encoding", "UTF-8"),
        *("-proc:none", "-Xlint:-options", "-g"),
        # The address of a mapped file; Spark's own JVM options open it at run time.
        *("--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"),
        *("-cp", str(_spark_jars() / "*"), "-d", str(classes), *map(str, sources)),
    ]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILE_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarUnavailable(f"the Java compiler did not run: {error}") from error
    if ran.returncode:
        raise JarUnavailable(f"the Java compiler refused the sources:\n{ran.stderr[-3000:]}")


def _compiler() -> str:
    """Return the path of javac: of JAVA_HOME, or on PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("javac", path=f"{home}/bin") if home else None
    path = path or shutil.which("javac")
    if path is None:
        raise JarUnavailable(
            f"there is no javac, of Java {JAVA_RELEASE} or later, on PATH or in JAVA_HOME. Debian, "
            f"Ubuntu: apt-get install openjdk-{JAVA_RELEASE}-jdk-headless; or compile the jar "
            "where there is one, with python -m reput.spark.accelerator, and copy it"
        )
    return path


def _spark_jars() -> Path:
    """Return the folder of Spark's jars: of SPARK_HOME, or of the package."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        try:
            import pyspark
        except ModuleNotFoundError as error:
            raise extra_missing("the accelerator of Spark", error) or error from error
        home = str(Path(pyspark.__file__).parent)
    jars = Path(home, "jars")
    if not any(jars.glob("spark-sql_*.jar")):
        raise JarUnavailable(
            f"{jars} has no spark-sql_*.jar: set SPARK_HOME to a Spark, or install pyspark instead "
            "of pyspark-client"
        )
    return jars
