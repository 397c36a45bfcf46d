"""The kernel that verifies signatures, compared with the codecs and ``hmac`` of Python."""

import itertools
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given

import seeds
from cases import case
from fuzz.gate_world import (
    CODES,
    SECRETS,
    GateWorld,
    Grant,
    binary_header,
    check_gate,
    expected_verdict,
    frame_of,
    json_header,
    meaning_of,
    odd_frame,
    signature_of,
    signed_request,
    some_frame,
)
from fuzz.kernel_worlds import IS_SOAK, SEEDS
from reput.broker.kernels import gate_words as words, native
from reput.format import command as commands, signing
from reput.format.command import LENGTH, MARK, Command, Serialization

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

SEND = {"a": "g", "b": "Orders", "g": "1700000000000", "i": 'UNIQ_KEY\x010A\x02k\x01"\\\n\x02'}
GRANTS = (
    Grant("rocketmq2", 310, "Orders", ""),
    Grant("rocketmq2", 10, "Orders", ""),
    Grant("rocketmq2", 11, "Orders", "g"),
)


@given(SEEDS)
def test_verdicts_are_those_of_python(seed: int) -> None:
    check_gate(seed)


@pytest.mark.parametrize("has_sha", [False, True])
def test_frames_of_clients_are_read(has_sha: bool) -> None:
    """None of these is left to Python."""
    random = seeds.random("gate", 1)
    frames = []
    while len(frames) < 200:
        frame = some_frame(random)
        request = meaning_of(frame[4:])
        assert request is not None
        if len(request[1] or {}) <= words.FIELDS_MAX and "f63" not in (request[1] or {}):
            frames.append(frame)
    verdicts = GateWorld(b"".join(frames), has_sha=has_sha).verdicts()
    assert verdicts == [expected_verdict(frame[4:]) for frame in frames]
    assert set(verdicts) == {words.UNSIGNED, words.UNKNOWN, words.BAD, words.VERIFIED}


def test_frames_of_other_forms_are_left_to_python() -> None:
    random = seeds.random("gate", 2)
    for _ in range(300):
        frame = odd_frame(random)
        verdict = GateWorld(frame).verdicts()
        assert verdict in ([words.ODD], [expected_verdict(frame[4:])], []), frame


@pytest.mark.parametrize("name", ["\\", '"', "\n", "é", ""])
def test_a_name_that_is_not_plain_is_left_to_python(name: str) -> None:
    frame = signed_request(Command(310, ext_fields={"a": "T"})).replace(
        b'"a"', f'"{name}"'.encode()
    )
    grown = len(name.encode()) - 1
    head = LENGTH.pack(len(frame) - 4) + MARK.pack(int.from_bytes(frame[4:8]) + grown)
    assert GateWorld(head + frame[8:]).verdicts() == [words.ODD]


@pytest.mark.parametrize("count", [64, 65])
@pytest.mark.parametrize("serialization", Serialization)
def test_number_of_fields(count: int, serialization: Serialization) -> None:
    fields = {f"f{number}": str(number) for number in range(count - 2)}
    frame = signed_request(Command(310, ext_fields=fields, serialization=serialization))
    assert GateWorld(frame).verdicts() == [words.VERIFIED if count == 64 else words.ODD]


@pytest.mark.parametrize("make", [json_header, binary_header])
def test_a_field_twice_is_left_to_python(make: Callable[..., bytes]) -> None:
    for name, is_last in itertools.product(("b", "AccessKey", "Signature", "zz"), (False, True)):
        with case(name, is_last):
            check_twice(make, name, is_last=is_last)


def check_twice(make: Callable[..., bytes], name: str, *, is_last: bool) -> None:
    """Neither value is granted, whichever was signed, and also if both are equal."""
    random = seeds.random("gate", 4)
    fields = {**SEND, "zz": "1", "AccessKey": "rocketmq2"}
    grants = [Grant("rocketmq2", 310, topic, "") for topic in ("Orders", "Other")]
    for other in ("Other", fields.get(name, "1"), ""):
        for values in (fields, {**fields, name: other}):
            signature = signature_of("12345678", values, b"b")
            pairs = list({**fields, "Signature": signature}.items())
            once = frame_of(make(random, 310, 0, pairs), b"b", make is binary_header)
            if values == fields:
                assert GateWorld(once, grants).verdicts() == [words.GRANTED]
            pairs.insert(len(pairs) if is_last else 0, (name, other))
            twice = frame_of(make(random, 310, 0, pairs), b"b", make is binary_header)
            verdicts = GateWorld(twice, grants).verdicts()
            # An empty value of a binary header means that the field is absent.
            is_absent = make is binary_header and not other
            assert is_absent or verdicts == [words.ODD]
            assert commands.decode(twice[4:], finds_repeats=True).has_repeats != is_absent
            assert not commands.decode(once[4:], finds_repeats=True).has_repeats


def test_a_long_header_is_left_to_python() -> None:
    sizes = {words.HEADER_BYTES_MAX - 300: words.VERIFIED, words.HEADER_BYTES_MAX: words.ODD}
    for size, verdict in sizes.items():
        frame = signed_request(Command(310, ext_fields={"i": "x" * size}, body=b"y" * 1000))
        assert GateWorld(frame).verdicts() == [verdict]


@pytest.mark.parametrize("has_sha", [False, True])
def test_every_position_of_the_padding(has_sha: bool) -> None:
    body = bytes(range(256)) * 400
    for size in (*range(130), 4095, 4096, 100_000):
        frame = signed_request(Command(310, ext_fields=SEND, body=body[:size]))
        assert GateWorld(frame, has_sha=has_sha).verdicts() == [words.VERIFIED], size


