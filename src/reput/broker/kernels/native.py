"""The compiled kernels of this package: its shared object, loaded at first use."""

from reput.format.kernels.library import KernelsUnavailable, Library

__all__ = ["KernelsUnavailable", "engine", "plain_function"]

_library = Library("reput.broker.kernels")
engine = _library.engine
plain_function = _library.function
