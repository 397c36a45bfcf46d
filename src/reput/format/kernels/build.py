"""Compilation of kernels ahead of time: numba source -> object code -> shared object.

It runs at build time (``hatch_build.py``), and at run time only where numba is installed and the
shared object is not. Each package of kernels has its own shared object. Every entry point becomes a
C function ``int64 reput_NAME(int64, ...)``. The code is for the architecture's base processor, so a
shared object runs on other machines too; only ``crc_fold`` and ``sha1_blocks`` have functions that
need more, and are called only where the processor has it.
"""

import gc
import hashlib
import importlib
import importlib.util
import multiprocessing
import os
import pkgutil
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from reput.format.kernels import crc_fold, sha1_blocks
from reput.format.kernels.layout import SHARED_OBJECT

_LINKERS = ("cc", "gcc", "clang")
_LARGE = ("receive", "append", "batch_records", "scan_requests", "acks", "pop_batch", "dispatch")
"""Entry points that take half of the time and share functions; one process compiles them."""
_SHARED = ("reput.format", "reput.format.kernels")
"""Packages whose functions and constants are compiled into the kernels of every package."""
_SHARED_WITH = {
    "reput.broker.kernels": ("reput.store.kernels",),
    "reput.grpc.kernels": ("reput.grpc.wire",),
}
"""Further packages whose functions and constants are compiled into the kernels of a package."""


def sources(package: str) -> dict[str, bytes]:
    """Return the source of each module of a package by its full name, without subpackages."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    # The folder stays a text: Spark's zips are named ./NAME, and found by that name only.
    (folder,) = spec.submodule_search_locations or [""]
    modules = [module.name for module in pkgutil.iter_modules([folder]) if not module.ispkg]
    names = sorted({*modules} - {Path(SHARED_OBJECT).stem})
    read = spec.loader.get_data  # type: ignore[union-attr]
    return {f"{package}.{name}": read(f"{folder}/{name}.py") for name in names}


def compiled_in(package: str) -> dict[str, bytes]:
    """Return the sources whose functions and constants may be compiled into a package's kernels."""
    parts = (*_SHARED, *_SHARED_WITH.get(package, ()), package)
    return {name: source for part in parts for name, source in sources(part).items()}


def made_of(package: str) -> bytes:
    """Return a text that identifies the compiler, the processor, and every source."""
    import llvmlite
    import numba

    digest = hashlib.sha256()
    for name, source in compiled_in(package).items():
        digest.update(f"{name} {len(source)}\n".encode() + source)
    compiler = f"numba {numba.__version__}, llvmlite {llvmlite.__version__}"
    return f"reput kernels: {compiler}, {platform.machine()}, {digest.hexdigest()}".encode()


