"""Servers that the tests of a file share.

By default these have everything switched on; with ``REPUT_HOSTILE_SECONDS`` (``make hostile``)
there are servers with default settings as well. With ``REPUT_HOSTILE_ALONE`` each test has its own
servers, so that lasting effects are found at the end of the test that caused them.
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
    """Run both servers under watch; at the end stop, verify, kill and restart them."""
    folder = tmp_path_factory.mktemp(f"hostile-{request.param}")
    with Scene(folder, PROFILES[request.param]) as running_scene:
        yield running_scene
        running_scene.check_end()
