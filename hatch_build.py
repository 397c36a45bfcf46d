"""Build hook: compile the kernels ahead of time and put them into the wheel.

The kernels are Python source for numba. numba costs a third of a second and
over a hundred megabytes to import, and its cache does not work in a read-only
install, so the wheel carries the finished shared objects, and users need no
numba. Where nothing can be compiled (no numba, no linker) the wheel is a pure
one: slower, never wrong.

With ``REPUT_WHEEL=pure`` in the environment the wheel is a pure one for every
platform, built in seconds: clients use no kernels.
"""

import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = "/src/reput/*/kernels/*.so"
COMPILER = (
    "msgspec>=0.19",
    "numpy>=2.0",
    "numba~=0.68.1; platform_python_implementation == 'CPython' and python_version < '3.16'",
)
"""What compiles the kernels."""
GLIBC_MIN = (2, 17)
"""Version of manylinux2014; pip of each Python that reput supports knows its tag."""
_GLIBC = re.compile(rb"\bGLIBC_(\d+)\.(\d+)")
_MUSL = b"libc.musl-"


def is_pure() -> bool:
    """Return whether the environment asks for a wheel without kernels.

    Raises:
        ValueError: ``REPUT_WHEEL`` has a value that is not allowed.
    """
    kind = os.environ.get("REPUT_WHEEL", "")
    if kind not in ("", "pure"):
        raise ValueError(f"REPUT_WHEEL is {kind!r}; allowed: pure, or nothing")
    return kind == "pure"


def platform_tag(platform: str, shared_objects: Iterable[bytes]) -> str:
    """Return the platform tag of a wheel with shared objects.

    On Linux it is the manylinux tag of the newest glibc that they ask for: symbols have the
    version of glibc that introduced them. On musl, the platform's own tag stays.

    Args:
        platform: Platform of the build, as ``sysconfig.get_platform`` names it.
        shared_objects: Contents of the files.
    """
    tag = platform.replace("-", "_").replace(".", "_")
    system, _, machine = tag.partition("_")
    contents = list(shared_objects)
    if system != "linux" or any(_MUSL in content for content in contents):
        return tag
    needed = [
        (int(major), int(minor)) for content in contents for major, minor in _GLIBC.findall(content)
    ]
    major, minor = max([GLIBC_MIN, *needed])
    manylinux = f"manylinux_{major}_{minor}_{machine}"
    return f"{manylinux}.manylinux2014_{machine}" if (major, minor) == GLIBC_MIN else manylinux


class KernelBuildHook(BuildHookInterface[Any]):
    """Writes the shared objects beside their sources, and tags the wheel for them."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build needs besides hatchling."""
        return [] if is_pure() else list(COMPILER)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, then tell hatchling what was made.

        ``version`` is "standard" for a wheel and "editable" for ``pip install -e``,
        where the shared objects are used from the source folder.
        """
        if is_pure():
            return
        paths = self._compile()
        if not paths or version == "editable":
            return
        contents = (Path(path).read_bytes() for path in paths)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(sysconfig.get_platform(), contents)}"
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