def entry_points(package: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the dispatcher and the arguments of each entry point of a package.

    A module with ``ENTRY_POINTS`` has kernels; nothing else lists them. An argument is ``int`` or
    the layout of the row whose address it is (``rows``).
    """
    modules = [
        importlib.import_module(name)
        for name, source in sources(package).items()
        if b"\nENTRY_POINTS = " in source
    ]
    return {
        name: (getattr(module, name), arguments)
        for module in modules
        for name, arguments in module.ENTRY_POINTS.items()
    }


def _thunk(name: str, symbol: str, arguments: int) -> str:
    """Return LLVM text of a C function around one in numba's calling convention.

    Numba returns a status, and the value through a pointer; kernels raise nothing, so the status is
    always zero.
    """
    parameters = ", ".join(f"i64 %a{i}" for i in range(arguments))
    prototype = ", ".join(["ptr", "ptr"] + ["i64"] * arguments)
    return f"""
declare i32 @"{symbol}"({prototype})
define i64 @reput_{name}({parameters}) {{
  %value = alloca i64
  %error = alloca ptr
  %status = call i32 @"{symbol}"({", ".join(["ptr %value", "ptr %error", parameters])})
  %result = load i64, ptr %value
  ret i64 %result
}}
"""


def _optimize(program: Any, machine: Any) -> None:
    """Optimize a whole module, with the options that numba has by default."""
    import llvmlite.binding as llvm

    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(program, builder)


def _compiled(package: str, names: Iterable[str]) -> tuple[str, list[str]]:
    """Compile entry points; return thunks as LLVM text and the modules to link with it."""
    import llvmlite.binding as llvm
    from numba import types

    from reput.format.kernels.row_types import argument_type

    # Numba requires an address for every symbol; these are linked in, and not called before.
    for symbol in (crc_fold.SYMBOL, sha1_blocks.SYMBOL, sha1_blocks.SYMBOL_SHA):
        llvm.add_symbol(symbol, 1)
    thunks: list[str] = []
    modules: list[str] = []
    every = entry_points(package)
    for name in names:
        dispatcher, arguments = every[name]
        signature = types.int64(*map(argument_type, arguments))
        dispatcher.compile(signature)
        compiled = dispatcher.overloads[signature.args]
        thunks.append(_thunk(name, compiled.fndesc.llvm_func_name, len(arguments)))
        modules.append(compiled.library.get_llvm_str())
    return "".join(thunks), modules


def object_code(package: str, names: Iterable[str] = (), origin: bytes = b"") -> bytes:
    """Return position-independent object code of entry points.

    Args:
        package: Name of the package.
        names: Names of the entry points; by default all of the package.
        origin: What ``made_of`` returned before it all; by default it is called.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Before compiling: after an edit meanwhile, the next build compiles again.
    origin = origin or made_of(package)
    names = list(names or entry_points(package))
    thunks, modules = _compiled(package, names)
    triple = llvm.get_process_triple()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(opt=3, reloc="pic", codemodel="default")
    # Weak: each object of a package has the constant.
    constant = f'@reput_made_of = weak constant [{len(origin)} x i8] c"{origin.decode()}"\n'
    instructions = crc_fold.text(triple) + sha1_blocks.text(triple)
    program = llvm.parse_assembly(f'target triple = "{triple}"\n{constant}{instructions}{thunks}')
    for text in modules:
        program.link_in(llvm.parse_assembly(text))
    # Numba numbers the functions of a process: in two objects, one name may mean two functions.
    visible = {"reput_made_of", *(f"reput_{name}" for name in names)}
    for part in (*program.functions, *program.global_variables):
        if not part.is_declaration and part.name not in visible:
            part.linkage = "internal"
    program.verify()
    _optimize(program, machine)
    return bytes(machine.emit_object(program))


def link(codes: Sequence[bytes], path: Path) -> bool:
    """Make a shared object of object codes; return False if this machine has no linker."""
    linker = next(filter(None, map(shutil.which, _LINKERS)), None)
    if linker is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        sources = [Path(folder, f"kernels-{number}.o") for number in range(len(codes))]
        for source, code in zip(sources, codes, strict=True):
            source.write_bytes(code)
        target = Path(folder, "kernels.so")
        command = [linker, "-shared", "-o", str(target), *map(str, sources)]
        subprocess.run(command, check=True, capture_output=True)
        # Replaced atomically: another process may be loading the old one.
        staged = path.with_suffix(f".{os.getpid()}.tmp")
        shutil.copyfile(target, staged)
        staged.replace(path)
    return True


def _prepare_process() -> None:
    """Make a process for compiling faster, before it imports numba."""
    # Numba optimizes a function again in each one that calls it; ``object_code`` does it once.
    os.environ["NUMBA_OPT"] = "0"
    gc.disable()  # A twelfth of the time, for 100 MB of memory.


def build_all(source_folder: str) -> list[str]:
    """Write the shared object of every ``kernels`` package below ``reput``; return their paths.

    One made of the same sources by the same compiler is left alone: compiling all takes 35 s of
    CPU, which several processes share. The list is empty without a linker.
    """
    paths = {
        f"reput.{folder.parent.name}.kernels": folder / SHARED_OBJECT
        for folder in sorted(Path(source_folder, "reput").glob("*/kernels"))
    }
    origins = {package: made_of(package) for package in paths}
    parts = [
        (package, [name for name in entry_points(package) if (name in _LARGE) == is_large])
        for is_large in (True, False)
        for package, path in paths.items()
        if not path.is_file() or origins[package] not in path.read_bytes()
    ]
    parts = [(package, names) for package, names in parts if names]
    # Not forked, which is unsafe on macOS: each process imports the compiler anyway.
    context = multiprocessing.get_context("spawn")
    count = min(os.cpu_count() or 1, len(parts) or 1)
    with ProcessPoolExecutor(count, context, initializer=_prepare_process) as pool:
        tasks = [
            (package, pool.submit(object_code, package, names, origins[package]))
            for package, names in parts
        ]
    codes: dict[str, list[bytes]] = {}
    for package, task in tasks:
        codes.setdefault(package, []).append(task.result())
    is_linked = all(link(each, paths[package]) for package, each in codes.items())
    return [str(path) for path in paths.values()] if is_linked else []
