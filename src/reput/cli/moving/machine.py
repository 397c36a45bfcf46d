"""Checks of the machine: disk, file system, descriptors, ports, addresses."""

import ipaddress
import resource
import shutil
import socket
from pathlib import Path

from reput import descriptors
from reput.broker.settings.config import BrokerSettings
from reput.cli import obstacles
from reput.cli.moving.findings import Findings
from reput.cli.printing import size_text
from reput.cli.processes import pid_of_store
from reput.store.config import StoreConfig
from reput.store.reader import StoreReader

_DOUBTFUL_FILE_SYSTEMS = {
    "nfs": "a lock may not exclude brokers on other machines, and a sync may not be durable",
    "nfs4": "a lock may not exclude brokers on other machines, and a sync may not be durable",
    "cifs": "locks and maps of files are not reliable",
    "overlay": "it is the file system of a container, and is deleted with it",
    "tmpfs": "it is in memory: a restart of the machine deletes it",
}
"""File systems that are wrong for a store -> why."""
_MOUNTS = Path("/proc/self/mounts")
_MAPS_MAX = Path("/proc/sys/vm/max_map_count")
_MAPS_RESERVED = 4096
"""Maps that queues, index, libraries and allocations need besides those of the log."""


def check(reader: StoreReader | None, settings: BrokerSettings) -> Findings:
    """Check the machine.

    Args:
        reader: The store; None without one.
        settings: Settings with which the broker would start.
    """
    findings = Findings("machine")
    _check_disks(settings.store, findings)
    _check_limits(reader, settings, findings)
    _check_ports(reader, settings, findings)
    _check_address(settings, findings)
    return findings


def _check_disks(config: StoreConfig, findings: Findings) -> None:
    folders = dict.fromkeys((config.store_path_root_dir, *config.commit_log_folders))
    devices = set()
    for folder in folders:
        place = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
        device = place.stat().st_dev
        if device in devices:
            continue
        devices.add(device)
        usage = shutil.disk_usage(place)
        percent = round(100 * usage.used / max(usage.used + usage.free, 1))
        text = f"{folder} is {percent} % full, {size_text(usage.free)} free"
        action = "free space, or wait until old files have expired"
        warning, limit = config.disk_space_warning_level_ratio, config.disk_max_used_space_ratio
        if percent > warning:
            findings.stop("disk", f"{text}: puts are refused above {warning} %", action)
        elif usage.free < config.mapped_file_size_commit_log:
            findings.stop("disk", f"{text}: too little for the next log file", action)
        elif percent > limit:
            findings.warn(
                "disk", f"{text}: above {limit} % expired files are deleted early", action
            )
        else:
            findings.ok("disk", text)
        kind = _file_system(place)
        if kind in _DOUBTFUL_FILE_SYSTEMS:
            text = f"{folder} is on {kind}: {_DOUBTFUL_FILE_SYSTEMS[kind]}"
            findings.warn("file system", text, "move the folder to a local disk (ext4, xfs)")


def _file_system(place: Path) -> str:
    """Return the type of the file system of a path; empty if it is unknown."""
    try:
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    depth, kind = -1, ""
    for line in lines:
        words = line.split()
        mount = words[1].replace("\\040", " ")
        if len(mount) >= depth and place.resolve().is_relative_to(mount):
            depth, kind = len(mount), words[2]
    return kind


def _check_limits(reader: StoreReader | None, settings: BrokerSettings, findings: Findings) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.broker.reput_connections_max + descriptors.FILES_RESERVED
    if hard != resource.RLIM_INFINITY and hard < wanted:
        findings.warn(
            "descriptors",
            f"at most {hard}, for {wanted - descriptors.FILES_RESERVED} connections and the files",
            f"ulimit -Hn {wanted}, or LimitNOFILE={wanted} in the unit of systemd",
        )
    else:
        findings.ok("descriptors", f"{'unlimited' if hard < 0 else hard}")
    try:
        maps_max = int(_MAPS_MAX.read_text())
    except (OSError, ValueError):
        return
    needed = (len(reader.log.files) if reader is not None else 0) + _MAPS_RESERVED
    if maps_max < needed:
        findings.warn(
            "vm.max_map_count",
            f"{maps_max}; up to {needed} maps may be needed",
            f"sysctl -w vm.max_map_count={max(needed, 262144)}",
        )


def _check_ports(reader: StoreReader | None, settings: BrokerSettings, findings: Findings) -> None:
    """Check the ports; those of the broker that has the store are free when it has stopped."""
    holder = reader.state.lock_holder if reader is not None else None
    if holder is not None and holder <= 0:
        # The lock of an open file, as reput has it, names no process.
        holder = pid_of_store(settings.store.store_path_root_dir) or holder
    refused = list(obstacles.of_ports(settings))
    for obstacle in refused:
        is_holders = holder is not None and obstacle.owner is not None
        if is_holders and (not obstacle.owner or obstacle.owner.startswith(f"pid {holder} ")):
            action = "it is free once the running broker has stopped; check again then"
            findings.warn("ports", obstacle.fact, action)
        else:
            findings.stop("ports", obstacle.fact, obstacle.action)
    if not refused and (ports := obstacles.ports_of(settings)):
        numbers = ", ".join(str(port.number) for port in ports)
        findings.ok("ports", f"{numbers} can be listened on")


def _check_address(settings: BrokerSettings, findings: Findings) -> None:
    address = settings.broker.broker_ip1
    try:
        kind, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.bind(place)
    except socket.gaierror as error:
        action = "set it to an address that clients can reach"
        findings.stop("brokerIP1", f"{address} is unknown: {error.strerror}", action)
    except OSError:
        findings.warn(
            "brokerIP1",
            f"{address} is not an address of this machine",
            "correct it, unless clients reach this machine by it (a service, or translation)",
        )
    else:
        if _is_loopback(str(place[0])) and settings.broker.bind_address != address:
            findings.warn(
                "brokerIP1",
                f"clients connect to {address}, which is their own machine on all others",
                "set it to an address that clients can reach, unless all of them run here",
            )
        else:
            findings.ok("brokerIP1", f"clients connect to {address}")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
