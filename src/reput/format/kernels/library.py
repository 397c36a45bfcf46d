"""Loading of the compiled kernels of a package.

They are in a shared object that was built with the package, which may be in a zip: so Spark ships
code to its workers. Without a shared object, but with numba, the same sources are compiled once,
and the object code is kept in the user's cache folder.
"""

import ctypes
import functools
import hashlib
import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from reput import kernel_choice
from reput.errors import InvalidOption
from reput.format.kernels.layout import SHARED_OBJECT

_Made = TypeVar("_Made")


class KernelsUnavailable(ImportError):
    """There is neither a shared object nor numba."""


def made_once(make: Callable[[], _Made]) -> Callable[[], _Made]:
    """Return a function that makes a value at its first call and keeps it forever.

    ``functools.cache`` has no lock: threads that call first at the same time each make a value, and
    all but one of these are freed. Kernels hold addresses, which would then be those of freed
    memory.
    """
    lock = threading.Lock()
    kept: list[_Made] = []

    @functools.wraps(make)
    def get() -> _Made:
        if not kept:
            with lock:
                if not kept:
                    kept.append(make())
        return kept[0]

    return get


class LinkedKernels:
    """Entry points of a linked shared object."""

    name = "native"

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._holding = ctypes.PyDLL(str(path))

    def function(
        self, name: str, arguments: Sequence[Any] | None = None, *, is_short: bool = False
    ) -> Callable[..., int]:
        """Return an entry point; see ``Library.function``."""
        function = (self._holding if is_short else self._library)[f"reput_{name}"]
        function.restype = ctypes.c_int64
        if arguments is not None and not is_short:
            function.argtypes = arguments
        return function


class _CompiledHere:
    """Entry points of object code that numba compiled on this machine, without a linker."""

    name = "numba"

    def __init__(self, package: str, code: bytes) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        from reput.format.kernels import build

        # Now, so that a numba that cannot be imported is noticed before this engine is chosen.
        self._entry_points = build.entry_points(package)

    def function(
        self, name: str, arguments: Sequence[Any] | None = None, *, is_short: bool = False
    ) -> Callable[..., int]:
        if arguments is None:
            arguments = [ctypes.c_int64] * len(self._entry_points[name][1])
        maker = ctypes.PYFUNCTYPE if is_short else ctypes.CFUNCTYPE
        kind = maker(ctypes.c_int64, *arguments)
        return kind(self._engine.get_function_address(f"reput_{name}"))


def _linked_kernels(package: str) -> LinkedKernels:
    """Load the shared object of a package.

    Raises:
        OSError: The package has none, or it was built for another system.
    """
    spec = importlib.util.find_spec(package)
    assert spec is not None
    # The folder stays a text: Spark's zips are named ./NAME, and found by that name only.
    (folder,) = spec.submodule_search_locations or [""]
    path = f"{folder}/{SHARED_OBJECT}"
    if Path(path).exists():
        return LinkedKernels(Path(path))
    data: bytes = spec.loader.get_data(path)  # type: ignore[union-attr]
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(suffix=".so") as copy:
            copy.write(data)
            copy.flush()
            return LinkedKernels(Path(copy.name))  # stays loaded without its name
    # A file in memory: there may be no folder that can be written to and executed from. It stays
    # open: the linker identifies libraries by path, and the next one must not get its number.
    file = os.memfd_create("reput-kernels")
    with os.fdopen(file, "wb", closefd=False) as writer:
        writer.write(data)
    return LinkedKernels(Path(f"/proc/self/fd/{file}"))


def _cache_file(package: str) -> Path:
    from reput.format.kernels import build

    version = importlib.util.find_spec("numba")
    state = hashlib.sha256(f"{package} {version and version.origin}".encode())
    for name, source in build.compiled_in(package).items():
        state.update(f"{name} {len(source)}\n".encode() + source)
    root = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(root, "reput", f"kernels-{os.uname().machine}-{state.hexdigest()[:16]}.o")


def _compiled_code(package: str) -> bytes:
    """Return object code from the cache, or compile (seconds) and try to cache it."""
    cached = _cache_file(package)
    try:
        return cached.read_bytes()
    except OSError:
        pass  # not there yet, or in a home that cannot be read
    from reput.format.kernels import build

    code = build.object_code(package)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        staged = cached.with_suffix(f".{os.getpid()}")
        staged.write_bytes(code)
        staged.replace(cached)
    except OSError:
        pass  # a read-only or missing home costs the next process the compilation again, no more
    return code


def _load(package: str) -> LinkedKernels | _CompiledHere:
    asked = kernel_choice.asked_engine()
    if asked == kernel_choice.REFERENCE:
        raise KernelsUnavailable("REPUT_KERNELS asks for the reference implementation")
    if asked != kernel_choice.NUMBA:
        try:
            return _linked_kernels(package)
        except OSError as error:  # slower is better than not at all
            if asked:
                allowed = f"{kernel_choice.NUMBA} or {kernel_choice.REFERENCE} here: {error}"
                raise InvalidOption(kernel_choice.VARIABLE, asked, allowed) from error
    if importlib.util.find_spec("numba") is None:
        if asked:
            allowed = f"{kernel_choice.REFERENCE}, as numba is not installed"
            raise InvalidOption(kernel_choice.VARIABLE, asked, allowed)
        raise KernelsUnavailable("no shared object beside the kernels, and numba is not installed")
    try:
        return _CompiledHere(package, _compiled_code(package))
    except ImportError as error:  # as numba raises if numpy is too new for it
        raise KernelsUnavailable(f"numba cannot be imported: {error}") from error


class Library:
    """The compiled kernels of one package, loaded at their first use.

    Calls release the GIL unless they are short, so that threads can run in parallel.

    Args:
        package: The package with the kernels' sources, and their shared object if it was built.
    """

    def __init__(self, package: str) -> None:
        self._kernels = made_once(functools.partial(_load, package))

    def engine(self) -> str:
        """Return ``native`` (shared object) or ``numba`` (compiled here).

        Raises:
            KernelsUnavailable: There is neither.
        """
        return self._kernels().name

    def is_compiled(self) -> bool:
        """Return whether there are compiled kernels, and load them."""
        try:
            self._kernels()
        except KernelsUnavailable:
            return False
        return True

    def function(
        self, name: str, arguments: Sequence[Any] | None = None, *, is_short: bool = False
    ) -> Callable[..., int]:
        """Return an entry point.

        Args:
            name: The entry point.
            arguments: The ctypes of its arguments: ``c_int64``, or ``c_char_p`` for bytes. None:
                the caller converts them itself.
            is_short: Keep the GIL during the call, as releasing it takes longer, and do not convert
                the arguments, which costs half a microsecond: they must be a ``c_int64``, or bytes.

        Raises:
            KernelsUnavailable: There is no compiled kernel.
        """
        return self._kernels().function(name, arguments, is_short=is_short)
