"""Frames from a template equal frames that are encoded individually."""

import pytest

from reput.format import command
from reput.format.command import Command
from reput.remoting.frame_template import FrameTemplate

FIELDS = ((b'"opaque":0,', b'"opaque":%d,'), (b'"n":"0"', b'"n":"%d"'))


def request(opaque: int, number: int) -> Command:
    fields = {"topic": '100 % "opaque":0,', "n": str(number), "m": "0"}
    return Command(11, opaque, ext_fields=fields, body=b"%d")


@pytest.mark.parametrize(("opaque", "number"), [(0, 0), (7, 1 << 60), ((1 << 31) - 1, 10)])
def test_a_filled_template_equals_the_encoded_request(opaque: int, number: int) -> None:
    template = FrameTemplate(request(0, 0), FIELDS)
    assert template.fill(opaque, number) == command.encode(request(opaque, number))


def test_texts_are_the_header_without_values() -> None:
    texts = FrameTemplate(request(0, 0), FIELDS).texts
    header = command.encode_head(request(7, 12))[8:]
    assert texts[0] + b"7" + texts[1] + b"12" + texts[2] == header


def test_a_missing_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="not found"):
        FrameTemplate(Command(11), FIELDS)
