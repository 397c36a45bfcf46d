"""Servers that the tests of a file share.

By default those with everything switched on; with ``REPUT_HOSTILE_SECONDS`` (``make hostile``)
those with default settings as well. With ``REPUT_HOSTILE_ALONE`` each test has its own servers, so
that what one leaves behind is seen at its own end, and not at the end of all.
"""

import os
from collections.abc import Iterator

import pytest

from hostile.servers import PROFILES, Scene

_PROFILES = list(PROFILES) if "REPUT_HOSTILE_SECONDS" in os.environ else ["everything"]


def _scope(fixture_name: str, config: pytest.Config) -> str:
    return "function" if "REPUT_HOSTILE_ALONE" in os.environ else "module"


@pytest.fixture(scope=_scope, params=_PROFILES)
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Both servers, watched; at the end they are stopped, verified, killed and started again."""
    folder = tmp_path_factory.mktemp(f"hostile-{request.param}")
    with Scene(folder, PROFILES[request.param]) as found:
        yield found
        found.check_end()
