"""The choice of the kernels' engine: the wish of ``REPUT_KERNELS``, and the installed ones.

    native     shared objects that came with the package
    numba      compiled on this machine, once, by numba (the extra ``kernels``)
    reference  plain Python

Without ``REPUT_KERNELS`` it is the first one that is there.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

from reput import __version__
from reput.errors import InvalidOption

VARIABLE = "REPUT_KERNELS"
NATIVE, NUMBA, REFERENCE = ENGINES = ("native", "numba", "reference")
PACKAGES = ("broker", "format", "grpc", "store")
"""Packages with kernels."""
SHARED_OBJECTS = tuple(f"{package}/kernels/_kernels.so" for package in PACKAGES)
"""Shared objects of a wheel with kernels, below the package."""


def asked_engine() -> str:
    """Return the engine that the environment selects; empty if it selects none.

    Raises:
        InvalidOption: There is no such engine.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", *ENGINES):
        raise InvalidOption(VARIABLE, asked, ", ".join(ENGINES))
    return asked


def expected_engine() -> str:
    """Return the engine that a broker would use; loads neither numpy nor numba.

    Raises:
        InvalidOption: ``REPUT_KERNELS`` has a value that is not allowed.
    """
    asked = asked_engine()
    if asked:
        return asked
    try:
        for path in SHARED_OBJECTS:
            ctypes.CDLL(str(Path(__file__).parent / path))
    except OSError:
        return REFERENCE if importlib.util.find_spec("numba") is None else NUMBA
    return NATIVE


def engine_text(engine: str) -> str:
    """Return an engine with what it means for a broker."""
    if engine != REFERENCE:
        return engine
    return (
        "reference (plain Python: a broker is several times slower; install a wheel with kernels"
        " for this system, or the extra kernels)"
    )


def version_text() -> str:
    """Return the version of reput, and of its kernels if a broker can run here."""
    lines = [f"reput {__version__}"]
    if importlib.util.find_spec("numpy") is not None:
        lines.append(f"kernels: {engine_text(expected_engine())}")
    return "\n".join(lines)
