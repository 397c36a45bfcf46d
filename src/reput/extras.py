"""Packages that not every user needs, and the error for a missing package.

``pip install .`` installs the clients alone, with ``msgspec``. The extras of ``pyproject.toml``
install the rest: ``.[server]``, ``.[cli]``, ``.[spark]``, and others.
"""

from reput.errors import ReputError

_SERVER, _CLI, _SPARK = ("server", "the server"), ("cli", "the command line"), ("spark", "Spark")
_COMPRESSION = "compression", "the packages of LZ4 and Zstandard"
_CONSOLE = "console", "the web console"
_ARROW = "arrow", "numpy and pyarrow"
_EXTRAS = {
    "duckdb": ("duckdb", "DuckDB"),
    "h11": ("etcd", "h11"),
    "lark": _SERVER,
    "lz4": _COMPRESSION,
    "numpy": _SERVER,
    "opentelemetry": ("otel", "the API of OpenTelemetry"),
    "prometheus_client": _SERVER,
    "zstandard": _COMPRESSION,
    "rocksdict": ("rocksdb", "rocksdict"),
    "rich": _CLI,
    "typer": _CLI,
    "starlette": _CONSOLE,
    "uvicorn": _CONSOLE,
    "jinja2": _SPARK,
    "pandas": ("pandas", "pandas"),
    "polars": ("polars", "Polars"),
    "py4j": _SPARK,
    "pyarrow": _SPARK,
    "pyspark": _SPARK,
}
"""Package -> its extra and its purpose."""
_WHOLE = {"arrow": _ARROW, "console": _CONSOLE, "spark": _SPARK}


class ExtraMissing(ReputError):
    """Error of a part of reput whose packages are not installed.

    Args:
        what: The part that was used, as ``reput up``.
        extra: Name of the extra.
        need: What the extra installs, in words.
    """

    def __init__(self, what: str, extra: str, need: str) -> None:
        super().__init__(f"{what} needs {need}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return how to install an extra, for errors: no registry has a package of reput."""
    return f"pip install '.[{extra}]' in a clone of reput"


def extra_missing(
    what: str, error: ModuleNotFoundError, *, extra: str | None = None
) -> ExtraMissing | None:
    """Return the error for a failed import, with the extra to install; None if no extra has it.

    Args:
        what: The part of reput that was used, as ``reput up``.
        error: Error of the import.
        extra: Name of the extra that has all packages of the part, ``spark``, ``arrow`` or
            ``console``; None: the extra of the package that was missed.
    """
    missed = _EXTRAS.get((error.name or "").partition(".")[0])
    if missed is None:
        return None
    return ExtraMissing(what, *(_WHOLE[extra] if extra else missed))
