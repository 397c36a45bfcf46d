"""Choice of the engine: shared object, else numba, else reference; in separate processes."""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import golden
import reput
from reput.format.kernels import build, library, native

PACKAGE = Path(reput.__file__).parent
SHARED_OBJECTS = [Path("reput", name, "kernels", "_kernels.so") for name in ("format", "store")]

needs_shared_object = pytest.mark.skipif(
    not all((PACKAGE.parent / name).exists() for name in SHARED_OBJECTS),
    reason="the kernels are not built here",
)
needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="numba is not installed"
)

IS_SOAK = hypothesis.settings.default.max_examples > 100
BLOCKED = "import sys; sys.modules['numba'] = sys.modules['llvmlite'] = None\n"

REPORT = """
import hashlib, json, sys
import numpy as np
from reput.format import kernels
from reput.store.kernels import hot, native

try:
    engine = native.engine()
except native.KernelsUnavailable:
    engine = hot.append.__module__.rpartition(".")[2]
assert engine == kernels.engine()
digest = hashlib.sha256()
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    base = int(path.rsplit("/", 1)[1])
    found = kernels.scan(data, 0, len(data), physical_offset=base)
    assert kernels.find_record(data, 0, physical_offset=base) == 0
    judged = kernels.judge(data, found.positions, physical_offset=base)
    columns = kernels.Columns(data, found.positions[found.verdicts == 0])
    pairs, words = columns.properties(), columns.keys()
    for part in (
        *found[:3], *judged[:3], np.array([kernels.data_end(data), kernels.checksum(data)]),
        *columns.topics()[:2], *columns.bodies()[0][:2], pairs.offsets, *pairs.names[:2],
        *pairs.values[:2], words.offsets, *words.words[:2], *columns.message_ids()[:2],
        *columns.born_hosts()[:2], columns.topic_ids()[0], *columns.key_hashes(with_tags=True),
    ):
        digest.update(part.tobytes())
print(json.dumps({
    "engine": kernels.engine(),
    "file": kernels.__file__,
    "has_numba": sys.modules.get("numba") is not None,
    "digest": digest.hexdigest(),
}))
"""


def run(site: Path, home: Path | str, code: str = "", **env: str) -> dict[str, Any]:
    """Read a golden log in a new process, with the package below ``site``; return its report."""
    logs = [str(file) for file in golden.log_files(golden.unpack("5.5.0", "clean"))]
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XDG_CACHE_HOME", "REPUT_KERNELS")
    }
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT, *logs],
        capture_output=True,
        text=True,
        check=False,
        env=kept | {"PYTHONPATH": str(site), "HOME": str(home), **env},
    )
    assert done.returncode == 0, done.stderr
    output: dict[str, Any] = json.loads(done.stdout)
    assert Path(output.pop("file")).is_relative_to(site)
    return output