@pytest.mark.parametrize("serialization", Serialization)
def test_a_cut_frame_has_no_verdict(serialization: Serialization) -> None:
    whole = signed_request(Command(11, ext_fields={"topic": "T"}, serialization=serialization))
    last = signed_request(Command(310, ext_fields=SEND, body=b"b", serialization=serialization))
    for size in range(len(last)):
        assert GateWorld(whole + last[:size]).verdicts() == [words.VERIFIED]


@pytest.mark.parametrize(
    ("grants", "verdict"),
    [
        (GRANTS, words.GRANTED),
        (GRANTS[1:], words.VERIFIED),
        ([Grant("AK", 310, "Orders", "")], words.VERIFIED),
        ([Grant("rocketmq2", 310, "Order", "")], words.VERIFIED),
        ([Grant("rocketmq2", 310, "Orders2", "")], words.VERIFIED),
        ([Grant("rocketmq2", 310, "", "Orders")], words.VERIFIED),
    ],
)
def test_a_grant_counts_for_what_it_names(grants: list[Grant], verdict: int) -> None:
    frame = signed_request(Command(310, ext_fields=SEND, body=b"b"))
    assert GateWorld(frame, grants).verdicts() == [verdict]


def test_a_grant_counts_for_one_address_and_epoch() -> None:
    frame = signed_request(Command(11, ext_fields={"topic": "Orders", "consumerGroup": "g"}))
    world = GateWorld(frame, GRANTS)
    assert world.verdicts() == [words.GRANTED]
    world.block.peer = 2
    assert world.verdicts() == [words.VERIFIED]
    world.block.peer = 1
    world.block.epoch += 1
    assert world.verdicts() == [words.UNKNOWN]


@pytest.mark.parametrize("fields", [{"topic": "Orders"}, {"consumerGroup": "g"}])
def test_a_pull_without_topic_or_group_is_not_granted(fields: dict[str, str]) -> None:
    frame = signed_request(Command(11, ext_fields=fields))
    assert GateWorld(frame, GRANTS).verdicts() == [words.VERIFIED]


def test_signatures_of_another_form_are_bad() -> None:
    fields = {**SEND, "AccessKey": "rocketmq2"}
    signature = signature_of("12345678", fields, b"b")
    others = [
        *(signature[:27], f"{signature}=", f"{signature[:-1]}A", f" {signature[:-1]}"),
        *(signature.rstrip("="), signature.lower(), signature.replace("=", "\x00"), "=" * 28),
    ]
    random = Random(0)
    for text in others:
        assert text != signature
        header = json_header(random, 310, 0, {**fields, "Signature": text}.items())
        assert GateWorld(frame_of(header, b"b"), GRANTS).verdicts() == [words.BAD]
    header = json_header(random, 310, 0, {**fields, "Signature": signature}.items())
    assert GateWorld(frame_of(header, b"b"), GRANTS).verdicts() == [words.GRANTED]


def test_the_tables_hold_no_more_than_they_find_in_bounded_time() -> None:
    world = GateWorld(b"")
    slots = [
        world._call("gate_grant", 1, 310, world._text(b"%05d" % number), 5, 0, 0)
        for number in range(200)
    ]
    used = [slot for slot in slots if slot >= 0]
    assert len(set(used)) == len(used) <= len(world.grants)
    assert -1 in slots


def signed_part(frame: bytes) -> tuple[bytes, Grant]:
    """Return the content of a granted frame that is signed, and what it is granted for."""
    request = meaning_of(frame[4:])
    assert request is not None
    code, fields, body = request
    assert fields is not None
    topic, group = (fields.get(name, "") for name in CODES[code])
    return signing.content(fields, body), Grant(fields["AccessKey"], code, topic, group)


def test_a_flipped_byte_grants_nothing() -> None:
    """A granted frame has the values, the body, the code, the topic and the group that were signed.

    The protocol signs neither the opaque nor the names of fields, but for their order.
    """
    random = seeds.random("gate", 3)
    flip_count = 10_000_000 if IS_SOAK else 20_000
    fields = {**SEND, "AccessKey": "rocketmq2"}
    pull = {"topic": "Orders", "consumerGroup": "g", "AccessKey": "rocketmq2"}
    body = bytes(range(100))
    secret = SECRETS["rocketmq2"]
    send = {**fields, "Signature": signature_of(secret, fields, body)}
    pull["Signature"] = signature_of(secret, pull, b"")
    frames = (
        frame_of(json_header(random, 310, 0, send.items()), body),
        frame_of(binary_header(random, 310, 0, send.items()), body, 1),
        frame_of(json_header(random, 11, 0, pull.items()), b""),
        frame_of(binary_header(random, 11, 0, pull.items()), b"", 1),
    )
    granted = 0
    for frame in frames:
        signed = signed_part(frame)
        world = GateWorld(frame, [signed[1]])
        assert world.verdicts() == [words.GRANTED]
        judge = native.plain_function("gate", [world.argument_kind], is_short=True)
        memory = world.buffer_memory()
        row, argument = world.first_row(), world.argument
        for _ in range(flip_count // len(frames)):
            position = random.randrange(len(frame))
            old = memory[position]
            memory[position] = old ^ random.randrange(1, 256)
            if judge(argument) and row.verdict == words.GRANTED:
                assert signed_part(bytes(memory)) == signed
                granted += 1
            memory[position] = old
        assert world.verdicts() == [words.GRANTED]
    assert granted
