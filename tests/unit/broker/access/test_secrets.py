"""No output of a broker has a password: log, errors, metrics, settings, and what it prints."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import world
from reput.broker.settings import config
from reput.cli import main as cli
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from reput.remoting import metrics_server
from reput.remoting.client import RemotingClient
from world import signer

MARK = "hidden-word"
"""Part of each secret here."""
KEYS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": f'{{"username":"root","password":"{MARK}-1"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"brokers","secretKey":"{MARK}-2"}}',
}


async def test_no_output_of_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    outputs: list[str] = []
    ann = {"username": "ann"}
    rules = {
        "policies": [
            {"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}
        ]
    }  # fmt: skip
    root = signer("root", f"{MARK}-1")
    access = config.load(KEYS).access
    outputs.append(repr(access))
    async with (
        world.broker(tmp_path, access=access, signer=root) as subject,
        RemotingClient(signer=signer("ann", f"{MARK}-4")) as of_ann,
        RemotingClient(signer=signer("ann", f"{MARK}-5")) as guesser,
    ):

        async def ask(
            code: int, fields: dict[str, str] | None, body: Any, client: RemotingClient
        ) -> Command:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            request = Command(code, ext_fields=dict(fields or {}), body=data)
            reply = await client.invoke(subject.address, request, world.TIMEOUT_MS)
            outputs.append(f"{reply!r} {reply.remark} {reply.ext_fields} {bytes(reply.body)!r}")
            return reply

        own = subject.client
        made = {"password": f"{MARK}-3"}
        assert (await ask(3001, ann, made, own)).code == 0
        assert (await ask(3002, ann, {"password": f"{MARK}-4"}, own)).code == 0
        assert (await ask(3006, {"subject": "User:ann"}, rules, own)).code == 0
        refused = [
            await ask(3001, ann, made, own),
            await ask(3001, {"username": "b"}, {**made, "userType": "King"}, own),
            await ask(3001, {"username": "b"}, {"password": f"{MARK}-6" * 1000}, own),
            await ask(3001, {"username": "b"}, f'{{"password":"{MARK}-7'.encode(), own),
            await ask(3001, {"username": "b"}, {"password": [f"{MARK}-7"]}, own),
            await ask(3002, {"username": "none"}, made, own),
            await ask(3002, ann, made, guesser),
            await ask(Code.UPDATE_BROKER_CONFIG, None, _line("brokerName", "b"), guesser),
            *[
                await ask(Code.UPDATE_BROKER_CONFIG, None, _line(key, text), own)
                for key, text in KEYS.items()
            ],
        ]
        assert all(reply.code for reply in refused)
        for client in (own, of_ann):
            assert (await ask(Code.GET_BROKER_CONFIG, None, b"", client)).code == 0
            assert (await ask(Code.GET_BROKER_RUNTIME_INFO, None, b"", client)).code == 0
        # A super user gets passwords (``reput access user copy``); others that may list do not.
        shown = await own.invoke(subject.address, Command(3004, ext_fields=ann), 20_000)
        assert f"{MARK}-4".encode() in shown.body
        assert b"ann" in (await ask(3004, ann, b"", of_ann)).body
        assert b"ann" in (await ask(3005, None, b"", of_ann)).body
        outputs.append(repr(subject.parts))
        families = await world.meter(subject.broker).measure()
        outputs.append(metrics_server.text_of(families).decode())
    assert "user 'ann'" in caplog.text
    outputs.append(caplog.text)
    for output in outputs:
        assert MARK not in output


@pytest.mark.parametrize("option", ["-p", "-m"])
def test_printed_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(b"".join(_line(key, text) for key, text in KEYS.items()))
    assert cli.run(["broker", "-c", str(conf), option]) == 0
    printed = capsys.readouterr()
    assert "brokerName=" in printed.out
    assert MARK not in printed.out + printed.err


@pytest.mark.parametrize("key", ["initAuthenticationUser", "innerClientAuthenticationCredentials"])
def test_a_refused_start(tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(_line("authenticationEnabled", "true") + _line(key, f"root:{MARK}"))
    assert cli.run(["broker", "-c", str(conf)]) != 0
    printed = capsys.readouterr()
    assert key in printed.err
    assert MARK not in printed.out + printed.err


def _line(key: str, text: str) -> bytes:
    return f"{key}={text}\n".encode()