@pytest.fixture(scope="module")
def expected() -> str:
    """Return the digest that the reference implementation computes."""
    root = PACKAGE.parent
    report = run(root, "/proc", REPUT_KERNELS="reference")
    assert report["engine"] == "reference"
    assert not report["has_numba"]
    assert report["digest"] != hashlib.sha256().hexdigest()
    return str(report["digest"])


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package, without the shared object."""
    site = tmp_path / "site"
    shutil.copytree(
        PACKAGE, site / "reput", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.tmp")
    )
    return site


@needs_shared_object
@pytest.mark.parametrize("code", ["", BLOCKED])
def test_shared_object_needs_no_numba(code: str, expected: str, tmp_path: Path) -> None:
    output = run(PACKAGE.parent, tmp_path, code)
    assert output == {"engine": "native", "has_numba": False, "digest": expected}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("is_whole", "engine"),
    [pytest.param(True, "native", marks=needs_shared_object), (False, "reference")],
)
def test_the_package_runs_from_a_zip(
    is_whole: bool, engine: str, expected: str, bare: Path, tmp_path: Path
) -> None:
    """Spark ships the package to workers as a zip: it is not unpacked, and needs only memory."""
    if is_whole:
        for path in SHARED_OBJECTS:
            shutil.copy(PACKAGE.parent / path, bare / path)
    shutil.make_archive(str(tmp_path / "shipped"), "zip", bare)
    path = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, './shipped.zip')\n"
    output = run(Path("shipped.zip"), "/proc", BLOCKED + path)
    assert output == {"engine": engine, "has_numba": False, "digest": expected}


def test_the_reference_runs_where_compilation_is_impossible(
    bare: Path, expected: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    output = run(bare, home, BLOCKED)
    assert output == {"engine": "reference", "has_numba": False, "digest": expected}
    assert list(home.iterdir()) == []


@needs_shared_object
def test_reference_on_demand(expected: str, tmp_path: Path) -> None:
    output = run(PACKAGE.parent, tmp_path, REPUT_KERNELS="reference")
    assert output == {"engine": "reference", "has_numba": False, "digest": expected}


def test_reference_where_numba_cannot_be_imported(bare: Path, expected: str) -> None:
    """Example: numpy is newer than the versions that numba supports."""
    broken = bare / "numba"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('Numba needs NumPy 1.0 or less')")
    assert run(bare, "/proc")["engine"] == "reference"
    assert run(bare, "/proc")["digest"] == expected


def test_a_shared_object_that_does_not_load_is_skipped(bare: Path, expected: str) -> None:
    """The file is for another machine, or truncated."""
    for path in SHARED_OBJECTS:
        (bare / path).write_bytes(b"\x7fELF, but not of this machine")
    output = run(bare, "/proc", BLOCKED)
    assert output == {"engine": "reference", "has_numba": False, "digest": expected}


@needs_numba
@pytest.mark.slow
@pytest.mark.soak
def test_numba_compiles_once_and_keeps_the_code(bare: Path, expected: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    report = run(bare, home)
    assert report == {"engine": "numba", "has_numba": True, "digest": expected}

    def kept(cache: Path) -> set[tuple[str, int, int]]:
        stats = [(file.name, file.stat()) for file in (cache / "reput").iterdir()]
        return {(name, stat.st_ino, stat.st_mtime_ns) for name, stat in stats}

    before = kept(home / ".cache")
    assert len(before) == len(SHARED_OBJECTS)

    assert run(bare, home) == report
    # From another cache folder that is not writable.
    elsewhere = tmp_path / "cache"
    (home / ".cache").rename(elsewhere)
    assert run(bare, "/proc", XDG_CACHE_HOME=str(elsewhere)) == report
    assert kept(elsewhere) == before


@needs_numba
@pytest.mark.slow
@pytest.mark.skipif(not IS_SOAK, reason="make soak: compiles all kernels again")
def test_numba_works_without_a_writable_cache(bare: Path, expected: str) -> None:
    """Not even root can create a folder in /proc."""
    output = run(bare, "/proc")
    assert output == {"engine": "numba", "has_numba": True, "digest": expected}


def test_an_unreadable_cache_causes_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home belongs to another user, and even listing it is forbidden."""

    class Closed:
        def __init__(self, package: str) -> None: ...

        def refuse(self, *_: object, **__: object) -> None:
            raise PermissionError

        is_file = exists = stat = read_bytes = mkdir = write_bytes = refuse
        parent = property(lambda self: self)

    monkeypatch.setattr(library, "_cache_file", Closed)
    monkeypatch.setattr(build, "object_code", lambda package: b"code")
    assert library._compiled_code("reput.format.kernels") == b"code"


def test_cache_follows_every_source_with_a_layout_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers from these files are compiled in: a cached object must not outlive them."""
    package = "reput.format.kernels"
    sources = build.compiled_in(package)
    before = library._cache_file(package)
    for name in ("log_scan", "columns", "hashes", "memory", "build"):
        assert f"{package}.{name}" in sources
    for name in ("message", "properties", "sys_flag"):
        assert f"reput.format.{name}" in sources
    for name in sources:
        changed = sources | {name: sources[name] + b"#"}
        monkeypatch.setattr(build, "compiled_in", lambda package, changed=changed: changed)
        assert library._cache_file(package) != before


def test_concurrent_first_calls_get_the_same_tables() -> None:
    """All threads get the same array, because kernels hold its address; they race to create it."""
    spec = importlib.util.spec_from_file_location("fresh_native", native.__file__)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    threads = 4
    calls: list[None] = []
    meeting = threading.Barrier(threads)

    def has_instruction(name: str) -> bool:
        calls.append(None)
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)  # Without a lock, all threads get here.
        return False

    fresh._has_instruction = has_instruction
    start = threading.Barrier(threads)
    tables: list[Any] = []

    def ask() -> None:
        start.wait()
        tables.append(fresh.crc_tables())

    asking = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(calls) == 1
    assert len(tables) == threads
    assert all(table is tables[0] for table in tables)
    assert fresh.crc_tables() is tables[0]
