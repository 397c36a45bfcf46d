"""The shared object is made once of its sources."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("numba")
pytest.importorskip("llvmlite")

from reput.format.kernels import build, native

ONE = "define i64 @reput_one() { ret i64 1 }"
FORMAT = Path(build.__file__).parents[1]

needs_linker = pytest.mark.skipif(
    not any(map(shutil.which, build._LINKERS)), reason="no C linker: nothing is built"
)


@needs_linker
def test_it_is_built_again_for_other_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = []

    def compile_one() -> tuple[str, list[str]]:
        compiled.append(build.made_of())
        return ONE, []

    monkeypatch.setattr(build, "module_text", compile_one)
    for origin in (b"first", b"first", b"second", b"second"):
        monkeypatch.setattr(build, "made_of", lambda origin=origin: origin)
        assert build.build(str(tmp_path)) == str(tmp_path / build.SHARED_OBJECT)
        assert native._SharedObject(tmp_path / build.SHARED_OBJECT).function("one")() == 1
    assert compiled == [b"first", b"second"]


def test_every_source_of_a_layout_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "format"
    shutil.copytree(FORMAT, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    monkeypatch.setattr(build, "__file__", str(copy / "kernels" / "build.py"))
    before = build.made_of()
    for name in ("kernels/acks.py", "kernels/build.py", "codes.py", "message.py"):
        source = copy / name
        text = source.read_text()
        source.write_text(text.replace("1", "2", 1))
        assert build.made_of() != before, name
        source.write_text(text)
    assert build.made_of() == before
