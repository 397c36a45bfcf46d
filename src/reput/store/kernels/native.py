"""The compiled kernels of this package: its shared object, loaded at first use."""

from reput.format.kernels.library import KernelsUnavailable, Library

__all__ = ["KernelsUnavailable", "engine", "is_compiled", "plain_function"]

_library = Library("reput.store.kernels")
engine = _library.engine
is_compiled = _library.is_compiled
plain_function = _library.function
