"""Hostile frames of every request code; what servers must do: ``hostile.local_scene``.

``make hostile`` plays rounds of mixed requests against processes for ``REPUT_HOSTILE_SECONDS``.
"""

import json
import os
from pathlib import Path

import pytest

import seeds
from hostile import attack, requests, run
from hostile.local_scene import LocalScene, attacked
from hostile.servers import PROFILES, Scene
from hostile.wire import Connection, together
from reput.broker.processors.table import PROCESSORS as BROKER_PROCESSORS
from reput.format.codes import RequestCode as Code
from reput.namesrv.processors import PROCESSORS as NAMESRV_PROCESSORS

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.slow,
    pytest.mark.xdist_group("hostile codes"),
]

PROCESSORS = {"broker": BROKER_PROCESSORS, "namesrv": NAMESRV_PROCESSORS}
CODES = [(server, Code(code)) for server in PROCESSORS for code in PROCESSORS[server]]
SEED = seeds.today()
ROUNDS = 6
SECONDS = float(os.environ.get("REPUT_HOSTILE_SECONDS", "0"))

CONTENTS = {
    "broker": (
        Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.HEART_BEAT,
        Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.LITE_SUBSCRIPTION_CTL,
        Code.UPDATE_CONSUMER_OFFSET, Code.SET_MESSAGE_REQUEST_MODE, Code.POP_MESSAGE,
        Code.AUTH_CREATE_USER, Code.AUTH_CREATE_ACL,
    ),
    "namesrv": (Code.REGISTER_BROKER, Code.PUT_KV_CONFIG),
}  # fmt: skip
"""Server -> codes of the requests that give it something to read, change and delete."""


def fill(scene: LocalScene, server: str) -> None:
    """Give a server contents, by valid requests."""
    drafts = [draft.copy() for code in CONTENTS[server] for draft in requests.SERVERS[server][code]]
    with Connection(scene.port_of(server)) as connection:
        connection.write(together(drafts))
        opaques = {draft.opaque for draft in drafts}
        for reply in connection.frames():
            opaques.discard(reply.opaque)
            if not opaques:
                return
    raise AssertionError(f"no reply to {opaques}")


@pytest.mark.parametrize("server", PROCESSORS)
def test_every_code_has_valid_requests(server: str) -> None:
    assert set(requests.SERVERS[server]) == set(PROCESSORS[server])
    for code, drafts in requests.SERVERS[server].items():
        assert drafts
        assert {draft.code for draft in drafts} == {code}


@pytest.mark.parametrize(("server", "code"), CODES, ids=lambda value: str(value))
@pytest.mark.sampled(6)
@attacked()
def test_hostile_frames_of_a_code(scene: LocalScene, server: str, code: Code) -> attack.Played:
    fill(scene, server)
    scripts = attack.script(server, SEED, int(code), codes=[int(code)], count=20)
    for script in scripts:
        script.frames[:0] = [
            (draft.describe(), draft.encode()) for draft in requests.SERVERS[server][code]
        ]
    return scene.play(scene.port_of(server), scripts)


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("server", run.SERVERS)
@pytest.mark.sampled(3)
@attacked()
def test_mixed_rounds(scene: LocalScene, server: str, number: int) -> attack.Played:
    if server in CONTENTS:
        fill(scene, server)
    played = scene.play(scene.port_of(server), attack.script(server, SEED, number))
    assert server != "ha" or attack.serves_a_real_slave(scene.ha_port)
    return played


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
