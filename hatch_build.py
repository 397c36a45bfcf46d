"""Build hook: compile the kernels ahead of time and put them into the wheel.

The kernels are Python source for numba. numba costs a third of a second and
over a hundred megabytes to import, and its cache does not work in a read-only
install, so the wheel carries the finished shared object and numba stays at
home. Where nothing can be compiled (no numba, no linker) the wheel is a pure
one: slower, never wrong.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src", "reput", "format", "kernels")


class KernelBuildHook(BuildHookInterface[Any]):
    """Writes the shared object beside its source, and tags the wheel for it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, then tell hatchling what was made.

        ``version`` is "standard" for a wheel and "editable" for ``pip install -e``,
        where the shared object is used from the source folder.
        """
        if self._compile() is None or version == "editable":
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(f"/{KERNELS.as_posix()}/*.so")

    def _compile(self) -> str | None:
        """Return the path of the shared object, or None when there is none."""
        try:
            import numba  # noqa: F401
        except ImportError as error:
            self.app.display_warning(
                f"reput: kernels not compiled, numba cannot be imported: {error}"
            )
            return None

        source = str(Path(self.root, "src"))
        sys.path.insert(0, source)
        os.environ["REPUT_KERNELS"] = "twin"  # else importing the package compiles them as well
        try:
            from reput.format.kernels import build

            path = build.build(str(Path(self.root, KERNELS)))
        finally:
            sys.path.remove(source)
        if path is None:
            self.app.display_warning("reput: kernels not compiled, no C linker (cc, gcc, clang)")
        return path
