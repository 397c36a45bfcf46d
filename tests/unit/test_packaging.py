"""An installed reput starts quickly, and runs compiled kernels without numba."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hatch_build
from reput.testing import LocalBroker

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE")
SHARED_OBJECTS = {"reput/format/kernels/_kernels.so", "reput/store/kernels/_kernels.so"}

pytestmark = pytest.mark.xdist_group("packaging")  # One wheel, built once.

HEAVY = ("numpy", "pyarrow", "pyspark", "numba", "pandas")


def run_python(code: str, **env: str) -> str:
    """Run code in a new interpreter and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_command_line_starts_without_anything_heavy() -> None:
    loaded = run_python("import json, sys, reput.cli; print(json.dumps(sorted(sys.modules)))")
    assert set(HEAVY) & set(json.loads(loaded)) == set()


# --- the wheel ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "symbols", "tag"),
    [
        # PEP 600: the glibc of the tag is the newest one that a symbol needs.
        ("linux-x86_64", [b"GLIBC_2.2.5\0GLIBC_2.14", b""],
         "manylinux_2_17_x86_64.manylinux2014_x86_64"),
        ("linux-aarch64", [b"GLIBC_2.17"], "manylinux_2_17_aarch64.manylinux2014_aarch64"),
        ("linux-x86_64", [b"GLIBC_2.9", b"memcpy\0GLIBC_2.34\0GLIBC_2.14"],
         "manylinux_2_34_x86_64"),
        ("linux-x86_64", [b"libc.musl-x86_64.so.1"], "linux_x86_64"),
        ("macosx-11.0-arm64", [b""], "macosx_11_0_arm64"),
    ],
)  # fmt: skip
def test_the_tag_of_a_wheel_is_that_of_its_shared_objects(
    platform: str, symbols: list[bytes], tag: str
) -> None:
    assert hatch_build.platform_tag(platform, symbols) == tag


def test_a_pure_wheel_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPUT_WHEEL", raising=False)
    hook = hatch_build.KernelBuildHook.__new__(hatch_build.KernelBuildHook)
    assert any(requirement.startswith("numba") for requirement in hook.dependencies())
    monkeypatch.setenv("REPUT_WHEEL", "pure")
    assert hook.dependencies() == []
    build_data: dict[str, object] = {}
    hook.initialize("standard", build_data)
    assert build_data == {}
    monkeypatch.setenv("REPUT_WHEEL", "slim")
    with pytest.raises(ValueError, match="'slim'; allowed: pure"):
        hook.dependencies()


# --- missing packages -----------------------------------------------------------------

OF_EXTRAS = ("numpy", "lark", "lz4", "prometheus_client", "rich", "typer", "uvloop", "zstandard",
             "pyspark", "pyarrow", "jinja2", "numba", "cryptography", "yaml")  # fmt: skip
WITHOUT_EXTRAS = f"import sys\nsys.modules.update(dict.fromkeys({OF_EXTRAS}))\n"
"""Code that makes an import of these packages fail as if they were not installed."""


def test_clients_need_nothing_of_the_extras() -> None:
    with LocalBroker(topics=["T"]) as mq:
        printed = run_python(
            WITHOUT_EXTRAS + "from reput.client import ConsumerConfig, Message, ConsumeFromWhere\n"
            "from reput.client.blocking import Admin, Producer, PullConsumer\n"
            f"namesrv = {mq.namesrv_addr!r}\n"
            "first = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)\n"
            "with Producer('P', namesrv=namesrv) as producer:\n"
            "    producer.send(Message('T', b'x' * 5000))  # compressed\n"
            "with PullConsumer('G', namesrv=namesrv, config=first) as consumer:\n"
            "    consumer.subscribe('T')\n"
            "    print(len(next(consumer).body))\n"
            "with Admin(namesrv) as admin:\n"
            "    print('T' in admin.topics())\n"
            "import importlib, reput.client\n"
            "print(all(getattr(reput.client, name) for name in reput.client.__all__))\n"
        )
    assert printed.split() == ["5000", "True", "True"]


