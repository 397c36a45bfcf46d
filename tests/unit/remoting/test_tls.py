"""The session of TLS without I/O, against another one."""

import contextlib
import ssl

import pytest

from certificates import Authority
from reput.errors import TlsFailed
from reput.remoting import tls_settings
from reput.remoting.limits import TLS_HANDSHAKE_BYTES
from reput.remoting.tls import PIECE_BYTES, TlsSession
from reput.remoting.tls_settings import TlsSettings

TEXT = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    pair = Authority(tmp_path_factory.mktemp("tls")).issue("broker")
    context = tls_settings.server_context(
        TlsSettings(tls_server_cert_path=pair.certificate, tls_server_key_path=pair.key)
    )
    assert context is not None
    return context


def sessions(serving: ssl.SSLContext, **client: str) -> tuple[TlsSession, TlsSession]:
    asking = tls_settings.client_context(TlsSettings(**client))  # type: ignore[arg-type]
    return TlsSession(asking, is_server=False), TlsSession(serving, is_server=True)


def pass_on(sender: TlsSession, receiver: TlsSession) -> None:
    receiver.feed(sender.take_output())


def established(serving: ssl.SSLContext, **client: str) -> tuple[TlsSession, TlsSession]:
    asking, taken = sessions(serving, **client)
    while not all([asking.shake(), taken.shake()]):
        pass_on(asking, taken)
        pass_on(taken, asking)
    pass_on(taken, asking)
    return asking, taken


def read(session: TlsSession, room: int = 1 << 20) -> bytes:
    buffer = bytearray(room)
    return bytes(buffer[: session.decrypt_into(memoryview(buffer))])


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_every_byte_of_a_handshake_and_of_records_alone(
    serving: ssl.SSLContext, version: str
) -> None:
    asking, taken = sessions(serving, tls_protocols=version)
    to_server, to_client = b"", b""
    while not all([asking.shake(), taken.shake()]) or to_server or to_client:
        to_server += asking.take_output()
        to_client += taken.take_output()
        if to_server:
            taken.feed(to_server[:1])
            to_server = to_server[1:]
        if to_client:
            asking.feed(to_client[:1])
            to_client = to_client[1:]
    got = b""
    for byte in asking.encrypt(b"first") + asking.encrypt(b"second"):
        taken.feed(bytes([byte]))
        part = read(taken)
        assert part in (b"", b"first", b"second")
        got += part
    assert got == b"firstsecond"


def test_a_client_that_only_sends_has_nothing_to_read(serving: ssl.SSLContext) -> None:
    """Closing a socket with unread bytes resets the connection: what was sent may be lost."""
    asking, taken = sessions(serving, tls_protocols="TLSv1.3")
    while not asking.shake():
        pass_on(asking, taken)
        taken.shake()
        pass_on(taken, asking)
    pass_on(asking, taken)
    assert taken.shake()
    assert taken.take_output() == b""  # no tickets


def test_records_of_a_read_are_decrypted_at_once(serving: ssl.SSLContext) -> None:
    asking, taken = established(serving)
    taken.feed(b"".join(asking.encrypt(bytes([n]) * 100) for n in range(50)))
    assert read(taken) == b"".join(bytes([n]) * 100 for n in range(50))


def test_a_whole_record_is_one_call_without_an_exception(serving: ssl.SSLContext) -> None:
    # A call that finds nothing raises SSLWantReadError, which costs more than the decryption.
    asking, taken = established(serving)
    calls = []
    read_of_openssl = taken._object.read

    def read_counted(size: int, buffer: memoryview) -> object:
        calls.append(size)
        return read_of_openssl(size, buffer)

    taken._object.read = read_counted  # type: ignore[method-assign, assignment]
    for data in (asking.encrypt(b"a request"), asking.encrypt(b"another")):
        calls.clear()
        assert read(taken) == b""
        taken.feed(data)
        assert read(taken) in (b"a request", b"another")
        assert read(taken) == b""
        assert len(calls) == 1


