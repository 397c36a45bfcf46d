"""With access control, the fast path and the processors on signed requests: see ``broker_paths``.

Both brokers refuse and serve the same requests, with the same replies, records and counts.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings

import broker_pair
from broker_pair import Pair, Wire
from fuzz import broker_paths, request_streams as streams, signed_streams
from fuzz.broker_paths import Requests, in_turn, put_consumed, put_halves
from fuzz.signed_streams import CHANGE, CHANGE_COUNT, ROOT, signed
from reput.broker.access.access import Access
from reput.broker.access.plain_accounts import PlainAccounts
from reput.broker.access.plain_file import PlainFiles
from reput.broker.access.plain_rules import PlainRules
from reput.broker.access.user_rules import UserRules
from reput.broker.parts import Parts
from reput.broker.processors.table import PROCESSORS
from reput.broker.settings.access import AccessSettings
from reput.format import command as commands
from reput.format.command import Command
from reput.remoting.channel import Channel

EXAMPLES = settings.default.max_examples


@pytest.fixture(autouse=True)
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both brokers try queues and retries in the same order."""
    monkeypatch.setattr("reput.broker.pop.pops.random.random", lambda: 0.5)


def access_of(wire: Wire) -> Access:
    access = wire.broker.parts.access
    assert access is not None
    return access


def accounts(home: Path, number: int = -1) -> PlainAccounts:
    path = home / "conf/plain_acl.yml"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(signed_streams.accounts(number))
    return PlainFiles(str(home)).load(0)


@pytest.fixture(params=["1.0", "2.0"])
def paths(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    """Yield two brokers, whose rules change with requests of CHANGE."""
    is_plain = request.param == "1.0"
    plain = [accounts(tmp_path / "home", number) for number in range(CHANGE_COUNT)]

    def change(parts: Parts, channel: Channel, command: Command) -> Command:
        assert parts.access is not None
        rules = parts.access.rules
        number = int((command.ext_fields or {}).get("change", "7"))
        if isinstance(rules, UserRules):
            signed_streams.change_users(rules.users, rules.acls, number)
        else:
            assert isinstance(rules, PlainRules)
            rules.replace(plain[number])
        parts.access.end_revoked()
        return commands.reply(command)

    monkeypatch.setitem(PROCESSORS, CHANGE, change)  # type: ignore[misc]
    home = tmp_path / "home" if is_plain else None
    access = (
        AccessSettings()
        if is_plain
        else AccessSettings(authentication_enabled=True, authorization_enabled=True)
    )
    with broker_paths.open_paths(tmp_path, access=access, acl_home=home) as opened:
        for wire in opened.wires:
            rules = access_of(wire).rules
            if isinstance(rules, UserRules):
                signed_streams.set_users(rules.users, rules.acls)
        yield opened


def check_frames(paths: Pair, random: Random, frames: list[bytes]) -> None:
    """Send frames, sometimes damaged ones, from any address; compare counts of refusals, too."""
    data = b"".join(frames)
    if random.random() < 0.3:
        data = streams.with_damage(random, frames)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_pair, "BORN", random.choice(signed_streams.PEERS))
        paths.check(random.getrandbits(32), data)
    counts = [
        (refusals.unauthenticated_count, refusals.unauthorized_count, refusals.by_address)
        for refusals in (access_of(wire).refusals for wire in paths.wires)
    ]
    assert counts[0] == counts[1]


def changed(number: int) -> bytes:
    """Return a request that changes the rules."""
    return signed(Random(number), 0, commands.encode(signed_streams.change(number)), ROOT)


@pytest.mark.sampled(2)
def test_signed_requests(paths: Pair) -> None:
    has_changes = False

    def check(seed: int) -> None:
        nonlocal has_changes
        random = Random(seed)
        odd = random.choice([0, 0, 1])
        for _ in range(random.choice([0, 1])):
            put_halves(paths, random)
            put_consumed(paths, random)
        requests = Requests(paths, random, odd)
        frames = [signed(random, 0, streams.heartbeat(random), "everybody")]
        main = random.choice(["everybody", "everybody", None])
        for _ in range(random.choice([5, 10, 20])):
            is_question = random.random() < 0.08
            made = [signed_streams.some_question(random)] if is_question else requests.some()
            sender = main if random.random() < 0.8 else None
            frames += [signed(random, odd, frame, sender) for frame in made]
            if random.random() < 0.03:
                frames.append(changed(random.randrange(CHANGE_COUNT)))
                has_changes = True
        check_frames(paths, random, frames)
        paths.advance(random.choice([0, 0, 1, 500]))
        if has_changes and random.random() < 0.7:
            paths.check(0, changed(CHANGE_COUNT - 1))
            has_changes = False

    in_turn(2 * EXAMPLES, check)
    refused = access_of(paths.wires[0]).refusals
    counts = paths.counts
    few = "else this would test little"
    assert counts.sends > EXAMPLES, few
    assert min(counts.pulls, counts.acks) > EXAMPLES // 5, few
    assert min(refused.unauthenticated_count, refused.unauthorized_count) > EXAMPLES, few