@pytest.mark.parametrize(
    ("arguments", "missing", "line"),
    [
        (["up"], OF_EXTRAS, "reput up needs the server: pip install 'reput[server]'"),
        (["broker"], OF_EXTRAS, "reput broker needs the server: pip install 'reput[server]'"),
        (["topic", "list"], OF_EXTRAS, "reput topic needs the command line: "
         "pip install 'reput[cli]'"),
        (["store", "info", "."], ["numpy"], "reput store needs the server: "
         "pip install 'reput[server]'"),
        (["export", ".", "--to", "a.csv"], ["numpy", "pyarrow"],
         "reput export needs numpy and pyarrow: pip install 'reput[arrow]'"),
        (["pipeline", "audit", "--store", "."], ["numpy", "pyspark"],
         "reput pipeline needs Spark: pip install 'reput[spark]'"),
        (["pipeline", "audit", "--store", "."], ["pyspark"],
         "reput pipeline needs Spark: pip install 'reput[spark]'"),
    ],
)  # fmt: skip
@pytest.mark.sampled(4)
def test_a_command_names_the_extra_that_it_needs(
    arguments: list[str], missing: list[str], line: str
) -> None:
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
        f"from reput.cli.main import run\nsys.stderr = sys.stdout\nprint(run({arguments}))"
    )
    assert run_python(code).splitlines() == [f"reput: {line}", "2"]


def test_the_version_and_other_parts_without_extras() -> None:
    printed = run_python(
        WITHOUT_EXTRAS + "from reput.cli.main import run\n"
        "run(['--version'])\n"
        "from reput.errors import ReputError\n"
        "from reput.format import body, sys_flag\n"
        "import reput.testing, reput.testing.pytest_plugin\n"
        "for use in (\n"
        "    lambda: reput.testing.LocalBroker,\n"
        "    lambda: body.decompress(b'x', sys_flag.COMPRESSED | sys_flag.COMPRESSION_ZSTD),\n"
        "    lambda: body.decompress(b'x', sys_flag.COMPRESSED | sys_flag.COMPRESSION_LZ4),\n"
        "):\n"
        "    try:\n        use()\n"
        "    except ReputError as error:\n        print(error)\n"
    )
    version, *problems = printed.splitlines()
    assert version.startswith("reput 0.")
    packages = "the packages of LZ4 and Zstandard: pip install 'reput[compression]'"
    assert problems == [
        "LocalBroker needs the server: pip install 'reput[server]'",
        f"a body compressed with Zstandard needs {packages}",
        f"a body compressed with LZ4 needs {packages}",
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of the sources.

    The build writes the shared objects beside their sources, where other tests have them mapped;
    hence the copy. It includes the objects that ``make venv`` compiled: objects that match these
    sources are not compiled again.
    """
    if not any(shutil.which(linker) for linker in ("cc", "gcc", "clang")):
        pytest.skip("no C linker: the wheel would be a pure one")
    if importlib.util.find_spec("numba") is None:
        pytest.skip("no numba: the wheel would be a pure one")
    checkout = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(
        ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.tmp")
    )
    target = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", target, checkout],
        check=True,
        capture_output=True,
    )
    (built,) = target.glob("reput-*.whl")
    return built


@pytest.mark.slow
def test_wheel_carries_the_compiled_kernels(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {*names} >= SHARED_OBJECTS
    assert "pyspark_rocketmq/__init__.py" in names
    for folder in (ROOT / "src/reput").rglob("templates"):
        package = folder.relative_to(ROOT / "src").as_posix()
        assert {f"{package}/{file.name}" for file in folder.iterdir()} <= {*names}
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")


@pytest.mark.slow
def test_installed_wheel_runs_its_kernels_read_only_and_without_numba(
    wheel: Path, tmp_path: Path
) -> None:
    target = tmp_path / "site"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"),
            *("--target", target, wheel),
        ],
        check=True,
        capture_output=True,
    )
    for path in (target, *target.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        printed = run_python(
            "import sys; sys.modules['numba'] = None\n"
            "from reput.format import kernels\n"
            "from reput.store.kernels import hot, native\n"
            "print(kernels.__file__, kernels.engine(), native.engine(), hot.append.__name__)",
            PYTHONPATH=str(target),
            PYTHONDONTWRITEBYTECODE="1",
        )
    finally:
        for path in (target, *target.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert printed == f"{target}/reput/format/kernels/__init__.py native native reput_append"
