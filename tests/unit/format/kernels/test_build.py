"""The shared object is built once from its sources."""

import importlib
import shutil
from pathlib import Path

import pytest

pytest.importorskip("numba")
pytest.importorskip("llvmlite")

from reput.format.kernels import build, library
from reput.format.kernels.layout import SHARED_OBJECT

ONE = "define i64 @reput_one() { ret i64 1 }"
PACKAGE = "reput.format.kernels"

needs_linker = pytest.mark.skipif(
    not any(map(shutil.which, build._LINKERS)), reason="no C linker: nothing is built"
)


@needs_linker
def test_changed_sources_cause_a_new_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled = []

    def compile_one(package: str) -> tuple[str, list[str]]:
        compiled.append(build.made_of(package))
        return ONE, []

    monkeypatch.setattr(build, "module_text", compile_one)
    for origin in (b"first", b"first", b"second", b"second"):
        monkeypatch.setattr(build, "made_of", lambda package, origin=origin: origin)
        assert build.build(PACKAGE, str(tmp_path)) == str(tmp_path / SHARED_OBJECT)
        assert library.LinkedKernels(tmp_path / SHARED_OBJECT).function("one")() == 1
    assert compiled == [b"first", b"second"]


@pytest.mark.parametrize("name", ["kernels.log_scan", "kernels.build", "codes", "message"])
def test_every_source_of_a_layout_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.made_of(PACKAGE)
    assert build.made_of(PACKAGE) == before
    sources = build.compiled_in(PACKAGE)
    changed = sources | {f"reput.format.{name}": sources[f"reput.format.{name}"] + b"#"}
    monkeypatch.setattr(build, "compiled_in", lambda package: changed)
    assert build.made_of(PACKAGE) != before


def test_modules_with_entry_points_are_the_kernels() -> None:
    """The kernels are found by their entry points; there is no list of names."""
    names = build.entry_points(PACKAGE)
    assert {"scan", "locate", "checksum"} <= names.keys()
    for module in build.sources(PACKAGE):
        for name in getattr(importlib.import_module(module), "ENTRY_POINTS", ()):
            assert name in names
