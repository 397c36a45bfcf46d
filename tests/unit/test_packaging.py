"""An installed reput starts quickly, and runs compiled kernels without numba."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hatch_build
from reput.testing import LocalBroker

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE")
PARTS = ("broker", "format", "grpc", "store")
SHARED_OBJECTS = {f"reput/{part}/kernels/_kernels.so" for part in PARTS}

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
        (["up"], OF_EXTRAS, "reput up needs the server: "
         "pip install '.[server]' in a clone of reput"),
        (["broker"], OF_EXTRAS, "reput broker needs the server: "
         "pip install '.[server]' in a clone of reput"),
        (["topic", "list"], OF_EXTRAS, "reput topic needs the command line: "
         "pip install '.[cli]' in a clone of reput"),
        (["store", "info", "."], ["numpy"], "reput store needs the server: "
         "pip install '.[server]' in a clone of reput"),
        (["export", ".", "--to", "a.csv"], ["numpy", "pyarrow"],
         "reput export needs numpy and pyarrow: pip install '.[arrow]' in a clone of reput"),
        (["pipeline", "audit", "--store", "."], ["numpy", "pyspark"],
         "reput pipeline needs Spark: pip install '.[spark]' in a clone of reput"),
        (["pipeline", "audit", "--store", "."], ["pyspark"],
         "reput pipeline needs Spark: pip install '.[spark]' in a clone of reput"),
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
    packages = "the packages of LZ4 and Zstandard: pip install '.[compression]' in a clone of reput"
    assert problems == [
        "LocalBroker needs the server: pip install '.[server]' in a clone of reput",
        f"a body compressed with Zstandard needs {packages}",
        f"a body compressed with LZ4 needs {packages}",
    ]


# --- each extra alone -----------------------------------------------------------------

_HELLO = """
import json, socket, ssl
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # as the SDK for Java
context.set_alpn_protocols(["h2"])
with open("ready.json") as file:
    host, _, port = json.load(file)["grpc"].rpartition(":")
with socket.create_connection((host, int(port)), 30) as plain:
    with context.wrap_socket(plain) as secured:
        print("TLS with", secured.selected_alpn_protocol())
"""
_CONSOLE = """
import contextlib, io, os, re, signal, sys, threading, urllib.request
from reput.cli.main import run

real = sys.stdout

class Printed(io.StringIO):
    def write(self, text):
        url = re.search(r"http://[0-9.:]+/", text)
        if url:
            threading.Thread(target=get, args=(url[0],)).start()
        return len(text)

def get(url):
    try:
        with urllib.request.urlopen(url + "topics") as page:
            print("page:", page.status, file=real)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

with contextlib.redirect_stdout(Printed()):
    run(["console", "-n", NAMESRV, "--listen", "127.0.0.1:0"])
"""
_ARROW = (
    "import reput.arrow\n"
    "from reput.format import properties\n"
    "from reput.store.writing.incoming import IncomingMessage\n"
    "from reput.store.message_store import MessageStore\n"
    "with MessageStore.open('store') as store:\n"
    "    store.put(IncomingMessage('T', b'x', 0, properties.encode({})))\n"
)

_WITHOUT_ABSENT = """
import sys
from importlib.machinery import PathFinder

