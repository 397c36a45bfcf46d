"""Frames of requests that differ in a few numbers only.

Encoding a request costs microseconds. A template is encoded once; a frame of it is one formatting
operation on bytes.
"""

from collections.abc import Sequence
from typing import Final

from reput.format import command as commands
from reput.format.command import LENGTH, MARK, Command
from reput.format.signing import Signer


class FrameTemplate:
    """A request whose JSON header has fields to fill in.

    Args:
        request: The request, with a placeholder as the value of each field to fill in.
        fields: Placeholder and format of each field, such as ``(b'"opaque":0,', b'"opaque":%d,')``,
            in the order of the header.
        signer: Signs each frame, which then costs as much as encoding it.

    Raises:
        ValueError: A placeholder is not in the header.
    """

    def __init__(
        self,
        request: Command,
        fields: Sequence[tuple[bytes, bytes]],
        signer: Signer | None = None,
    ) -> None:
        header = commands.encode_head(request)[LENGTH.size + MARK.size :]
        texts, rest, position = [], b"", 0
        for placeholder, form in fields:
            # Quotes within values are escaped, so a placeholder with quotes is found only once.
            place = header.index(placeholder, position)
            before, after = form.split(b"%d")
            texts.append(rest + header[position:place] + before)
            rest, position = after, place + len(placeholder)
        texts.append(rest + header[position:])
        self.texts: Final = tuple(texts)
        """Pieces of the header between the values."""
        self._header = b"%d".join(text.replace(b"%", b"%%") for text in texts)
        self._body = request.body
        self._signer = signer

    def fill(self, *values: int) -> bytes:
        """Return a frame with these values, in the order of the fields."""
        header = self._header % values
        size = len(header)
        length = MARK.size + size + len(self._body)
        frame = LENGTH.pack(length) + MARK.pack(size) + header + self._body
        if self._signer is None:
            return frame
        return commands.encode(self._signer.sign(commands.decode(frame[LENGTH.size :])))
