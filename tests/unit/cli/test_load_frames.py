"""Frames of the load generator, decoded one by one."""

import pytest

from cases import each
from reput.cli import load_frames as frames
from reput.format import batch, command, properties as props
from reput.format.command import Command
from reput.format.signing import Credentials, Signer, content
from reput.secret import Secret


def ring(queue_ids: list[int], rows: int, **options: object) -> frames.FrameRing:
    key_head = frames.key_head(3)
    requests = frames.ring_frames("Bench", queue_ids, b"body", key_head, **options)  # type: ignore[arg-type]
    return frames.FrameRing(requests, key_head, rows, options.get("signer"))  # type: ignore[arg-type]


def requests_of(frame_ring: frames.FrameRing, number: int, count: int) -> list[Command]:
    data = b"".join(bytes(piece) for piece in frame_ring.rows(number, count))
    requests = []
    while data:
        (length,) = command.LENGTH.unpack_from(data)
        requests.append(command.decode(data[4 : 4 + length]))
        data = data[4 + length :]
    return requests


def keys_of(request: Command) -> list[str]:
    fields = request.ext_fields or {}
    if fields["m"] == "true":
        texts = [inner.property_bytes for inner in batch.decode(request.body)]
    else:
        texts = [fields["i"].encode()]
    return [props.decode(text)[props.UNIQ_KEY] for text in texts]


@each("is_json", [True, False])
@each("queue_ids", [[0], [3, 1, 2], list(range(12)), [7, 1000]])
def test_requests_have_consecutive_opaques_distinct_keys_and_all_queues(
    queue_ids: list[int], is_json: bool
) -> None:
    frame_ring = ring(queue_ids, 100, is_json=is_json)
    step = frame_ring.row_count - frame_ring.patch_rows
    number, keys = 0, set()
    for count in (1, step, 5, step, 1, step):
        for request in requests_of(frame_ring, number, count):
            fields = request.ext_fields or {}
            assert (request.code, request.body) == (310, b"body")
            assert request.opaque == frames.OPAQUE_FIRST + number
            assert fields["b"] == "Bench"
            assert int(fields["e"]) == queue_ids[number % len(queue_ids)]
            keys.update(keys_of(request))
            number += 1
    assert len(keys) == number
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize("batch_count", [1, 3])
@pytest.mark.parametrize("is_json", [True, False])
def test_each_request_is_signed(is_json: bool, batch_count: int) -> None:
    signer = Signer(Credentials("AK", Secret("secret")))
    frame_ring = ring([3, 11], 10, is_json=is_json, batch_count=batch_count, signer=signer)
    number, signatures = 0, set()
    for count in (1, 4, 5, 4, 6):
        frame_ring.stamp(number, count, 1_700_000_000_000 + number)
        for request in requests_of(frame_ring, number, count):
            fields = request.ext_fields or {}
            assert fields["AccessKey"] == "AK"
            assert fields["Signature"] == signer.signature(content(fields, request.body))
            signatures.add(fields["Signature"])
        number += count
    assert len(signatures) == number


def test_each_message_of_a_batch_has_its_own_key() -> None:
    frame_ring = ring([0, 1], 10, batch_count=3)
    keys = [key for request in requests_of(frame_ring, 0, 4) for key in keys_of(request)]
    assert len(set(keys)) == 12


def test_a_stamp_is_the_born_time_of_the_requests_from_that_number_on() -> None:
    frame_ring = ring([0, 1, 2], 12)
    requests_of(frame_ring, 0, 4)
    frame_ring.stamp(4, 3, 1_700_000_000_123)
    stamped = requests_of(frame_ring, 4, 3)
    assert [(request.ext_fields or {})["g"] for request in stamped] == ["1700000000123"] * 3


def test_a_oneway_request_has_the_flag() -> None:
    (request,) = requests_of(ring([0], 4, is_oneway=True), 0, 1)
    assert request.is_oneway
