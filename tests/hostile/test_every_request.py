"""Hostile frames of every request code, against real servers.

Whatever the frames contain, pings of other clients wait at most ``STALL_MAX_S`` beyond the noise of
the machine, memory stays below 300 MB, /health stays green, no acknowledged message is lost, no
traceback is logged; in the end the servers stop, the store is verified, and they start again after
a stop and after a kill.

``make hostile`` plays rounds of mixed requests for ``REPUT_HOSTILE_SECONDS``.
"""

import json
import os
from pathlib import Path

import pytest

import seeds
from hostile import attack, requests, run
from hostile.servers import PROFILES, Scene, Watch
from reput.broker.processors.table import PROCESSORS as BROKER_PROCESSORS
from reput.format.codes import RequestCode
from reput.namesrv.processors import PROCESSORS as NAMESRV_PROCESSORS

pytestmark = [pytest.mark.hostile, pytest.mark.slow, pytest.mark.xdist_group("hostile")]

PROCESSORS = {"broker": BROKER_PROCESSORS, "namesrv": NAMESRV_PROCESSORS}
CODES = [(server, RequestCode(code)) for server in PROCESSORS for code in PROCESSORS[server]]
SEED = seeds.today()
ROUNDS = 6
SECONDS = float(os.environ.get("REPUT_HOSTILE_SECONDS", "0"))


def check(watch: Watch, played: attack.Played, again: str) -> None:
    assert not watch.problems, run.report(watch, played, again)


@pytest.mark.parametrize("server", PROCESSORS)
def test_every_code_has_valid_requests(server: str) -> None:
    assert set(requests.SERVERS[server]) == set(PROCESSORS[server])
    for code, drafts in requests.SERVERS[server].items():
        assert drafts
        assert {draft.code for draft in drafts} == {code}


@pytest.mark.parametrize(("server", "code"), CODES, ids=lambda value: str(value))
@pytest.mark.sampled(4)
def test_hostile_frames_of_a_code(scene: Scene, server: str, code: RequestCode) -> None:
    scripts = attack.script(server, SEED, int(code), codes=[int(code)], count=20)
    for script in scripts:
        script.frames[:0] = [
            (draft.describe(), draft.encode()) for draft in requests.SERVERS[server][code]
        ]
    port = scene.port if server == "broker" else scene.namesrv_port
    with scene.watching(f"{server} {code.name}") as watch:
        played = attack.play(port, scripts, limit_s=0.6, quiet_s=0.1)
    assert played.frames
    node = f"tests/hostile/test_every_request.py -k 'a_code and {server}-{code}'"
    check(watch, played, f"python -m pytest {node}")


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("server", run.SERVERS)
@pytest.mark.sampled(3)
def test_mixed_rounds(
    scene: Scene, server: str, number: int, request: pytest.FixtureRequest
) -> None:
    watch, played = run.play_round(scene, server, SEED, number, limit_s=2.0)
    assert played.frames
    profile = request.node.callspec.params["scene"]
    check(watch, played, run.command_of(profile, server, SEED, number))


@pytest.mark.skipif(not SECONDS, reason="make hostile: takes REPUT_HOSTILE_SECONDS")
@pytest.mark.parametrize("profile", PROFILES)
def test_long_run(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("REPUT_HOSTILE_SEED", seeds.today()))
    with Scene(tmp_path / profile, PROFILES[profile]) as scene:
        with capsys.disabled():
            results = run.run(scene, profile, seed, seconds=SECONDS / len(PROFILES))
        traffic = scene.check_end()
    summary = {**results.summary(), "traffic": traffic}
    with capsys.disabled():
        print(json.dumps(summary))  # noqa: T201
    assert not results.failures, f"seed {seed}:\n" + "\n".join(results.failures[:5])