def test_no_record_is_larger_than_a_piece(serving: ssl.SSLContext) -> None:
    asking, taken = established(serving)
    data = asking.encrypt(TEXT)
    position, sizes = 0, []
    while position < len(data):
        assert data[position] == 23, "application data"
        size = int.from_bytes(data[position + 3 : position + 5], "big")
        sizes.append(size)
        position += 5 + size
    assert len(sizes) == -(-len(TEXT) // PIECE_BYTES)
    taken.feed(data)
    assert read(taken) == TEXT


def test_plain_bytes_wait_where_there_is_no_room(serving: ssl.SSLContext) -> None:
    asking, taken = established(serving)
    taken.feed(asking.encrypt(TEXT))
    parts = []
    while part := read(taken, room=999):
        parts.append(part)
    assert b"".join(parts) == TEXT
    assert {len(part) for part in parts[:-1]} == {999}


def test_bytes_after_the_handshake_may_come_with_it(serving: ssl.SSLContext) -> None:
    asking, taken = sessions(serving)
    asking.shake()
    pass_on(asking, taken)
    taken.shake()
    pass_on(taken, asking)
    assert asking.shake()
    taken.feed(asking.take_output() + asking.encrypt(b"early"))
    assert taken.shake()
    assert read(taken) == b"early"


def test_the_end_is_reported(serving: ssl.SSLContext) -> None:
    asking, taken = established(serving)
    data = asking.encrypt(b"last")
    asking.end()
    taken.feed(data + asking.take_output())
    assert read(taken) == b"last"
    assert taken.has_ended
    assert taken.failure is None
    taken.end()
    pass_on(taken, asking)
    assert read(asking) == b""
    assert asking.has_ended


def test_a_changed_byte_is_a_failure_after_the_bytes_before_it(serving: ssl.SSLContext) -> None:
    asking, taken = established(serving)
    good, bad = asking.encrypt(b"good"), bytearray(asking.encrypt(b"bad"))
    bad[-1] ^= 1
    taken.feed(good + bad + asking.encrypt(b"after"))
    assert read(taken) == b"good"
    assert isinstance(taken.failure, TlsFailed)
    assert read(taken) == b""
    assert taken.take_output(), "an alert"
    with pytest.raises(TlsFailed):
        taken.encrypt(b"more")


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x00\x04abcd", b"\x16" + bytes(600), b"\x16\x03\x01\xff\xff" + b"x" * 1000],
    ids=["no hello", "zeros", "long record"],
)
def test_no_handshake(serving: ssl.SSLContext, data: bytes) -> None:
    _, taken = sessions(serving)
    taken.feed(data)
    with pytest.raises(TlsFailed):
        taken.shake()


def test_a_changed_hello_fails_in_the_documented_way(serving: ssl.SSLContext) -> None:
    asking, _ = sessions(serving)
    asking.shake()
    hello = asking.take_output()
    for position in range(1, len(hello)):
        changed = bytearray(hello)
        changed[position] ^= 0xFF
        _, taken = sessions(serving)
        taken.feed(changed)
        with contextlib.suppress(TlsFailed):
            assert not taken.shake()


def test_a_handshake_is_limited(serving: ssl.SSLContext) -> None:
    _, taken = sessions(serving)
    # Records of one hello that never ends.
    size = 16_000
    record = b"\x16\x03\x01" + size.to_bytes(2, "big")
    hello = b"\x01\x01\x80\0" + bytes(size - 4)
    fed = 0
    problem = ""
    while not problem:
        taken.feed(record + (hello if not fed else bytes(size)))
        fed += size + 5
        try:
            taken.shake()
        except TlsFailed as error:
            problem = str(error)
    assert "tls_handshake_bytes" in problem
    assert fed <= TLS_HANDSHAKE_BYTES.maximum + size + 5
