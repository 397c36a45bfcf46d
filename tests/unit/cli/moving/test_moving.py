"""``reput broker --check``: a move from a Java broker's folder, and the way back to one."""

import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import golden
import store_builder
from ports import free_port, free_port_of_broker
from reput.cli import main as cli, serving
from reput.cli.exit_codes import EXIT_DAMAGE, EXIT_ERROR
from reput.cli.moving import machine, way_back
from reput.errors import InvalidOption
from reput.store.files import paths

Document = dict[str, Any]
GIB = 1 << 30
IS_LOOPBACK = machine._is_loopback


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the disk of the machine that runs the tests by one with space."""
    usage = shutil._ntuple_diskusage(100 * GIB, 40 * GIB, 60 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(machine, "_file_system", lambda _: "ext4")
    monkeypatch.setattr(machine, "_is_loopback", lambda _: False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))


@pytest.fixture
def check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Document]]:
    """Return a function that checks a store with the settings of its broker."""

    def run(root: Path, *options: str, **settings: str) -> tuple[int, Document]:
        conf = tmp_path / "broker.conf"
        given = {
            "storePathRootDir": root,
            "listenPort": 0,
            "haListenPort": 0,
            "brokerIP1": "127.0.0.1",
        }
        given |= settings
        conf.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        before = state_of(root)
        code = cli.run(["broker", "-c", str(conf), "--check", "--json", *options])
        assert state_of(root) == before, "a check changes the folder"
        document: Document = json.loads(capsys.readouterr().out)
        assert document["exit_code"] == code
        return code, document

    return run


def state_of(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file, and the time of each folder."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*")}


def settings_of(version: str, name: str = "clean") -> dict[str, str]:
    return {key: str(value) for key, value in golden.manifest(version, name)["config"].items()}


def findings_with(document: Document, verdict: str) -> dict[str, str]:
    """Return the findings with a verdict: what was found, by subject."""
    return {
        finding["subject"]: finding["found"]
        for finding in document["findings"]
        if finding["verdict"] == verdict
    }


# --- stores that may move -----------------------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_store_that_was_stopped_cleanly_may_move(
    check: Callable[..., tuple[int, Document]], version: str
) -> None:
    code, document = check(golden.unpack(version, "clean"), **settings_of(version))
    assert code == 0
    assert findings_with(document, "stop") == findings_with(document, "warning") == {}
    ok = findings_with(document, "ok")
    java = golden.manifest(version, "clean")
    assert ok["log"].endswith(f"physical offset 0 to {java['maxPhyOffset']}")
    assert ok["records"].startswith(f"the last {java['log']['records']} ")
    assert ok["written by"] == ("RocketMQ 5.4 or later" if version[0] == "5" else
                                "RocketMQ 4.x, or no broker yet")  # fmt: skip
    assert document["go"] is True


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_crash_is_a_warning(check: Callable[..., tuple[int, Document]], version: str) -> None:
    root, settings = golden.unpack(version, "unclean"), settings_of(version, "unclean")
    code, document = check(root, **settings)
    assert code == 0
    assert set(findings_with(document, "warning")) == {"condition"}
    code, document = check(root, "--strict", **settings)
    assert (code, document["go"]) == (EXIT_DAMAGE, False)


def test_features_of_5_x_are_found(check: Callable[..., tuple[int, Document]]) -> None:
    settings = settings_of("5.5.0", "v5")
    settings.pop("mappedFileSizeTimerLog", None)
    code, document = check(golden.unpack("5.5.0", "v5"), **settings)
    assert code == 0
    ok = findings_with(document, "ok")
    assert ok["batch queues"] == "GoldenBatch-bcq: supported"
    assert "for the timer" in ok["waiting messages"]
    assert "for an acknowledgement of a pop" in ok["waiting messages"]


def test_a_running_broker_is_no_obstacle(
    check: Callable[..., tuple[int, Document]], running: tuple[Path, int, int]
) -> None:
    root, process, port = running
    code, document = check(root, listenPort=str(port), fastPortEnable="false", **BUILT)
    warnings = findings_with(document, "warning")
    assert code == 0
    assert warnings["condition"] == f"running: process {process} has the lock"
    assert f"listenPort {port} is in use by pid {process} (" in warnings["ports"]


BUILT = {
    "mappedFileSizeCommitLog": "4096",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "16",
    "maxIndexNum": "64",
    "maxMessageSize": "1024",
}
"""Settings of a store of ``store_builder``."""


LOCKS = {
    # The lock of a process, as Java has it.
    "java": "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)",
    # The lock of an open file, as reput has it: F_OFD_SETLK. It names no process.
    "reput": "fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 1, 0))",
}


@pytest.fixture(params=LOCKS)
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, int, int]]:
    """Start a process that has the lock and a port, as a broker; yield store, id and port."""
    if request.param == "reput" and sys.platform != "linux":
        pytest.skip("only Linux has locks of open files")
    root = store_builder.build(tmp_path / "store", store_builder.messages(20), is_crashed=True).root
    code = (
        "import fcntl, socket, struct, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        f"{LOCKS[request.param]}\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print(server.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(root / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield root, process.pid, int(process.stdout.readline())
        process.stdin.close()


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_torn_tail_is_a_warning(check: Callable[..., tuple[int, Document]], version: str) -> None:
    code, document = check(golden.unpack(version, "torn/torn-tail"), **settings_of(version))
    assert code == 0
    _, end = golden.torn_variants(version)["torn-tail"]["maxPhyOffset"]
    assert findings_with(document, "warning")["torn tail"].endswith(f"from physical offset {end}")
    assert findings_with(document, "ok")["log"].endswith(f" to {end}")


@pytest.mark.parametrize("variant", ["log-short", "cq-short"])
def test_files_on_which_java_does_not_start(
    check: Callable[..., tuple[int, Document]], variant: str
) -> None:
    assert not golden.torn_variants("4.9.7")[variant]["brokerStarted"]
    _, document = check(golden.unpack("4.9.7", f"torn/{variant}"), **settings_of("4.9.7"))
    is_log = variant == "log-short"
    key = "mappedFileSizeCommitLog" if is_log else "mappedFileSizeConsumeQueue"
    assert f"size by {key}" in findings_with(document, "stop" if is_log else "warning")


def test_a_damaged_record_is_a_warning(
    check: Callable[..., tuple[int, Document]], golden_copy: Callable[[str, str], Path]
) -> None:
    root = golden_copy("4.9.7", "clean")
    place = golden.messages("4.9.7", "clean")[-20]["commitLogOffset"]
    log_bytes = int(settings_of("4.9.7")["mappedFileSizeCommitLog"])
    with golden.log_files(root)[place // log_bytes].open("r+b") as file:
        file.seek(place % log_bytes + 4)
        file.write(struct.pack(">I", 0x12345678))
    code, document = check(root, **settings_of("4.9.7"))
    assert code == 0
    assert f"the first at physical offset {place}" in findings_with(document, "warning")["records"]


def test_a_missing_file_of_the_log_stops(
    check: Callable[..., tuple[int, Document]], golden_copy: Callable[[str, str], Path]
) -> None:
    root = golden_copy("5.5.0", "clean")
    missing = golden.log_files(root)[2]
    missing.unlink()
    code, document = check(root, **settings_of("5.5.0"))
    assert code == EXIT_ERROR
    assert missing.name in findings_with(document, "stop")["log"]


@pytest.mark.parametrize("table", [paths.TOPICS, paths.SUBSCRIPTION_GROUPS])
def test_a_table_that_cannot_be_read_stops(
    check: Callable[..., tuple[int, Document]],
    golden_copy: Callable[[str, str], Path],
    table: str,
) -> None:
    root = golden_copy("4.9.7", "clean")
    (root / table).write_text('{"topicConfigTable":')
    code, document = check(root, **settings_of("4.9.7"))
    assert code == 0, "its backup is read"
    (root / (table + paths.BACKUP_SUFFIX)).write_text("[]")
    code, document = check(root, **settings_of("4.9.7"))
    assert code == EXIT_ERROR
    assert table in findings_with(document, "stop")["tables"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mappedFileSizeCommitLog", "1048576"),
        ("mappedFileSizeConsumeQueue", "2000"),
        ("maxIndexNum", "1000"),
    ],
)
def test_other_sizes_than_those_of_the_files_stop(
    check: Callable[..., tuple[int, Document]], key: str, value: str
) -> None:
    code, document = check(golden.unpack("4.9.7", "clean"), **settings_of("4.9.7") | {key: value})
    assert code == EXIT_ERROR
    (subject,) = findings_with(document, "stop")
    assert key in subject


def test_a_file_of_another_user_stops(
    check: Callable[..., tuple[int, Document]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden.unpack("4.9.7", "clean")
    denied = str(root / paths.TOPICS)
    # Root may do everything, so the system's answer is replaced.
    monkeypatch.setattr(os, "access", lambda path, _: str(path) != denied)
    monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    code, document = check(root, **settings_of("4.9.7"))
    assert code == EXIT_ERROR
    assert findings_with(document, "stop")["permissions"].endswith(f"such as {denied}")
    assert "owner" in findings_with(document, "warning")


def test_messages_from_the_future_stop(
    check: Callable[..., tuple[int, Document]], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = max(entry["storeTimestamp"] for entry in golden.messages("4.9.7", "clean"))
    monkeypatch.setattr("reput.clock.SystemClock.now_ms", lambda _: newest - 3_600_000)
    code, document = check(golden.unpack("4.9.7", "clean"), **settings_of("4.9.7"))
    assert code == EXIT_ERROR
    assert "3600 s after" in findings_with(document, "stop")["clock"]


# --- what reput lacks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content", "subject"),
    [
        ("consumequeue_rocksdb/CURRENT", "MANIFEST-1", "RocksDB"),
        ("config/rdb/CURRENT", "MANIFEST-1", "RocksDB"),
        ("config/metadata/CURRENT", "MANIFEST-1", "RocksDB"),
        ("config/topics/CURRENT", "MANIFEST-1", "RocksDB"),
        ("rocksdbstore/000020.sst", "data", "RocksDB"),
        ("kvStore/000020.log", "data", "RocksDB"),
        ("config/tieredStoreMetadata.json", "{}", "tiered storage"),
        ("config/topicQueueMapping.json", '{"topicQueueMappingInfoMap":{"T":{}}}', "static topics"),
    ],
)
def test_a_feature_that_reput_lacks_stops(
    check: Callable[..., tuple[int, Document]],
    golden_copy: Callable[[str, str], Path],
    path: str,
    content: str,
    subject: str,
) -> None:
    root = golden_copy("5.5.0", "clean")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)
    if path == "config/topics/CURRENT":
        (root / paths.TOPICS).unlink()
    code, document = check(root, **settings_of("5.5.0"))
    assert code == EXIT_ERROR
    assert set(findings_with(document, "stop")) == {subject}


@pytest.mark.parametrize(
    ("attribute", "value", "subject"),
    [
        ("cleanup.policy", "COMPACTION", "compaction topics"),
    ],
)
def test_a_topic_of_a_kind_that_reput_lacks_stops(
    check: Callable[..., tuple[int, Document]],
    golden_copy: Callable[[str, str], Path],
    attribute: str,
    value: str,
    subject: str,
) -> None:
    root = golden_copy("5.5.0", "clean")
    topic = {"topicName": "Odd", "readQueueNums": 1, "attributes": {attribute: value}}
    (root / paths.TOPICS).write_text(json.dumps({"topicConfigTable": {"Odd": topic}}))
    code, document = check(root, **settings_of("5.5.0"))
    assert code == EXIT_ERROR
    assert findings_with(document, "stop") == {subject: "Odd"}


def test_fewer_delay_levels_than_messages_need_stop(
    check: Callable[..., tuple[int, Document]],
) -> None:
    settings = settings_of("4.9.7") | {"messageDelayLevel": "1s"}
    code, document = check(golden.unpack("4.9.7", "clean"), **settings)
    assert code == EXIT_ERROR
    assert "delay levels" in findings_with(document, "stop")


def test_access_control_needs_its_accounts(
    check: Callable[..., tuple[int, Document]], tmp_path: Path
) -> None:
    settings = settings_of("5.5.0")
    root = golden.unpack("5.5.0", "clean")
    code, document = check(root, aclEnable="true", rocketmqHome=str(tmp_path), **settings)
    assert code == EXIT_ERROR
    assert "access control 1.0" in findings_with(document, "stop")
    (tmp_path / "conf").mkdir()
    text = "accounts:\n- accessKey: some-user\n  secretKey: some-secret\n"
    (tmp_path / "conf" / "plain_acl.yml").write_text(text)
    code, document = check(root, aclEnable="true", rocketmqHome=str(tmp_path), **settings)
    assert findings_with(document, "ok")["access control 1.0"].startswith("1 accounts")
    code, document = check(root, authenticationEnabled="true", **settings)
    assert code == EXIT_ERROR
    assert "access control 2.0" in findings_with(document, "stop")


# --- settings and machine -----------------------------------------------------------------------


def test_wrong_settings_stop_before_the_store(
    check: Callable[..., tuple[int, Document]], tmp_path: Path
) -> None:
    code, document = check(tmp_path / "none", enableDLegerCommitLog="true")
    assert code == EXIT_ERROR
    assert "DLedger" in findings_with(document, "stop")["settings"]
    code, document = check(tmp_path / "none", "--strict", sendMessageThreadPoolNums="4")
    assert code == EXIT_ERROR, "a start with --strict refuses it"


def test_a_folder_without_a_store_is_a_warning(
    check: Callable[..., tuple[int, Document]], tmp_path: Path
) -> None:
    code, document = check(tmp_path / "none")
    assert code == 0
    assert set(findings_with(document, "warning")) == {"folder"}
    (tmp_path / "file").touch()
    code, document = check(tmp_path / "file")
    assert code == EXIT_ERROR
    assert "is no folder" in findings_with(document, "stop")["folder"]


def test_a_port_of_another_process_stops(
    check: Callable[..., tuple[int, Document]], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, document = check(tmp_path / "none", metricsPort=str(port))
    assert code == EXIT_ERROR
    assert findings_with(document, "stop")["ports"].startswith(f"metricsPort {port} is in use")


@pytest.mark.parametrize(
    ("used", "free", "verdict"), [(80, 20, "warning"), (95, 5, "stop"), (20, 0, "stop")]
)
def test_a_full_disk(
    check: Callable[..., tuple[int, Document]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    used: int,
    free: int,
    verdict: str,
) -> None:
    usage = shutil._ntuple_diskusage(100 * GIB, used * GIB, free * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    _, document = check(tmp_path / "none")
    assert "disk" in findings_with(document, verdict)


def test_doubtful_machines_are_warnings(
    check: Callable[..., tuple[int, Document]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "_file_system", lambda _: "nfs4")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    code, document = check(tmp_path / "none", brokerIP1="203.0.113.9")
    assert code == 0
    warnings = findings_with(document, "warning")
    assert {"file system", "descriptors", "brokerIP1"} <= set(warnings)


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_an_address_of_clients_own_machines_is_a_warning(
    check: Callable[..., tuple[int, Document]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    address: str,
) -> None:
    monkeypatch.setattr(machine, "_is_loopback", IS_LOOPBACK)
    _, document = check(tmp_path / "none", brokerIP1="127.0.0.1", bindAddress="127.0.0.1")
    assert "brokerIP1" in findings_with(document, "ok")
    code, document = check(tmp_path / "none", brokerIP1=address)
    assert code == 0
    text = f"clients connect to {address}, which is their own machine on all others"
    assert findings_with(document, "warning")["brokerIP1"] == text


def test_text_has_a_line_for_each_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "broker.conf"
    given = settings_of("4.9.7") | {
        "storePathRootDir": str(golden.unpack("4.9.7", "unclean")),
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    assert cli.run(["broker", "-c", str(conf), "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The broker would start with these settings."
    assert f"Store {given['storePathRootDir']}" in lines
    place = lines.index("warning  condition: not stopped cleanly: abort exists")
    assert lines[place + 1].startswith("         -> stop the old broker with SIGTERM")
    assert lines[-1] == "Go, with 1 warning."


@pytest.mark.parametrize("option", [["--json"], ["--for-java", "5.5.0"]])
def test_options_of_the_check_need_it(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["broker", *option]) == EXIT_ERROR
    assert f"{option[0]} is allowed with --check" in capsys.readouterr().err


# --- what a start refuses -----------------------------------------------------------------------

NO_PEM = {"tls.server.certPath": "{0}/file", "tls.server.keyPath": "{0}/file"}
TABLES = [name for name in vars(paths).values() if str(name).startswith(f"{paths.CONFIG}/")]
WRONG: dict[str, tuple[str, dict[str, str]]] = {
    # The name of the wrong file in the folder, and settings.
    "no certificate": ("", {"tls.server.certPath": "{0}/none", "tls.server.keyPath": "{0}/none"}),
    "no PEM": ("", NO_PEM),
    "replication without a certificate": ("", {"haTlsEnable": "true"}),
    "no accounts": ("", {"aclEnable": "true", "rocketmqHome": "{0}/none"}),
    "store is a file": ("", {"storePathRootDir": "{0}/file"}),
    "store in a file": ("", {"storePathRootDir": "{0}/file/store"}),
    "log in a file": ("", {"storePathCommitLog": "{0}/file/log"}),
    "log is a file": ("commitlog", {}),
    "queues are a file": ("consumequeue", {}),
    "index is a file": ("index", {}),
    "tables are a file": ("config", {}),
    "address of another machine": ("", {"bindAddress": "203.0.113.9"}),
    "name of no machine": ("", {"brokerIP1": "nowhere.invalid"}),
    "metricsPort is taken": ("", {"metricsPort": "{taken}"}),
    "grpcServerPort is taken": ("", {"grpcServerPort": "{taken}"}),
    "haListenPort is taken": ("", {"haListenPort": "{taken}", "listenPort": "{free}"}),
    "listenPort is taken": ("", {"listenPort": "{taken}"}),
    "fast port is taken": ("", {"listenPort": "{taken+2}"}),
    "exporter is taken": (
        "",
        {"metricsExporterType": "PROM", "metricsPromExporterPort": "{taken}"},
    ),
    "metricsPort is listenPort": ("", {"listenPort": "{free}", "metricsPort": "{free}"}),
    "grpcServerPort is listenPort": ("", {"listenPort": "{free}", "grpcServerPort": "{free}"}),
    "grpcServerPort is metricsPort": ("", {"metricsPort": "{free}", "grpcServerPort": "{free}"}),
    "metricsPort is the fast port": ("", {"listenPort": "{free+2}", "metricsPort": "{free}"}),
    **{f"{table} is damaged": (table, {}) for table in TABLES},
}
"""Each kind of mistake that a start may meet. Without some tables it starts, but loses delays."""


@pytest.mark.parametrize("name", WRONG)
def test_the_check_knows_what_a_start_refuses(
    check: Callable[..., tuple[int, Document]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    damaged, settings = WRONG[name]
    (tmp_path / "file").write_text("no PEM")
    root = tmp_path / "store"
    store_builder.build(root, store_builder.messages(3)) if damaged in TABLES else root.mkdir()
    if damaged:
        path = root / damaged
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("damaged")
    with socket.create_server(("0.0.0.0", free_port())) as taken:
        port, free = taken.getsockname()[1], free_port_of_broker()
        values = {
            key: text.format(tmp_path)
            for key, text in (BUILT | _numbered(settings, port, free)).items()
        }
        code, document = check(root, **{"bindAddress": "127.0.0.1", **values})
        refused = _start(monkeypatch, tmp_path / "broker.conf")
    assert code == EXIT_ERROR or not refused, document
    assert refused or damaged in TABLES, "it is no mistake"


@pytest.mark.parametrize("denied", ["", "/commitlog", "/config"])
def test_a_folder_of_another_user_is_refused(
    check: Callable[..., tuple[int, Document]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    denied: str,
) -> None:
    root = tmp_path / "store"
    folder = Path(f"{root}{denied}")
    folder.mkdir(parents=True)
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != folder and access(path, mode)
    )
    code, document = check(root)
    assert code == _start(monkeypatch, tmp_path / "broker.conf") == EXIT_ERROR
    assert findings_with(document, "stop")["folder"] == f"{folder} cannot be written by this user"
    assert {*root.rglob("*")} <= {folder}, "a start that is refused leaves files"


def _numbered(settings: dict[str, str], taken: int, free: int) -> dict[str, str]:
    numbers = {"{taken}": taken, "{taken+2}": taken + 2, "{free}": free, "{free+2}": free + 2}
    return {key: str(numbers.get(text, text)) for key, text in settings.items()}


def _start(monkeypatch: pytest.MonkeyPatch, conf: Path) -> int:
    """Start and stop a broker; return its exit code."""

    async def until_ended(*_: object) -> None: ...

    monkeypatch.setattr(serving, "_until_ended", until_ended)
    return cli.run(["broker", "-c", str(conf)])


# --- the way back -------------------------------------------------------------------------------


def test_4_x_cannot_take_what_5_x_has(check: Callable[..., tuple[int, Document]]) -> None:
    root, settings = golden.unpack("5.5.0", "v5"), settings_of("5.5.0", "v5")
    code, document = check(root, "--for-java", "4.9.7", **settings)
    assert code == EXIT_ERROR
    assert {"long topics", "batch queues", "waiting messages"} == set(
        findings_with(document, "stop")
    )
    code, document = check(root, "--for-java", "5.5.0", **settings)
    assert code == 0
    assert findings_with(document, "stop") == {}
    assert "timer" in findings_with(document, "warning")


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_store_of_a_version_goes_back_to_it(
    check: Callable[..., tuple[int, Document]], version: str
) -> None:
    root = golden.unpack(version, "clean")
    code, document = check(root, "--for-java", version, **settings_of(version))
    assert code == 0
    assert findings_with(document, "stop") == findings_with(document, "warning") == {}


def test_settings_that_java_ignores(check: Callable[..., tuple[int, Document]]) -> None:
    root, settings = golden.unpack("5.5.0", "clean"), settings_of("5.5.0")
    settings |= {"reputTopicsMax": "9", "metricsPort": "0", "indexTags": "true"}
    code, document = check(root, "--for-java", "5.5.0", **settings)
    assert code == 0
    assert findings_with(document, "warning")["settings"] == (
        "5.5.0 ignores indexTags, metricsPort, reputTopicsMax"
    )


@pytest.mark.parametrize(
    ("version", "settings", "verdict"),
    [
        ("4.9.7", {"authenticationEnabled": "true"}, "stop"),
        ("5.5.0", {"authenticationEnabled": "true"}, "warning"),
        ("5.5.0", {"aclEnable": "true", "rocketmqHome": "/home"}, "stop"),
    ],
)
def test_a_version_without_this_access_control_would_serve_everyone(
    check: Callable[..., tuple[int, Document]],
    version: str,
    settings: dict[str, str],
    verdict: str,
) -> None:
    root = golden.unpack("5.5.0", "clean")
    _, document = check(root, "--for-java", version, **settings_of("5.5.0"), **settings)
    assert any(subject.startswith("access control") for subject in findings_with(document, verdict))


@pytest.mark.parametrize("text", ["", "4", "4.4.0", "5.6.0", "5.x", "5.5.0-SNAPSHOT"])
def test_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"from 4\.5 to 5\.5"):
        way_back.parse_version(text)
