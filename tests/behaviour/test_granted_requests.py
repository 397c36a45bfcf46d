"""With access control, requests have the same effect on the fast path and in the processors.

Two brokers get the same signed bytes, one of them without the fast path.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

import broker_pair
import seeds
from broker_pair import Pair, Wire, replies_in
from cases import case
from fuzz.gate_world import binary_header, frame_of, json_header
from reput.broker.access.acls import subject_of
from reput.broker.access.policy import Acl, Rule
from reput.broker.access.user_rules import UserRules
from reput.broker.access.users import User
from reput.broker.fastpath.gate import Gate
from reput.broker.kernels import gate_words as words
from reput.broker.parts import Parts
from reput.broker.processors.table import PROCESSORS
from reput.broker.settings.access import AccessSettings
from reput.format import command as commands
from reput.format.access import Action, Decision, UserStatus, parse_resource
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.command import LENGTH, Command, Serialization
from reput.format.signing import Credentials, Signer
from reput.secret import Secret
from request_corpus import IN_NARROW, ack, pop, pull, send, with_property

ROOT = Credentials("rocketmq", Secret("root-secret"))
ALICE = Credentials("alice", Secret("alice-secret"))
BOB = Credentials("bob", Secret("bob-secret"))
HANDLE = f"0 {broker_pair.NOW_MS} 60000 1 0 broker-a"
"""Handle of the messages of the first pop, without queue and offset."""


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    settings = AccessSettings(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=Secret('{"username":"rocketmq","password":"root-secret"}'),
    )
    with broker_pair.open_pair(tmp_path, access=settings) as pair:
        for wire in pair.wires:
            for user in (ALICE, BOB):
                rules_of(wire).users.put(User(user.access_key, user.secret_key))
            allow(wire, {"Topic:T": Action.PUB, "Group:readers": Action.SUB})
        # The store makes the rows of the queues.
        pair.feed(signed(send()) + signed(send(**IN_NARROW), ROOT))
        yield pair


def rules_of(wire: Wire) -> UserRules:
    access = wire.broker.parts.access
    assert access is not None
    assert isinstance(access.rules, UserRules)
    return access.rules


def allow(wire: Wire, actions: Mapping[str, Action], address: str = "192.0.2.0/24") -> None:
    """Give alice these rules, and no others."""
    rules = [
        Rule(parse_resource(text), frozenset({action, Action.SUB}), Decision.ALLOW, (address,))
        for text, action in actions.items()
    ]
    rules_of(wire).acls.put(subject_of("alice"), Acl(tuple(rules)))


def signed(frame: bytes, credentials: Credentials = ALICE) -> bytes:
    """Return a frame with a signature."""
    request = commands.decode(frame[LENGTH.size :])
    return commands.encode(Signer(credentials).sign(request))


@pytest.mark.parametrize("serialization", Serialization)
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE])
def test_granted_sends_take_the_fast_path(
    both: Pair, code: int, serialization: Serialization
) -> None:
    frames = [
        signed(send(b"%d" % number, code=code, serialization=serialization, opaque=number))
        for number in range(20)
    ]
    assert both.feed(b"".join(frames)) == 20
    assert both.feed(b"".join(frames)) == 20


def test_granted_pulls_take_the_fast_path(both: Pair) -> None:
    both.feed(b"".join(signed(send(b"%d" % number)) for number in range(20)))
    flags = int(PullFlag.HAS_SUBSCRIPTION)
    frames = [signed(pull(queue_offset=number, sys_flag=flags, opaque=number)) for number in (0, 5)]
    both.feed(frames[0])  # the store learns who reads
    assert both.feed(b"".join(frames)) == 2


def test_granted_pops_and_acks_take_the_fast_path(
    both: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.feed(b"".join(signed(send(b"%d" % number)) for number in range(20)))
    reader = both.with_kernel.broker.store.pop_reader
    popped = []
    pop_of_store = reader.pop

    def count(*arguments: Any, **more: Any) -> Any:
        popped.append(arguments)
        return pop_of_store(*arguments, **more)

    frame = signed(pop(consumer_group="readers", invisible_time=60_000, max_msg_nums=8))
    both.feed(frame)
    monkeypatch.setattr(reader, "pop", count)
    both.feed(frame)
    assert len(popped) == 1
    counts = both.with_kernel.broker.parts.fast_counts
    acks = [
        signed(ack(offset, consumer_group="readers", info=f"{HANDLE} 1 {offset}", opaque=offset))
        for offset in range(8)
    ]
    both.feed(acks[0])
    both.feed(b"".join(acks))
    assert counts.acks == 9
    forged = signed(ack(1, consumer_group="readers", info=f"{HANDLE} 1 1"), BOB)
    both.feed(forged + acks[2])
    assert counts.acks == 10


def test_unknown_users_take_as_long_as_others(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One signature is computed for each: the time does not show which users there are."""
    computed = []
    signature_of = Signer.signature

    def count(self: Signer, data: bytes) -> str:
        computed.append(data)
        return signature_of(self, data)

    disable(rules_of(both.without))
    frames = [signed(send(), Credentials(name, Secret("x"))) for name in ("nobody", "bob", "alice")]
    monkeypatch.setattr(Signer, "signature", count)
    for frame in frames:
        computed.clear()
        (reply,) = replies_in(both.without.feed(frame))
        assert reply.code == ResponseCode.NO_PERMISSION
        assert len(computed) == 1


