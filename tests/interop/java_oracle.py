"""RocketMQ's own Java classes in a process that answers requests: the reference of these tests.

``Oracle.java`` is compiled against the official jars of one version, and started once per test run.
The jars come from Maven. Jars and classes are cached in ``$REPUT_JARS``, or
``~/.cache/reput/jars``.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DEFAULT_VERSIONS = ("4.9.7", "5.5.0")
ALL_VERSIONS = ("4.5.2", *DEFAULT_VERSIONS)
INSTALL = (
    "install a JDK 17 or later and Maven "
    "(Debian, Ubuntu: openjdk-17-jdk-headless maven; macOS: brew install openjdk@17 maven)"
)
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable")

Word = str | bytes | int


class JavaUnavailable(Exception):
    """A tool or the jars are missing; the text states what to install."""


class JavaError(Exception):
    """Java threw an exception while it processed a request.

    Args:
        cause: Text of Java's exception.
        line: The request; empty if the process itself failed.
    """

    def __init__(self, cause: str, line: str = "") -> None:
        super().__init__(f"{line[:500]}: {cause}" if line else cause)
        self.cause = cause
        self.line = line


def wants_all_versions() -> bool:
    return os.environ.get("REPUT_INTEROP") == "all"


def versions() -> tuple[str, ...]:
    return ALL_VERSIONS if wants_all_versions() else DEFAULT_VERSIONS


def tool(name: str) -> str:
    """Return the path of ``java``, ``javac`` or ``mvn``. Raises ``JavaUnavailable``."""
    home = os.environ.get("JAVA_HOME")
    if home and name != "mvn":
        path = shutil.which(name, path=str(Path(home, "bin")))
    else:
        path = shutil.which(name)
    if path is None:
        raise JavaUnavailable(f"{name} is missing: {INSTALL}")
    return path


def jars(version: str) -> Path:
    """Return the folder with the jars of a version; fetch them if they are missing.

    Raises:
        JavaUnavailable: Maven is missing, or it cannot fetch them.
    """
    return _fetched(cache() / version, HERE / "pom.xml", version)


def cluster_jars(version: str) -> Path:
    """Return the folder with name server, broker, admin tools and client of a version.

    Raises:
        JavaUnavailable: Maven is missing, or it cannot fetch them.
    """
    return _fetched(cache() / f"cluster-{version}", HERE / "cluster.pom.xml", version)


def benchmark_jars() -> Path:
    """Return the folder with ``org.apache.rocketmq.example.benchmark`` of 5.5.0.

    Raises:
        JavaUnavailable: Maven is missing, or it cannot fetch them.
    """
    return _fetched(cache() / "example-5.5.0", HERE / "example.pom.xml", "5.5.0")


def proxy_jars() -> Path:
    """Return the folder with the official proxy 5.5.0, which contains a broker.

    Raises:
        JavaUnavailable: Maven is missing, or it cannot fetch them.
    """
    return _fetched(cache() / "proxy-5.5.0", HERE / "proxy.pom.xml", "5.5.0")


def more_jars(version: str, part: str, artifacts: Iterable[str], work: Path) -> Path:
    """Return the folder with a further module of RocketMQ; it is fetched next to those of ``jars``.

    Args:
        version: Version of RocketMQ.
        part: Module: ``filter``, ``broker``, ...
        artifacts: Artifacts to fetch of the module and its dependencies, to leave out the rest of
            RocketMQ.
        work: Folder for the pom.

    Raises:
        JavaUnavailable: Maven is missing, or it cannot fetch them.
    """
    folder = cache() / f"{part}-{version}"
    if (folder / f"rocketmq-{part}-{version}.jar").is_file():
        return folder
    pom = (HERE / "pom.xml").read_text(encoding="utf-8")
    pom = pom.replace(">rocketmq-client<", f">rocketmq-{part}<")
    (work / "pom.xml").write_text(pom, encoding="utf-8")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{part}-{version}-") as new:
        only = f"-DincludeArtifactIds={','.join(artifacts)}"
        _copy_dependencies(work / "pom.xml", version, Path(new, "jars"), only)
        shutil.copytree(Path(new, "jars"), folder, dirs_exist_ok=True)
    return folder


def classes(name: str, sources: Sequence[Path], libraries: Sequence[Path]) -> Path:
    """Return the folder with the compiled sources; compile them if they are not cached.

    Args:
        name: Prefix of the folder's name; it must contain the version.
        sources: ``.java`` files to compile; other files are copied.
        libraries: Folders with jars.

    Raises:
        JavaUnavailable: ``javac`` is missing.
    """

    def compile_to(new: Path) -> None:
        # -XDignore.symbol.file: no warning that Unsafe is internal.
        compiling = [tool("javac"), "-XDignore.symbol.file", "-proc:none", "-nowarn"]
        compiling += ["-encoding", "UTF-8", "-cp", class_path(*libraries), "-d", str(new)]
        subprocess.run(
            [*compiling, *(source for source in sources if source.suffix == ".java")], check=True
        )
        for source in sources:
            if source.suffix != ".java":
                shutil.copy(source, new)

    return cached(name, sources, compile_to)


def cached(name: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """Return a cached folder that ``make`` builds from sources, once per user.

    Args:
        name: Prefix of the folder's name.
        sources: Files; the folder's name contains their hash.
        make: Function that builds into the given folder.
    """
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = cache() / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as work:
        new = Path(work, "made")
        new.mkdir()
        make(new)
        try:
            new.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return folder


def class_path(*folders: Path) -> str:
    """Return a class path of folders: their jars, or their classes if there are no jars."""
    return os.pathsep.join(
        str(folder / "*") if next(folder.glob("*.jar"), None) else str(folder) for folder in folders
    )


def cache() -> Path:
    """Return the folder for jars and classes."""
    root = os.environ.get("REPUT_JARS")
    return Path(root) if root else Path.home() / ".cache" / "reput" / "jars"


def _fetched(folder: Path, pom: Path, version: str) -> Path:
    """Return a folder with the artifacts of a pom; fetch them if they are missing."""
    names = [f"{node.text}-{version}.jar" for node in _artifacts(pom)]
    if all((folder / name).is_file() for name in names):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as new:
        _copy_dependencies(pom, version, Path(new, "jars"))
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        try:
            Path(new, "jars").rename(folder)
        except OSError:  # another process was faster
            if not all((folder / name).is_file() for name in names):
                raise
    return folder


def _copy_dependencies(
    pom: Path, version: str, to: Path, only: str = "-DincludeScope=runtime"
) -> None:
    command = [tool("mvn"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", only]
    command += [f"-Drocketmq.version={version}", f"-DoutputDirectory={to}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise JavaUnavailable(f"mvn could not fetch RocketMQ {version}: {result.stdout[-800:]}")


def _artifacts(pom: Path) -> list[ElementTree.Element]:
    space = "{http://maven.apache.org/POM/4.0.0}"
    return ElementTree.parse(pom).findall(f".//{space}dependency/{space}artifactId")


class Oracle(ABC):
    """What answers requests as RocketMQ does: a JVM, or a recording of its answers.

    Args:
        version: Version of RocketMQ.
    """

    is_recorded = False
    """Whether the examples are those of a recording."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.is_4 = version.startswith("4.")

    @abstractmethod
    def ask(self, command: str, requests: Iterable[Sequence[Word]]) -> list[Any]:
        """Return the answer to each request. Raises ``JavaError`` if one of them failed."""

    def ask_one(self, command: str, *words: Word) -> Any:
        """Return the answer to one request."""
        return self.ask(command, [words])[0]

    def size(self, whole: int, recorded: int | None = None) -> int:
        """Return the number of examples.

        Args:
            whole: Their number beside a JVM.
            recorded: Their number in a recording; by default a tenth.
        """
        return whole


