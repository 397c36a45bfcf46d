"""Packages that not every user needs, and the error for a missing package.

``pip install reput`` installs the clients alone, with ``msgspec``. The extras of ``pyproject.toml``
install the rest: ``reput[server]``, ``reput[cli]``, ``reput[spark]``, and others.
"""

from reput.errors import ReputError

_SERVER, _CLI, _SPARK = ("server", "the server"), ("cli", "the command line"), ("spark", "Spark")
_COMPRESSION = "compression", "the packages of LZ4 and Zstandard"
_EXTRAS = {
    "lark": _SERVER,
    "lz4": _COMPRESSION,
    "numpy": _SERVER,
    "prometheus_client": _SERVER,
    "zstandard": _COMPRESSION,
    "rich": _CLI,
    "typer": _CLI,
    "jinja2": _SPARK,
    "pandas": _SPARK,
    "py4j": _SPARK,
    "pyarrow": _SPARK,
    "pyspark": _SPARK,
}
"""Package to its extra and what it is for."""


class ExtraMissing(ReputError):
    """Error of a part of reput whose packages are not installed.

    Args:
        what: The part that was used, as ``reput up``.
        extra: Name of the extra.
        need: What the extra installs, in words.
    """

    def __init__(self, what: str, extra: str, need: str) -> None:
        super().__init__(f"{what} needs {need}: pip install 'reput[{extra}]'")


def extra_missing(
    what: str, error: ModuleNotFoundError, *, is_spark: bool = False
) -> ExtraMissing | None:
    """Return the error for a failed import, with the extra to install; None if no extra has it.

    Args:
        what: The part of reput that was used, as ``reput up``.
        error: Error of the import.
        is_spark: True for a part that needs Spark, whichever package was missed first.
    """
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return ExtraMissing(what, *(_SPARK if is_spark else extra))
