"""The shared object is built once from its sources."""

import ast
import importlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("numba")
pytest.importorskip("llvmlite")

import llvmlite.binding as llvm

from reput.format.kernels import build, library

PACKAGE = "reput.format.kernels"

needs_linker = pytest.mark.skipif(
    not any(map(shutil.which, build._LINKERS)), reason="no C linker: nothing is built"
)


@needs_linker
def test_changed_sources_cause_a_new_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sources of two small packages are compiled again after they changed, and only then."""
    packages = ["reput.first.kernels", "reput.second.kernels"]
    compiled: list[tuple[str, bytes]] = []

    def object_code(package: str, names: list[str], origin: bytes) -> bytes:
        compiled.append((package, origin))
        return _assembled(names, origin)

    for package in packages:
        (tmp_path / package.replace(".", "/")).mkdir(parents=True)
    monkeypatch.setattr(build, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(build, "object_code", object_code)
    monkeypatch.setattr(build, "entry_points", lambda package: {"receive": None, "other": None})
    for origin in (b"first", b"first", b"second", b"second"):
        monkeypatch.setattr(build, "made_of", lambda package, origin=origin: origin)
        paths = build.build_all(str(tmp_path))
        assert len(paths) == len(packages)
        for path in paths:
            kernels = library.LinkedKernels(Path(path))
            assert (kernels.function("receive")(), kernels.function("other")()) == (7, 5)
    assert compiled == [
        (package, origin) for origin in (b"first", b"second") for package in packages * 2
    ]


def _assembled(names: list[str], origin: bytes) -> bytes:
    """Assemble functions that return the length of their name."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    functions = [f"define i64 @reput_{name}() {{ ret i64 {len(name)} }}" for name in names]
    constant = f'@reput_made_of = weak constant [{len(origin)} x i8] c"{origin.decode()}"'
    text = "\n".join([f'target triple = "{llvm.get_process_triple()}"', constant, *functions])
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


@pytest.mark.parametrize("name", ["kernels.log_scan", "kernels.build", "codes", "message"])
def test_every_source_of_a_layout_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.made_of(PACKAGE)
    assert build.made_of(PACKAGE) == before
    sources = build.compiled_in(PACKAGE)
    changed = sources | {f"reput.format.{name}": sources[f"reput.format.{name}"] + b"#"}
    monkeypatch.setattr(build, "compiled_in", lambda package: changed)
    assert build.made_of(PACKAGE) != before


@pytest.mark.parametrize("part", ["broker", "format", "grpc", "store"])
def test_every_module_that_kernels_import_counts(part: str) -> None:
    """Their constants are compiled in: a change must cause a new build."""
    package = f"reput.{part}.kernels"
    counted = build.compiled_in(package)
    for name, source in build.sources(package).items():
        if b"\nfrom numba import " in source:
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("reput."):
                    whole = {f"{node.module}.{alias.name}" for alias in node.names}
                    assert node.module in counted or whole <= counted.keys(), name


def test_modules_with_entry_points_are_the_kernels() -> None:
    """The kernels are found by their entry points; there is no list of names."""
    names = build.entry_points(PACKAGE)
    assert {"scan", "locate", "checksum"} <= names.keys()
    for module in build.sources(PACKAGE):
        for name in getattr(importlib.import_module(module), "ENTRY_POINTS", ()):
            assert name in names