class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Present
"""

QUICKSTARTS = {
    "": (
        "from reput.client import Message\n"
        "from reput.client.blocking import Producer\n"
        "with Producer('P', namesrv=NAMESRV) as producer:\n"
        "    print(producer.send(Message('T', b'two coffees')).status.name)",
        "SEND_OK",
    ),
    "cli": ("from reput.cli.main import run\nrun(['topic', 'show', 'T', '-n', NAMESRV])", "T"),
    "compression": (
        "from reput.format import body, sys_flag\n"
        "import lz4.frame, zstandard\n"
        "for kind, data in ((sys_flag.COMPRESSION_LZ4, lz4.frame.compress(b'LZ4')),\n"
        "                   (sys_flag.COMPRESSION_ZSTD, zstandard.compress(b'Zstandard'))):\n"
        "    print(body.decompress(data, sys_flag.COMPRESSED | kind).decode())",
        "LZ4\nZstandard",
    ),
    "metrics": (
        "from reput.client import Producer\n"
        "from reput.client.metrics import ClientCollector\n"
        "print(len(list(ClientCollector().collect())) > 0)",
        "True",
    ),
    "server": (
        "import sys\nfrom reput.cli.main import run\n"
        "run(['up', '--port', '0', '--broker-port', '0', '--store', 'store', '--ready-file',\n"
        f"     'ready.json', '--', sys.executable, '-c', {_HELLO!r}])",
        "TLS with h2",
    ),
    "console": (_CONSOLE, "page: 200"),
    "arrow": (_ARROW + "print(reput.arrow.scan('store', topic='T').read_all().num_rows)", "1"),
    "pandas": (_ARROW + "print(len(reput.arrow.to_pandas('store', topic='T')))", "1"),
    "polars": (_ARROW + "print(reput.arrow.scan_polars('store', topic='T').collect().height)", "1"),
    "duckdb": (
        _ARROW + "import duckdb\n"
        "messages = reput.arrow.dataset('store', topic='T')\n"
        "print(duckdb.sql('select count(*) from messages').fetchall()[0][0])",
        "1",
    ),
    "etcd": (
        "from reput.controller.etcd_address import parse\n"
        "import reput.controller.etcd_client\n"
        "print(parse('etcd:http://10.0.0.9:2379').endpoints[0].port)",
        "2379",
    ),
    "rocksdb": (
        "import os, rocksdict\n"
        "from reput.store.foreign import rocksdb\n"
        "rocksdict.Rdict('tables').close()\n"
        "print(os.path.isdir('tables'))",
        "True",
    ),
    # A session takes long: tests/spark has many.
    "spark": (
        "import pyspark_rocketmq, reput.spark\n"
        "from reput.cli.main import run\n"
        "run(['pipeline', 'audit', '--help'])\n"
        "print(pyspark_rocketmq.DefaultSource.name())",
        "rocketmq",
    ),
    "otel": ("from reput.client import otel\notel.instrument()\nprint('measured')", "measured"),
    "tls": (
        "import ssl\nfrom reput.remoting import throwaway_certificate\n"
        "throwaway_certificate.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), 0)\n"
        "print('made')",
        "made",
    ),
    "acl": (
        "from pathlib import Path\nfrom reput.broker.access import plain_accounts\n"
        "print(plain_accounts._yaml_loader()[1].__name__[-6:])",
        "Loader",
    ),
    "kernels": ("import numba\nprint(numba.njit(lambda: 7)())", "7"),
}
"""Extra to a program of its quickstart, and the last lines that it prints."""


def test_each_extra_has_a_quickstart() -> None:
    assert {*QUICKSTARTS} == {*_extras()} - {"all", "dev", "docs"}


@pytest.mark.parametrize("extra", QUICKSTARTS)
@pytest.mark.sampled(14)
def test_the_quickstart_of_an_extra_needs_no_other_package(extra: str, tmp_path: Path) -> None:
    """All packages are installed here; an import fails if the extra does not bring it."""
    absent = sorted(_installed_packages() - _packages_of(extra))
    assert "pytest" in absent
    _walk(extra, f"ABSENT = frozenset({absent}){_WITHOUT_ABSENT}", tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("extra", QUICKSTARTS)
def test_the_quickstart_of_an_installed_extra(extra: str, wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    name = f"{wheel}[{extra}]" if extra else str(wheel)
    subprocess.run([python, "-m", "pip", "install", "--quiet", name], check=True)
    _walk(extra, "", tmp_path, str(python))


def _walk(extra: str, before: str, folder: Path, python: str = sys.executable) -> None:
    """Run the program of a quickstart, and compare the end of its output."""
    program, printed = QUICKSTARTS[extra]
    with LocalBroker(topics=["T"]) as mq:
        done = subprocess.run(
            [python, "-c", f"{before}NAMESRV = {mq.namesrv_addr!r}\n{program}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    count = len(printed.splitlines())
    end = "\n".join(done.stdout.splitlines()[-count:])
    assert end == printed if extra != "cli" else printed in done.stdout, done.stdout + done.stderr


def _extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras | {"": project["dependencies"]}


def _installed_packages() -> set[str]:
    """Return the names under which the packages of other projects are imported."""
    return {*metadata.packages_distributions()} - {"reput", "pyspark_rocketmq", "tests"}


def _packages_of(extra: str) -> set[str]:
    """Return the names under which the packages of an extra, and those they need, are imported."""
    distributions = {"reput"}
    pending = [Requirement(text) for text in (*_extras()[""], *_extras()[extra])]
    seen: set[tuple[str, str]] = set()
    while pending:
        needed = pending.pop()
        name = canonicalize_name(needed.name)
        for part in {"", *needed.extras}:
            if (name, part) in seen:
                continue
            seen.add((name, part))
            distributions.add(name)
            pending += _requirements(name, part)
    owners = metadata.packages_distributions()
    return {
        package
        for package, names in owners.items()
        if distributions & {canonicalize_name(name) for name in names}
    }


def _requirements(name: str, extra: str) -> list[Requirement]:
    """Return what a distribution needs on this machine; of reput, what its sources name."""
    try:
        texts = _extras()[extra] if name == "reput" else metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []  # uvloop on Windows
    needed = [Requirement(text) for text in texts]
    return [
        requirement
        for requirement in needed
        if not requirement.marker or requirement.marker.evaluate({"extra": extra})
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
            "from reput.broker.kernels import native as requests\n"
            "from reput.format import kernels\n"
            "from reput.grpc.kernels import native as calls\n"
            "from reput.store.kernels import hot, native\n"
            "parts = kernels, native, calls, requests\n"
            "print(kernels.__file__, *(part.engine() for part in parts), hot.append.__name__,"
            " sep='\\n')",
            PYTHONPATH=str(target),
            PYTHONDONTWRITEBYTECODE="1",
        )
    finally:
        for path in (target, *target.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    kernels = f"{target}/reput/format/kernels/__init__.py"
    assert printed.split("\n") == [kernels, *["native"] * len(PARTS), "reput_append"]
