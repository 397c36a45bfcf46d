"""Requests of clients, each as one function from values to a command.

Sends are encoded by ``SendRequests``, which encodes the common part of a producer's messages once.
"""

from collections.abc import Mapping

from reput.errors import InvalidOption
from reput.format import headers, sys_flag as flags
from reput.format.codes import RequestCode
from reput.format.command import IS_ONEWAY, Command


def make(code: RequestCode, header: headers.Header | None = None, body: bytes = b"") -> Command:
    """Return a request, with or without a header."""
    # Java refuses a request without fields even if no field is required.
    fields = headers.encode(header) if header is not None else {}
    return Command(int(code), ext_fields=fields, body=body)


def oneway(request: Command) -> Command:
    """Mark a request as one-way, and return it."""
    request.flag |= IS_ONEWAY
    return request


# --- what every client asks -------------------------------------------------------


def route(topic: str) -> Command:
    """Return 105: the route of a topic. The body of the reply is a ``TopicRouteData``."""
    header = headers.RouteHeader(topic=topic, accept_standard_json_only=True)
    return make(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)


def heartbeat(body: bytes) -> Command:
    """Return 34: a heartbeat, with an encoded ``HeartbeatData``."""
    return make(RequestCode.HEART_BEAT, body=body)


def unregister_client(
    client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> Command:
    """Return 35: a group leaves this client."""
    header = headers.UnregisterClientHeader(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    return make(RequestCode.UNREGISTER_CLIENT, header)


# --- administering ----------------------------------------------------------------


def property_lines(settings: Mapping[str, str]) -> bytes:
    """Return settings in the format of Java's ``Properties``."""
    lines = []
    for name, value in settings.items():
        if not name or any(character in name for character in "=: \t\r\n\\"):
            raise InvalidOption("settings", name, "names of settings")
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{name}={escaped}\n")
    return "".join(lines).encode()


# --- sending ----------------------------------------------------------------------


class SendRequests:
    """Encodes 310 and 320 for one producer; the common part of its messages is encoded once.

    Args:
        group: Producer group.
        template_topic: Topic whose settings an auto-created topic inherits.
        queue_count: Number of queues of an auto-created topic.
    """

    def __init__(self, group: str, template_topic: str, queue_count: int) -> None:
        self._group = group
        self._template_topic = template_topic
        self._queue_count = str(queue_count)

    def send(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        properties: str,
        body: bytes,
        born_ms: int,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: str = "0",
        max_reconsume_times: str | None = None,
        is_batch: bool = False,
    ) -> Command:
        """Return 310, or 320 for a batch body."""
        # The letters are those of headers.SendMessageHeader.
        fields = {
            "a": self._group,
            "b": topic,
            "c": self._template_topic,
            "d": self._queue_count,
            "e": str(queue_id),
            "f": str(sys_flag),
            "g": str(born_ms),
            "h": str(flag),
            "i": properties,
            "j": reconsume_times,
            "k": "false",
            "m": "true" if is_batch else "false",
            "n": broker_name,
        }
        if max_reconsume_times is not None:
            fields["l"] = max_reconsume_times
        code = _SEND_BATCH if is_batch else _SEND
        return Command(code, ext_fields=fields, body=body)


_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)

COMPRESSED_ZLIB = flags.COMPRESSED | flags.COMPRESSION_ZLIB
"""Compression flags of 4.9.4 and later; older clients look at the first bit only."""
