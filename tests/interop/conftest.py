"""The Java process of each version, once a session."""

from collections.abc import Iterator

import pytest

from interop import java_oracle
from interop.java_oracle import JavaUnavailable, Oracle


@pytest.fixture(
    scope="session",
    # One worker a version, so that there is one Java process a version.
    params=[
        pytest.param(version, marks=pytest.mark.xdist_group(f"rocketmq-{version}"))
        for version in java_oracle.versions()
    ],
)
def oracle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    version = request.param
    try:
        process = Oracle(version, tmp_path_factory.mktemp(f"rocketmq-{version}"))
    except JavaUnavailable as reason:
        if java_oracle.wants_all_versions():
            raise
        pytest.skip(str(reason))
    yield process
    process.close()
