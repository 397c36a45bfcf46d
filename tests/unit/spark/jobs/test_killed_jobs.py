"""Jobs in processes that are killed: the last run leaves the files of an undisturbed one."""

import time
from pathlib import Path

import pytest

import golden
import seeds
from spark.jobs_setting import files_below
from spark.killed_jobs import NAMES, VERSION, play, run

KILLS = 25 if golden.IS_SOAK else 2


def written(target: Path) -> dict[str, bytes]:
    """Return the files of a job, but for the record of what was followed."""
    return {path: data for path, data in files_below(target).items() if path != "dispatch.json"}


@pytest.mark.crash
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(8)
def test_a_killed_job_is_finished_by_the_next_run(name: str, tmp_path: Path) -> None:
    source, chance = golden.unpack(VERSION, "clean"), seeds.random("killed jobs", name)
    if name == "salvage":
        source = golden.unpack(VERSION, "torn/log-missing")
    if name == "restore":
        run("archive", str(source), str(tmp_path / "archive"))
        source = tmp_path / "archive"
    began = time.monotonic()
    assert play(name, source, tmp_path / "peace") == 0
    lasts_s = time.monotonic() - began
    target, expected = tmp_path / "killed", written(tmp_path / "peace")
    codes = [play(name, source, target, chance.uniform(0, lasts_s)) for _ in range(KILLS)]
    # A run may have ended before its kill, and some jobs refuse a target that is complete.
    is_complete = target.exists() and written(target) == expected
    assert play(name, source, target) == 0 or is_complete, codes
    assert written(target) == expected
