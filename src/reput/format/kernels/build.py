"""Compile the kernels ahead of time: numba source -> object code -> shared object.

Runs at build time (``hatch_build.py``), and at run time only where numba is installed and the
shared object is not. Every entry point becomes a C function ``int64 reput_NAME(int64, ...)``. The
code is for the architecture's base processor: what one machine built loads on another. But for
``fold``, which is asked for only where the processor can.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from reput.format.kernels import fold

SHARED_OBJECT = "_kernels.so"
_LINKERS = ("cc", "gcc", "clang")


def made_of() -> bytes:
    """Return what names a shared object's origin: the compiler, the processor, and every source.

    The sources of the whole package ``format`` are taken: numbers of it are compiled in.
    """
    import llvmlite
    import numba

    sources = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        sources.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    compiler = f"numba {numba.__version__}, llvmlite {llvmlite.__version__}"
    return f"reput kernels: {compiler}, {platform.machine()}, {sources.hexdigest()}".encode()


def entry_points() -> dict[str, tuple[Any, int]]:
    """Return each entry point's dispatcher and number of arguments."""
    from reput.format.kernels import (
        acks,
        again,
        again_decided,
        again_later,
        append,
        batch_parts,
        collect,
        columns,
        hashes,
        pull,
        send,
        take,
        walk,
    )

    return {
        name: (getattr(module, name), arguments)
        for module in (
            *(hashes, walk, columns, append, pull, send, collect, acks),
            *(again, again_later, again_decided, take, batch_parts),
        )
        for name, arguments in module.ENTRY_POINTS.items()
    }


def _thunk(name: str, symbol: str, arguments: int) -> str:
    """Return LLVM text of a C function around one in numba's calling convention.

    Numba returns a status and leaves the value behind a pointer; kernels raise nothing, so the
    status is always zero.
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


def module_text() -> tuple[str, list[str]]:
    """Compile every entry point; return thunks as LLVM text and the modules to link with it."""
    import llvmlite.binding as llvm
    from numba import types

    # Numba wants every symbol to be somewhere; this one is linked in, and not called before.
    llvm.add_symbol(fold.SYMBOL, 1)
    thunks: list[str] = []
    modules: list[str] = []
    for name, (dispatcher, arguments) in entry_points().items():
        signature = types.int64(*[types.int64] * arguments)
        dispatcher.compile(signature)
        compiled = dispatcher.overloads[signature.args]
        thunks.append(_thunk(name, compiled.fndesc.llvm_func_name, arguments))
        modules.append(compiled.library.get_llvm_str())
    return "".join(thunks), modules


def object_code() -> bytes:
    """Return position-independent object code of all entry points."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    origin = made_of()  # before compiling: who edits meanwhile, builds again
    thunks, modules = module_text()
    triple = llvm.get_process_triple()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(opt=3, reloc="pic", codemodel="default")
    constant = f'@reput_made_of = constant [{len(origin)} x i8] c"{origin.decode()}"\n'
    program = llvm.parse_assembly(
        f'target triple = "{triple}"\n{constant}{fold.text(triple)}{thunks}'
    )
    for text in modules:
        program.link_in(llvm.parse_assembly(text))
    for part in (*program.functions, *program.global_variables):
        if not part.is_declaration and not part.name.startswith("reput_"):
            part.visibility = "hidden"
    program.verify()
    return bytes(machine.emit_object(program))


def link(code: bytes, path: Path) -> bool:
    """Make a shared object of object code; False where this machine has no linker."""
    linker = next(filter(None, map(shutil.which, _LINKERS)), None)
    if linker is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.o")
        source.write_bytes(code)
        target = Path(folder, "kernels.so")
        command = [linker, "-shared", "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        # Replaced in one step: another process may be loading the old one.
        staged = path.with_suffix(f".{os.getpid()}.tmp")
        shutil.copyfile(target, staged)
        staged.replace(path)
    return True


def build(folder: str) -> str | None:
    """Write the shared object into ``folder``; return its path, or None without a linker.

    One that was made of the same sources by the same compiler is left as it is: compiling takes
    most of a minute.
    """
    path = Path(folder, SHARED_OBJECT)
    if path.is_file() and made_of() in path.read_bytes():
        return str(path)
    return str(path) if link(object_code(), path) else None