REFUSED: dict[str, Callable[[], bytes]] = {
    "unsigned": send,
    "of no user": lambda: signed(send(), Credentials("nobody", Secret("x"))),
    "with another secret": lambda: signed(send(), Credentials("alice", Secret("bob-secret"))),
    "of a user without rules": lambda: signed(send(), BOB),
    "to another topic": lambda: signed(send(**IN_NARROW)),
    "to a light queue of another topic": lambda: signed(
        send(**with_property("INNER_MULTI_DISPATCH\1Narrow"))
    ),
    "to a group's retry topic": lambda: signed(send(topic="%RETRY%g", queue_id=0)),
    "of another group": lambda: signed(pull(consumer_group="others")),
    "of another topic": lambda: signed(pull(topic="Narrow")),
    "with another body": lambda: signed(send(b"a"))[:-1] + b"b",
}


def test_refused_requests_do_nothing(both: Pair) -> None:
    """They are between granted ones, which are served in their order."""
    good = signed(send())
    for name, make in REFUSED.items():
        with case(name):
            assert both.feed(good) == 1
            check_refused(both, refused := make())
            assert both.feed(good + refused + good) == 2


def check_refused(both: Pair, frame: bytes, remark: str | None = None) -> None:
    """Check that both brokers refuse a frame, and store nothing."""
    offset = both.store.max_physical_offset
    for wire in both.wires:
        (reply,) = replies_in(wire.feed(frame))
        assert reply.code == ResponseCode.NO_PERMISSION
        assert remark in (None, reply.remark)
        assert wire.broker.store.max_physical_offset == offset


@pytest.mark.parametrize("serialization", Serialization)
def test_a_topic_twice_is_refused(both: Pair, serialization: Serialization) -> None:
    """The signature does not say which value is meant."""
    good = signed(send(), ROOT) + signed(send(topic="Narrow"), ROOT)
    both.feed(good + good)
    make = binary_header if serialization is Serialization.ROCKETMQ else json_header
    for signed_value, other in (("T", "Narrow"), ("Narrow", "T")):
        request = commands.decode(send()[LENGTH.size :])
        request.ext_fields = {**(request.ext_fields or {}), "b": signed_value}
        pairs = list((Signer(ROOT).sign(request).ext_fields or {}).items())
        for repeated in ([("b", other), *pairs], [*pairs, ("b", other)]):
            with case(signed_value, repeated[0]):
                header = make(Random(1), request.code, 0, repeated)
                frame = frame_of(header, request.body, serialization)
                check_refused(both, frame, "check signature failed.")