class JavaOracle(Oracle):
    """Running ``Oracle.java``; a subclass may run another ``WordOracle`` with other jars.

    Args:
        version: Version of RocketMQ.
        work: Empty folder for temporary files, and home folder for the logs of RocketMQ.

    Raises:
        JavaUnavailable: A tool or the jars are missing.
    """

    main_class = "Oracle"
    more_classes: Sequence[str] = ()
    """Further classes to compile."""
    properties: Mapping[str, str] = {}
    """System properties of Java."""

    def __init__(self, version: str, work: Path) -> None:
        super().__init__(version)
        java = tool("java")
        libraries = self.folders(version, work)
        sources = [
            HERE / f"{name}.java" for name in ("WordOracle", self.main_class, *self.more_classes)
        ]
        compiled = classes(f"{self.main_class}-{version}", sources, libraries)
        self._log = work / "stderr.txt"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    java,
                    *JVM_OPTIONS,
                    f"-Djava.io.tmpdir={work}",
                    f"-Duser.home={work}",
                    *(f"-D{key}={value}" for key, value in self.properties.items()),
                    "-cp",
                    class_path(compiled, *libraries),
                    self.main_class,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=work,
            )

    def folders(self, version: str, work: Path) -> list[Path]:
        """Return the folders with the jars. Raises ``JavaUnavailable``."""
        return [jars(version)]

    def ask(self, command: str, requests: Iterable[Sequence[Word]]) -> list[Any]:
        lines = [line_of(command, words) for words in requests]
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        # Java reads up to the dot before it writes, so neither pipe can block both ends.
        to.write("\n".join((*lines, ".\n")).encode("ascii"))
        to.flush()
        values = []
        for line in lines:
            raw = back.readline()
            if not raw:
                raise JavaError(f"Java died: {self._log.read_text(errors='replace')[-2000:]}")
            values.append((line, json.loads(raw)))
        for line, answer in values:
            if "error" in answer:
                raise JavaError(answer["error"], line)
        return [answer["value"] for _, answer in values]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class ClusterOracle(JavaOracle):
    """Oracle that uses classes of brokers or clients."""

    def folders(self, version: str, work: Path) -> list[Path]:
        return [cluster_jars(version)]


def property_words(properties: dict[str, str]) -> list[Word]:
    """Return a property map as the words of a request."""
    return [len(properties), *(text for pair in properties.items() for text in pair)]


def line_of(command: str, words: Iterable[Word]) -> str:
    """Return the line of a request."""
    return " ".join((command, *map(_word, words)))


def _word(value: Word) -> str:
    if isinstance(value, int):
        return str(value)
    data = value.encode("utf-16-be", "surrogatepass") if isinstance(value, str) else value
    return data.hex() or "-"
