"""``reput delay``: messages that wait for their delay to be over."""

from typing import TYPE_CHECKING

from reput.cli.connecting import masters
from reput.cli.options import CLUSTER, BrokerOption, ClusterOption, Session, command
from reput.cli.printing import Document, Table, View

if TYPE_CHECKING:
    from reput.client.admin import Admin


@command(*CLUSTER)
def delay_list(
    session: Session, cluster: ClusterOption = None, broker: BrokerOption = None
) -> View:
    """Show the delay levels that messages were sent with: how many wait, and were delivered."""

    async def work(admin: "Admin") -> list[Document]:
        found = []
        for one in masters(await admin.clusters(), cluster, broker):
            found += await _levels(admin, one)
        return found

    levels = session.ask(work)
    columns = "broker=broker_name #level delay #waiting=waiting_count #delivered=delivered_count"
    return View({"levels": levels}, Table(columns, levels))


async def _levels(admin: "Admin", broker: str) -> list[Document]:
    """Return the delay levels of a broker that have had messages: level n is queue n - 1.

    What is delivered a broker says as ``scheduleMessageOffset_n``, some only after the first.
    """
    from reput.client.core.route_cache import NoRoute
    from reput.format import names

    try:
        queues = await admin.topic_status(names.SCHEDULE_TOPIC)
    except NoRoute:
        return []
    status = await admin.broker_status(broker)
    delays = (await admin.broker_config(broker)).get("messageDelayLevel", "").split()
    found = []
    for queue, one in queues.items():
        if queue.broker_name != broker or not one.max_offset:
            continue
        level = queue.queue_id + 1
        reached, _, _ = status.get(f"scheduleMessageOffset_{level}", "").partition(",")
        delivered_count = max(int(reached or 0), one.min_offset)
        found.append(
            {
                "broker_name": broker,
                "level": level,
                "delay": delays[level - 1] if level <= len(delays) else None,
                "waiting_count": one.max_offset - delivered_count,
                "delivered_count": delivered_count,
            }
        )
    return found


COMMANDS = {"list": delay_list}
