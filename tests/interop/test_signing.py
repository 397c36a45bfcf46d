"""Signatures: the same as those of Java's clients."""

import base64
from random import Random

import pytest

import seeds
from fuzz.gate_world import SECRETS, GateWorld
from interop.java_oracle import ClusterOracle, Oracle, Word
from interop.recorded_oracle import oracle_fixture
from reput.broker.kernels import gate_words, hot
from reput.format import signing
from reput.format.command import Command
from reput.format.signing import Credentials, Signer
from reput.secret import Secret

pytestmark = pytest.mark.interop

LETTERS = 'aZ09_-%|.#"\\\x01\x02\n\té\uffee\ud800\U0001f600'
NAMES = ("topic", "Topic", "_key", "a", "b", "A", "Z", "consumerGroup", "é", "\uffee", "\U0001f600")


class SigningOracle(ClusterOracle):
    """Running ``SigningOracle.java``."""

    main_class = "SigningOracle"


java = oracle_fixture(SigningOracle)


def some_text(random: Random, most: int, least: int = 0) -> str:
    return "".join(random.choices(LETTERS, k=random.randint(least, most)))


def requests_of(random: Random, count: int) -> list[tuple[Credentials, Command]]:
    cases = []
    for _ in range(count):
        credentials = Credentials(
            some_text(random, 12, 1), Secret(some_text(random, 90, 1)), Secret(some_text(random, 4))
        )
        names = random.sample(NAMES, random.randint(0, len(NAMES)))
        fields = {name: some_text(random, 20) for name in names}
        cases.append((credentials, Command(10, ext_fields=fields, body=random.randbytes(40))))
    return cases


def words_of(credentials: Credentials, request: Command) -> list[Word]:
    fields = request.ext_fields or {}
    return [
        credentials.access_key,
        credentials.secret_key.reveal(),
        credentials.security_token.reveal(),
        request.code,
        request.body,
        *(text for pair in fields.items() for text in pair),
    ]


def test_fields_and_signature_of_a_request_are_those_of_java(java: Oracle) -> None:
    if java.version == "4.5.2":
        pytest.skip("no such case: 4.5.2 signs only declared fields of a header")
    cases = requests_of(seeds.random("signing", java.version), java.size(300, 60))
    theirs = java.ask("sign", [words_of(*case) for case in cases])
    ours = [Signer(credentials).sign(request).ext_fields for credentials, request in cases]
    assert ours == theirs


@pytest.mark.parametrize("command", ["frame", "binary-frame"])
def test_the_gate_verifies_frames_of_java(java: Oracle, command: str) -> None:
    if java.version == "4.5.2":
        pytest.skip("no such case: 4.5.2 signs only declared fields of a header")
    if not hot.is_compiled:
        pytest.skip("no compiled kernels here")
    random = seeds.random("signing", java.version)
    cases = []
    for _ in range(java.size(200, 60)):
        names = [name for name in random.sample(NAMES, len(NAMES)) if name.isascii()]
        fields = {name: some_text(random, 20).replace("\ud800", "") for name in names}
        # An empty value is no field in a binary header, and a signed one in Java.
        request = Command(310, ext_fields=fields, body=random.randbytes(random.randrange(1, 200)))
        cases.append((Credentials("rocketmq2", Secret(SECRETS["rocketmq2"])), request))
    frames = java.ask(command, [words_of(*case) for case in cases])
    data = b"".join(base64.b64decode(frame) for frame in frames)
    assert GateWorld(data).verdicts() == [gate_words.VERIFIED] * len(cases)
    changed = data[:-1] + bytes([data[-1] ^ 1])
    assert GateWorld(changed).verdicts()[-1] == gate_words.BAD


def test_the_signature_of_all_fields_is_that_of_java(java: Oracle) -> None:
    cases = requests_of(seeds.random("signing", java.version), java.size(300, 60))
    theirs = java.ask("content", [words_of(*case) for case in cases])
    ours = [
        Signer(credentials).signature(signing.content(request.ext_fields or {}, request.body))
        for credentials, request in cases
    ]
    assert ours == theirs