def test_a_change_of_rules_counts_for_the_next_frame(
    both: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames of one read are judged together, and again after a change."""

    def change(parts: Parts, channel: Any, request: Command) -> Command:
        wire = next(wire for wire in both.wires if wire.broker.parts is parts)
        allow(wire, {"Topic:Narrow": Action.PUB})
        return commands.reply(request)

    monkeypatch.setitem(PROCESSORS, RequestCode.GET_BROKER_CONFIG, change)  # type: ignore[misc]
    frame = signed(send())
    request = Signer(ROOT).sign(Command(RequestCode.GET_BROKER_CONFIG, 1))
    assert both.feed(frame + frame) == 2
    assert both.feed(frame + commands.encode(request) + frame) == 1


def disable(rules: UserRules) -> None:
    rules.users.put(User("alice", ALICE.secret_key, status=UserStatus.DISABLE))


def set_password(rules: UserRules) -> None:
    rules.users.put(User("alice", Secret("another-secret")))


def delete(rules: UserRules) -> None:
    rules.users.delete("alice")


def deny(rules: UserRules) -> None:
    rule = Rule(parse_resource("Topic:T"), frozenset({Action.PUB}), Decision.DENY)
    rules.acls.put(subject_of("alice"), Acl((rule,)))


def deny_reading(rules: UserRules) -> None:
    rules.acls.put(subject_of("alice"), Acl())


@pytest.mark.parametrize("change", [disable, set_password, delete, deny])
def test_a_changed_user_loses_its_grants(both: Pair, change: Callable[[UserRules], None]) -> None:
    frame = signed(send())
    assert both.feed(frame) == 1
    for wire in both.wires:
        change(rules_of(wire))
        (reply,) = replies_in(wire.feed(frame))
        assert reply.code == ResponseCode.NO_PERMISSION


def test_grants_of_an_address_count_for_it_alone(both: Pair) -> None:
    """A rule may have source addresses."""
    frontend = both.with_kernel.broker.frontend
    assert frontend is not None
    frame = signed(send())
    assert both.feed(frame + frame) == 2
    gate = frontend._gate
    assert gate is not None
    memory = both.with_kernel.broker._buffer
    memory[: len(frame)] = frame
    address = both.with_kernel.channel.address
    assert gate.judge(address, 0, len(frame))[0][words.ROW.verdict] == words.GRANTED
    assert gate.judge("192.0.2.99", 0, len(frame))[0][words.ROW.verdict] == words.VERIFIED


def test_any_order_of_requests(both: Pair) -> None:
    random = seeds.random("granted requests")
    good = [signed(send(b"%d" % number, topic="T")) for number in range(3)]
    others = [make() for make in REFUSED.values()]
    for _ in range(15):
        frames = random.choices([*good, *good, *good, *others], k=12)
        data = b"".join(frames)
        cut = random.randrange(len(data))
        both.feed(data[:cut])
        both.feed(data[cut:])


@pytest.mark.parametrize("make", [lambda: signed(send(), BOB), send], ids=["refused", "unsigned"])
def test_frames_that_are_not_granted_are_judged_a_few_times(
    both: Pair, make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work for one read does not grow with the square of its frames."""
    frontend = both.with_kernel.broker.frontend
    assert frontend is not None
    gate = frontend._gate
    assert gate is not None
    judged = []
    judge = gate.judge

    def count(*arguments: Any) -> list[list[int]]:
        rows = judge(*arguments)
        judged.append(len(rows))
        return rows

    monkeypatch.setattr(gate, "judge", count)
    both.with_kernel.feed(make() * 200)
    assert 200 <= sum(judged) <= 1000


def test_full_tables_are_emptied(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput.broker.fastpath.gate._NAME_BYTES", 20)
    for _ in range(3):
        assert both.feed(signed(send()) + signed(send())) == 2
        assert both.feed(signed(send(), ROOT) + signed(send(**IN_NARROW), ROOT)) == 2


def test_an_error_of_the_gate_serves_nothing(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> list[list[int]]:
        raise ZeroDivisionError

    monkeypatch.setattr(Gate, "judge", fail)
    wire = both.with_kernel
    assert wire.feed(signed(send())) == b""
    assert wire.transport.is_closed
    assert wire.new_records() == []


def test_an_error_of_the_rules_serves_nothing(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of that request: it has a reply, and the connection stays."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    frame = signed(send())
    assert both.feed(frame * 2) == 2
    for wire in both.wires:
        rules_of(wire).users.put(User("carol", Secret("carol-secret")))  # grants are forgotten
    monkeypatch.setattr(UserRules, "authorize", fail)
    assert both.feed(frame * 2) == 0
    for wire in both.wires:
        (reply,) = replies_in(wire.feed(frame))
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert wire.new_records() == []


HIDDEN = b"bytes-of-another-connection"


def test_bytes_after_a_read_are_ignored(both: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """They are what another connection has sent: here, the rest of a granted request.

    Each frame is cut, and its length says that it is whole, or that more follows.
    """
    frames = [
        signed(send(b"x" * 20 + HIDDEN, serialization=serialization))
        for serialization in Serialization
    ]
    frames += [
        signed(pull(subscription=HIDDEN.decode())),
        signed(pop(exp=HIDDEN.decode(), consumer_group="readers")),
    ]
    for frame in frames:
        both.feed(frame)
    wire = both.with_kernel
    wire.new_records()
    caplog.clear()
    buffer = wire.broker._buffer
    for frame in frames:
        buffered = frame + HIDDEN * 100
        for cut in range(1, frame.index(HIDDEN), 3):
            for length in (len(frame), cut):
                both.runner.run(wire.connect())
                buffer[: len(buffered)] = buffered
                data = LENGTH.pack(length - LENGTH.size) + frame[LENGTH.size :]
                assert HIDDEN not in wire.feed(data[:cut])
                buffer[: len(buffered)] = buffered
                assert HIDDEN not in wire.feed(b"")
    assert wire.new_records() == []
    assert caplog.text
    assert HIDDEN.decode() not in caplog.text


@pytest.mark.parametrize("change", [disable, delete, deny_reading])
def test_held_requests_of_a_changed_user_end(
    both: Pair, change: Callable[[UserRules], None]
) -> None:
    """They get a refusal, and no message that comes later."""
    frames = [
        signed(pull(queue_id=3, queue_offset=1, sys_flag=6)),
        signed(pop(consumer_group="readers", queue_id=2, poll_time=60_000)),
    ]
    both.feed(signed(send(queue_id=3)))
    for frame in frames:
        both.feed(frame)
    later = signed(send(queue_id=3), ROOT) + signed(send(queue_id=2), ROOT)

    async def revoke(wire: Wire) -> list[Command]:
        access = wire.broker.parts.access
        assert access is not None
        change(rules_of(wire))
        access.end_revoked()
        return replies_in(wire.feed(later))

    for wire in both.wires:
        parts = wire.broker.parts
        assert (len(parts.held_pulls), len(parts.pops.held)) == (1, 1)
        replies = both.runner.run(revoke(wire))
        codes = [reply.code for reply in replies]
        assert codes == [ResponseCode.NO_PERMISSION] * 2 + [ResponseCode.SUCCESS] * 2
        assert not any(reply.body for reply in replies)
        assert (len(parts.held_pulls), len(parts.pops.held)) == (0, 0)
