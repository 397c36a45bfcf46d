"""Names, ports, stores and cores of several brokers, from the settings of one.

Broker i of ``broker-a`` is ``broker-a-i``. Its ports are those of broker.conf + 10 i; its store is
the folder i of ``storePathRootDir``, or entry i of a list. There is its broker.conf, which is
kept: what has changed in the common broker.conf since the last start is changed there too,
and what was changed there at run time stays.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reput import config as config_files
from reput.broker.settings.config import FAST_PORT_DISTANCE, HA_PORT_DISTANCE, BrokerSettings
from reput.cli.server_texts import CannotServe
from reput.errors import CorruptRecord, InvalidOption
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.tables import config_tables

BROKERS_MAX = 64
PORT_STEP = 10
"""Difference between the ports of consecutive brokers."""
CONF = "broker.conf"
LAST_COMMON = "broker.conf.last"
"""The common settings of the last start, in the folder of a store."""
QUEUES_MANY = 16
"""Queues of a new topic on all brokers; of more there is a warning."""
_NAMES_SHOWN = 5
_PORT_MAX = 65535
_FOLDER_KEYS = ("storePathCommitLog", "readOnlyCommitLogStorePaths")


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """A broker of several, before its start."""

    name: str
    store: Path
    own: Mapping[str, str]
    """Settings that it has for itself, by key of broker.conf."""
    core: int | None
    """Core to which the broker is pinned; None if it is not pinned."""

    @property
    def conf(self) -> Path:
        """Path of its broker.conf."""
        return self.store / CONF


def members(
    settings: BrokerSettings,
    given: Mapping[str, str],
    count: int,
    *,
    stores: Sequence[str] = (),
    cores: Sequence[int] = (),
    option: str = "--count",
) -> list[BrokerPlan]:
    """Return the brokers of some common settings.

    Args:
        settings: The common settings.
        given: Keys and values of the common broker.conf.
        count: Number of brokers.
        stores: Their stores; by default folders of ``storePathRootDir``.
        cores: Cores to pin them to; none if there are fewer cores than brokers.
        option: Option of the count, for errors.

    Raises:
        InvalidOption: The number of brokers or of stores is not allowed, ports overlap, or
            all brokers would have the same log.
    """
    if not 0 < count <= BROKERS_MAX:
        raise InvalidOption(option, count, f"1 to {BROKERS_MAX}")
    root = settings.store.store_path_root_dir
    folders = [str(Path(folder).absolute()) for folder in stores]
    if folders and len(set(folders)) != count:
        raise InvalidOption("--stores", ",".join(stores), f"{count} different folders")
    folders = folders or [f"{root}/{number}" for number in range(count)]
    plan = [
        BrokerPlan(
            f"{settings.broker.broker_name}-{number}",
            Path(folder),
            {
                "brokerName": f"{settings.broker.broker_name}-{number}",
                "storePathRootDir": folder,
                **_folders_below(given, root, folder),
                **_ports(settings, number),
            },
            cores[number] if count <= len(cores) else None,
        )
        for number, folder in enumerate(folders)
    ]
    _check_ports(settings, plan, option)
    return plan


def _folders_below(given: Mapping[str, str], root: str, folder: str) -> dict[str, str]:
    """Return the settings of the log's folders, moved from one root to another.

    Raises:
        InvalidOption: They are not below the root: all brokers would have the same.
    """
    moved = {}
    for key in _FOLDER_KEYS:
        text = given.get(key, "")
        if not text:
            continue
        if not all(Path(part.strip()).is_relative_to(root) for part in text.split(",")):
            raise InvalidOption(key, text, f"folders below storePathRootDir ({root}), or none")
        moved[key] = text.replace(root, folder)
    return moved


def _ports(settings: BrokerSettings, number: int) -> dict[str, str]:
    """Return the ports that a broker has for itself."""
    ports = {
        "listenPort": settings.broker.listen_port,
        "grpcServerPort": settings.broker.grpc_server_port,
        "haListenPort": max(settings.store.ha_listen_port, 0),
    }
    own = {key: str(port + PORT_STEP * number) for key, port in ports.items() if port}
    return {"listenPort": "0", **own}


def _check_ports(settings: BrokerSettings, plan: Sequence[BrokerPlan], option: str) -> None:
    """Refuse ports that two servers would have, or that do not exist. Raises ``InvalidOption``."""
    owners: dict[int, str] = {}
    for port, owner in _used_ports(settings, plan):
        if port > _PORT_MAX:
            raise InvalidOption(option, len(plan), f"fewer: {owner} would be {port}")
        if port in owners:
            allowed = f"other ports: {port} would be {owners[port]}, and {owner}"
            raise InvalidOption(option, len(plan), allowed)
        if port:
            owners[port] = owner


def _used_ports(settings: BrokerSettings, plan: Sequence[BrokerPlan]) -> Iterator[tuple[int, str]]:
    broker = settings.broker
    yield broker.metrics_port, "metricsPort"
    if broker.exports_metrics:
        yield broker.metrics_prom_exporter_port, "metricsPromExporterPort"
    for member in plan:
        port = int(member.own["listenPort"])
        if port:
            yield port, f"listenPort of {member.name}"
            if broker.fast_port_enable:
                yield port - FAST_PORT_DISTANCE, f"the fast port of {member.name}"
            ha_port = int(member.own.get("haListenPort", port + HA_PORT_DISTANCE))
            yield ha_port, f"the port for slaves of {member.name}"
        yield int(member.own.get("grpcServerPort", 0)), f"grpcServerPort of {member.name}"


# --- files --------------------------------------------------------------------------------------


def check_stores(root: str, plan: Sequence[BrokerPlan]) -> None:
    """Refuse stores of other brokers.

    Raises:
        CannotServe: A folder has the store of one broker, or of one with another name.
    """
    if (Path(root) / paths.COMMIT_LOG).exists():
        first = plan[0]
        raise CannotServe(
            f"{root} is the store of one broker: let it run beside the others until it is drained, "
            f"or move everything in it to {first.store} while no broker runs (it then is "
            f"{first.name})"
        )
    for member in plan:
        if not member.conf.exists():
            continue
        name = config_files.read_properties(member.conf).get("brokerName")
        if name != member.name:
            raise CannotServe(
                f"{member.store} is the store of {name}, not of {member.name}: name the folders in "
                f"the order of the last start, or delete {member.conf} if it is to change its name"
            )


def write_confs(plan: Sequence[BrokerPlan], path: str | None, more: Mapping[str, str]) -> None:
    """Write the broker.conf of each broker.

    Args:
        plan: The brokers.
        path: The common broker.conf.
        more: Further settings for all brokers, by key.

    Raises:
        CannotServe: A file cannot be written.
    """
    source = "" if path is None else Path(path).read_text("latin-1")
    given = {} if path is None else config_files.read_properties(path)
    try:
        for member in plan:
            _write_conf(member, source, {**given, **more})
    except OSError as error:
        raise CannotServe(f"{error.filename}: {error.strerror}") from None


def _write_conf(member: BrokerPlan, source: str, common: Mapping[str, str]) -> None:
    disk = Disk()
    member.store.mkdir(parents=True, exist_ok=True)
    last = member.store / LAST_COMMON
    before = config_files.read_properties(last) if last.exists() else {}
    text = member.conf.read_text("latin-1") if member.conf.exists() else source
    changes: dict[str, str | None] = dict.fromkeys(before.keys() - common.keys())
    changes |= {key: value for key, value in common.items() if before.get(key) != value}
    changes |= member.own
    files = {
        member.conf: config_files.replace_properties(text, changes),
        last: "".join(config_files.property_line(key, common[key]) for key in sorted(common)),
    }
    for path, content in files.items():
        if not path.exists() or path.read_text("latin-1") != content:
            disk.replace(str(path), content.encode("latin-1"))


# --- warnings -----------------------------------------------------------------------------------


def warnings(
    settings: BrokerSettings, plan: Sequence[BrokerPlan], core_count: int, *, is_pinned: bool
) -> list[str]:
    """Return what an operator should know about several brokers of these settings.

    Args:
        settings: The common settings.
        plan: The brokers.
        core_count: Number of cores of the process.
        is_pinned: Whether brokers are to be pinned to cores.
    """
    count = len(plan)
    texts = []
    queue_nums = settings.broker.default_topic_queue_nums
    if count > 1 and queue_nums * count > QUEUES_MANY:
        texts.append(
            f"new topics get {queue_nums} queues on each of {count} brokers, {queue_nums * count}: "
            f"set defaultTopicQueueNums={max(1, QUEUES_MANY // 2 // count)}"
        )
    if is_pinned and count > core_count:
        texts.append(
            f"{count} brokers share {core_count} cores, and are not pinned: more brokers than "
            "cores are slower than one a core"
        )
    if count > 1 and (ordered := sorted({name for m in plan for name in _ordered_topics(m)})):
        shown = ", ".join(ordered[:_NAMES_SHOWN])
        more = f" and {len(ordered) - _NAMES_SHOWN} more" if len(ordered) > _NAMES_SHOWN else ""
        texts.append(
            f"the queues of ordered topics ({shown}{more}) depend on the number of brokers: fix "
            "them, with reput topic order, before it changes"
        )
    texts += _left_over(settings.store.store_path_root_dir, plan)
    return texts


def _ordered_topics(member: BrokerPlan) -> Iterator[str]:
    if not member.store.is_dir():
        return
    try:
        topics = config_tables.topics(open_folder(str(member.store)))
    except CorruptRecord:
        return  # its broker reports it
    yield from (name for name, topic in topics.items() if topic.order)


def _left_over(root: str, plan: Sequence[BrokerPlan]) -> Iterator[str]:
    """Yield a text about each store of an earlier start that none of the brokers has."""
    used = {member.store for member in plan}
    folder = Path(root)
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        is_store = re.fullmatch("[0-9]{1,2}", path.name) and (path / paths.COMMIT_LOG).exists()
        if is_store and path not in used:
            yield (
                f"{path} has the store of a further broker, whose messages are not served: start "
                "as many as before, and drain it first (reput cluster drain)"
            )
