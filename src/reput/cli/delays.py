"""``reput delay``: messages that are pending on delay levels."""

from typing import TYPE_CHECKING

from reput.cli.options import MASTERS, Session, command
from reput.cli.printing import Document, Table, View

if TYPE_CHECKING:
    from reput.client.admin import Admin


@command(*MASTERS)
def delay_list(session: Session) -> View:
    """Show the delay levels in use: how many messages are pending, and how many delivered."""
    levels = session.ask_masters(levels_of)
    columns = "broker=broker_name #level delay #waiting=waiting_count #delivered=delivered_count"
    return View({"levels": levels}, Table(columns, levels))


async def levels_of(admin: "Admin", broker: str) -> list[Document]:
    """Return the delay levels of a broker that have had messages: level n is queue n - 1.

    The runtime info has the delivered offset as ``scheduleMessageOffset_n``; some brokers leave it
    out until the first delivery.
    """
    from reput.client.core.route_cache import NoRoute
    from reput.format import names

    try:
        queues = await admin.topic_status(names.SCHEDULE_TOPIC)
    except NoRoute:
        return []
    status = await admin.broker_status(broker)
    delays = (await admin.broker_config(broker)).get("messageDelayLevel", "").split()
    levels = []
    for queue, offsets in queues.items():
        if queue.broker_name != broker or not offsets.max_offset:
            continue
        level = queue.queue_id + 1
        reached, _, _ = status.get(f"scheduleMessageOffset_{level}", "").partition(",")
        delivered_count = max(int(reached or 0), offsets.min_offset)
        levels.append(
            {
                "broker_name": broker,
                "level": level,
                "delay": delays[level - 1] if level <= len(delays) else None,
                "waiting_count": offsets.max_offset - delivered_count,
                "delivered_count": delivered_count,
            }
        )
    return levels


COMMANDS = {"list": delay_list}
