"""One text of metrics from those of several brokers, in Prometheus' text format.

A name may have only one block of series in a text. So the blocks of all brokers are joined by name,
and each series gets the label ``node_id``, the broker's name, unless it has it already.
"""

from collections.abc import Mapping

LABEL = "node_id"
_HELP = b"# HELP "


def merge(texts: Mapping[str, bytes]) -> bytes:
    """Return the metrics of several brokers as one text.

    Args:
        texts: Name of the broker -> its text.
    """
    heads: dict[bytes, list[bytes]] = {}
    series: dict[bytes, list[bytes]] = {}
    for broker, text in texts.items():
        label = f'{LABEL}="{_escaped(broker)}"'.encode()
        name = b""
        is_new = False
        for line in text.splitlines():
            if line.startswith(_HELP):
                name = line[len(_HELP) :].partition(b" ")[0]
                is_new = name not in heads
                heads.setdefault(name, [])
                series.setdefault(name, [])
            if line.startswith(b"#"):
                if is_new:
                    heads[name].append(line)
            elif line:
                series.setdefault(name, []).append(_labelled(line, label))
    blocks = (b"\n".join((*heads.get(name, ()), *lines)) for name, lines in series.items())
    return b"\n".join(blocks) + b"\n"


def _labelled(line: bytes, label: bytes) -> bytes:
    """Return a series with a label more."""
    words = line.partition(b" ")[0]
    name, brace, rest = words.partition(b"{")
    if not brace:
        return line.replace(b" ", b"{" + label + b"} ", 1)
    if f'{LABEL}="'.encode() in line:
        return line
    rest = line[len(name) + 1 :]
    return name + b"{" + label + (b"" if rest.startswith(b"}") else b",") + rest


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
