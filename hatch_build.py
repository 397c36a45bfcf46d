"""Build hook: compile the kernels ahead of time and put them into the wheel.

The kernels are Python source for numba. numba costs a third of a second and
over a hundred megabytes to import, and its cache does not work in a read-only
install, so the wheel carries the finished shared objects, and users need no
numba. Where nothing can be compiled (no numba, no linker) the wheel is a pure
one: slower, never wrong.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = "/src/reput/*/kernels/*.so"


class KernelBuildHook(BuildHookInterface[Any]):
    """Writes the shared objects beside their sources, and tags the wheel for them."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, then tell hatchling what was made.

        ``version`` is "standard" for a wheel and "editable" for ``pip install -e``,
        where the shared objects are used from the source folder.
        """
        if not self._compile() or version == "editable":
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(KERNELS)

    def _compile(self) -> list[str]:
        """Return the paths of the shared objects; none where nothing can be compiled."""
        try:
            import numba  # noqa: F401
        except ImportError as error:
            self.app.display_warning(
                f"reput: kernels not compiled, numba cannot be imported: {error}"
            )
            return []

        source = str(Path(self.root, "src"))
        sys.path.insert(0, source)
        os.environ["REPUT_KERNELS"] = "reference"  # importing the package compiles nothing
        try:
            from reput.format.kernels import build

            paths = build.build_all(source)
        finally:
            sys.path.remove(source)
        if not paths:
            self.app.display_warning("reput: kernels not compiled, no C linker (cc, gcc, clang)")
        return paths
