"""Costly calls of 5.x clients, to a broker and to a proxy before it.

What the servers must do: ``hostile.local_scene``. With access control, clients without a signature
cause no more work than a refusal. ``make hostile`` plays rounds of mixed conversations against
processes for ``REPUT_HOSTILE_SECONDS``.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seeds
from hostile import attack, call_run, calls
from hostile.call_servers import PROFILES, SIGNATURE, CallScene
from hostile.local_scene import LocalScene, attacked
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS

pytestmark = [pytest.mark.hostile, pytest.mark.slow, pytest.mark.xdist_group("hostile calls")]

SEED = seeds.today()
"""Seed of the short run: the same conversations each time."""
ROUNDS = 6
SECONDS = float(os.environ.get("REPUT_HOSTILE_SECONDS", "0"))
GROWTH_MAX = 96 << 20


def many(count: int, method: str, request: dict[str, Any] | bytes) -> calls.Labelled:
    """Return the same call many times."""
    if not isinstance(request, bytes):
        request = protobuf.encode(METHODS[method].request, request)
    return calls.many_calls(count, method, calls.prefixed(request))


def bombs(count: int, size: int, method: str = "SendMessage") -> calls.Labelled:
    """Return calls whose messages inflate to zeros."""
    content = calls.prefixed(calls.bomb(size), 1)
    return calls.many_calls(count, method, content, encoding=b"gzip")


def padded(count: int, size: int) -> calls.Labelled:
    """Return messages of a stream that inflate, and are commands without a content."""
    content = calls.prefixed(calls.packed(calls.padding(size)), 1)
    return calls.stream_of(count, content, encoding=b"gzip")


def begun(count: int, value: bytes) -> calls.Labelled:
    """Return calls that do not end, with three headers that are entries of the table."""
    conversation = calls.Conversation(*((name, value) for name in (b"x-a", b"x-b", b"x-c")))
    fields = conversation.fields("Heartbeat")
    content = b"".join(conversation.begin(fields) for _ in range(count))
    return f"{count} begun calls", conversation.hello() + content


def commands(count: int, command: dict[str, Any]) -> calls.Labelled:
    """Return the same command many times in a stream."""
    content = protobuf.encode(METHODS["Telemetry"].request, command)
    return calls.stream_of(count, calls.prefixed(content))


FOUND: dict[str, Callable[[], calls.Labelled]] = {
    "30 bombs": lambda: bombs(30, calls.BOMB_BYTES),
    "300 bombs": lambda: bombs(300, calls.BOMB_BYTES),
    "100 bombs that are too large": lambda: bombs(100, 2 * calls.BOMB_BYTES),
    "40 long attempts": lambda: many(40, "ReceiveMessage", calls.receive(attempt_id="x" * 500_000)),
    "300 bombs for receives": lambda: bombs(300, calls.BOMB_BYTES, "ReceiveMessage"),
    "2000 small bombs": lambda: bombs(2_000, 100_000),
    "acks of many entries": lambda: many(100, "AckMessage", calls.acks(7_000)),
    "acks of many handles": lambda: many(100, "AckMessage", calls.acks(600, calls.HANDLES[0])),
    "many properties": lambda: many(300, "SendMessage", calls.sends(1, 25_000)),
    "many messages": lambda: many(50, "SendMessage", calls.sends(4_000)),
    "many fields": lambda: many(300, "Heartbeat", calls.heartbeat(14_000)),
    "begun calls with large headers": lambda: begun(20_000, b"y" * 3_900),
    "many cheap calls": lambda: many(10_000, "Heartbeat", b""),
    "many lite topics": lambda: many(100, "SyncLiteSubscription", calls.lite(7_000)),
    "many tags": lambda: many(300, "ReceiveMessage", calls.receive("a||" * 1_900 + "a")),
    "many terms": lambda: many(300, "ReceiveMessage", calls.receive("a=1 OR " * 150 + "a=1", 2)),
    "many unknown fields": lambda: many(100, "QueryRoute", calls.unknown_fields(29_000)),
    "padded commands": lambda: padded(300, calls.BOMB_BYTES - 100),
    "many subscriptions": lambda: commands(50, calls.settings(7_000)),
    "many topics": lambda: commands(50, calls.settings(0, topics=7_000)),
    "topics that are kept": lambda: commands(300, calls.settings(0, topics=900)),
    "stacks": lambda: commands(20, calls.trace(4 << 20)),
}
"""Conversations that once held a server, or look as if they could."""


@pytest.mark.parametrize("server", call_run.SERVERS)
@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.sampled(6)
@attacked(growth_max=GROWTH_MAX, has_calls=True)
def test_costly_conversation(scene: LocalScene, server: str, kind: str) -> attack.Played:
    script = attack.Script(attack.PIPELINED, [FOUND[kind]()])
    return scene.play(scene.ports[server], [script])


@pytest.mark.parametrize("server", call_run.SERVERS)
@pytest.mark.parametrize("kind", sorted(calls.header_floods(calls.Conversation())))
@pytest.mark.sampled(4)
@attacked(growth_max=GROWTH_MAX, has_calls=True)
def test_costly_header_blocks(scene: LocalScene, server: str, kind: str) -> attack.Played:
    script = attack.Script(attack.PIPELINED, [(kind, calls.blocks(300, kind))])
    return scene.play(scene.ports[server], [script])


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("server", call_run.SERVERS)
@pytest.mark.sampled(3)
@attacked(growth_max=GROWTH_MAX, has_calls=True)
def test_mixed_conversations(scene: LocalScene, server: str, number: int) -> attack.Played:
    scripts = calls.script(SEED, number, SIGNATURE if scene.is_guarded else None)
    return scene.play(scene.ports[server], scripts)


@pytest.mark.skipif(not SECONDS, reason="make hostile: takes REPUT_HOSTILE_SECONDS")
@pytest.mark.parametrize("profile", PROFILES)
def test_long_run_of_conversations(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("REPUT_HOSTILE_SEED", seeds.today()))
    with CallScene(tmp_path / profile, PROFILES[profile]) as scene:
        with capsys.disabled():
            results = call_run.run(scene, profile, seed, seconds=SECONDS / len(PROFILES))
        traffic = scene.check_end()
    summary = {**results.summary(), "traffic": traffic}
    with capsys.disabled():
        print(json.dumps(summary))  # noqa: T201
    assert not results.failures, f"seed {seed}:\n" + "\n".join(results.failures[:5])
