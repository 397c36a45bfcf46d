"""The current settings, which admin clients can read and change while the broker runs.

A change is checked as at the start, then written to the broker.conf of the broker, and then
applied: some settings at once, the others at the next start. If anything is wrong, nothing is
changed. ``reput.remote_settings`` and the black list define which keys can be changed.
"""

import asyncio
import dataclasses
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from reput import config, remote_settings
from reput.broker.settings.access import AccessSettings
from reput.broker.settings.config import HA_PORT_DISTANCE, BrokerConfig, for_role, pairs
from reput.broker.settings.keys import REPLICATION_DEFAULTS
from reput.clock import Clock
from reput.errors import InvalidOption, RequestRefused
from reput.format.bodies import DataVersion
from reput.format.codes import ResponseCode
from reput.format.signing import Signer
from reput.remote_settings import RemoteSettings
from reput.remoting import tls_settings
from reput.remoting.tls_settings import TlsMode, TlsSettings
from reput.store.config import BrokerRole, StoreConfig
from reput.store.files.disk import Disk

_ROLE_KEYS = frozenset({"brokerRole", "brokerId"})
"""Keys whose change makes the broker reopen its store in the new role."""

_LOCAL_KEYS = _ROLE_KEYS | {"haForceMaster"}
"""Keys that clients on the broker's machine and super users may change."""

_ALWAYS_FIXED = frozenset({"brokerConfigPath", "configBlackList", "rocketmqHome"})

_OF_ACCESS = frozenset({*config.texts(AccessSettings()), "aclEnable"})
"""Keys of access control, which only the file has."""

_BROKER_AT_ONCE = frozenset(
    {
        "auto_create_subscription_group",
        "auto_create_topic_enable",
        "broker_fast_failure_enable",
        "broker_permission",
        "channel_expired_timeout",
        "clear_retry_topic_when_delete_topic",
        "default_query_max_num",
        "enable_property_filter",
        "long_polling_enable",
        "namesrv_addr",
        "notify_consumer_ids_changed_enable",
        "register_broker_timeout_mills",
        "reject_transaction_message",
        "short_polling_time_mills",
        "slave_read_enable",
        "store_reply_message_enable",
        "transaction_check_interval",
        "transaction_check_max",
        "transaction_time_out",
        "validate_system_topic_when_update_topic",
        "wait_time_mills_in_send_queue",
    }
)
"""Fields that are read whenever they are needed; all others are used at the start only."""

_STORE_AT_ONCE = frozenset(
    {
        "clean_file_forcibly_enable",
        "clean_resource_interval",
        "delete_commit_log_files_interval",
        "delete_consume_queue_files_interval",
        "delete_file_batch_max",
        "delete_when",
        "destroy_maped_file_interval_forcibly",
        "disk_max_used_space_ratio",
        "disk_space_clean_forcibly_ratio",
        "disk_space_warning_level_ratio",
        "file_reserved_time",
        "os_page_cache_busy_time_out_mills",
        "redelete_hanged_file_interval",
        "reput_expire_only_archived",
        "timer_stop_enqueue",
    }
)
"""Fields of retention, of the timer's stop, and of stalled puts."""

_EXTRA_SETTINGS = {"filterServerNums": "0"}
"""Keys with the values that apply here; ``mqadmin exportConfigs`` requires them."""

_PATHS_OF_CONTROLLERS = {
    "storePathEpochFile": "epochFileCheckpoint",
    "storePathBrokerIdentity": "brokerIdentity",
}
"""Keys of files that only controllers need -> their names in the store's folder."""

_RENAMED = {**BrokerConfig.keys.renamed, **StoreConfig.keys.renamed}
"""Alternative name of a key -> its field's name."""

_Part = TypeVar("_Part", BrokerConfig, StoreConfig)


@dataclass(frozen=True, slots=True)
class Change:
    """Result of a change."""

    at_once: frozenset[str]
    """Keys whose new values are in force."""
    after_restart: frozenset[str]
    is_written: bool
    """False if there is no file, so that the change is lost at the next start."""
    role: str = ""
    """The new role and id, which apply after the reply; empty if they do not change."""

    def __str__(self) -> str:
        """Return a message for the client; empty if everything is in force and written."""
        parts = []
        if self.role:
            parts.append(f"the role changes now to {self.role}")
        if self.after_restart:
            parts.append(f"in force after a restart: {', '.join(sorted(self.after_restart))}")
        if not self.is_written:
            parts.append("not written: the broker was started without a broker.conf")
        return "; ".join(parts)


class CheckedChange(NamedTuple):
    """A checked change of settings."""

    changes: Mapping[str, str]
    """Key of broker.conf -> text."""
    broker: BrokerConfig
    """All settings of the broker after the change."""
    store: StoreConfig
    """All settings of the store after the change."""


class LiveConfig:
    """The settings of a broker and its store.

    Args:
        broker: Settings of the broker at the start.
        store: Settings of the store at the start.
        path: Path of broker.conf, or None.
        tls: Settings of TLS, which cannot be changed; by default RocketMQ's.
        access: Settings of access control, likewise; by default all requests are served.

    Raises:
        InvalidOption: The id contradicts the role, or a file of TLS cannot be used.
    """

    def __init__(
        self,
        broker: BrokerConfig,
        store: StoreConfig,
        path: str | None = None,
        *,
        tls: TlsSettings | None = None,
        access: AccessSettings | None = None,
    ) -> None:
        self.access = access or AccessSettings()
        if broker.acl_enable and self.access.authentication_enabled:
            allowed = "false, or authenticationEnabled=false: access control 1.0 or 2.0, not both"
            raise InvalidOption("aclEnable", True, allowed)
        if self.access.migrate_auth_from_v1_enabled and not broker.rocketmq_home:
            allowed = "false, or true with rocketmqHome: the folder that has conf/plain_acl.yml"
            raise InvalidOption("migrateAuthFromV1Enabled", True, allowed)
        own = self.access.own_credentials
        self.request_signer = None if own is None else Signer(own)
        """Signs requests to name servers and brokers; None: they are not signed."""
        self.tls = tls or TlsSettings()
        is_encrypted = self.tls.is_used_for_requests
        self.request_tls = tls_settings.client_context(self.tls) if is_encrypted else None
        """Certificates for requests to name servers and masters; None without TLS."""
        self.ha_tls = _ha_certificates(self.tls) if store.ha_tls_enable else None
        """Certificates of a slave for the log of its master; None without TLS."""
        if broker.enable_controller_mode:  # the role is not known yet
            replicas = store.in_sync_replicas or 1
            store = dataclasses.replace(
                store, broker_role=BrokerRole.SLAVE, in_sync_replicas=replicas
            )
        self.broker = broker = for_role(broker, store)
        """Current settings of the broker."""
        self.store = store
        """Current settings of the store."""
        self.master_role = ""
        """Role of the last master of this name that was seen, here or as its slave."""
        self.version = DataVersion()
        self.on_change: list[Callable[[Change], object]] = []
        """Called when new settings are in force."""
        self.is_access_controlled = broker.acl_enable or self.access.authentication_enabled
        """True if requests need permission."""
        self._path = path
        self._wanted_broker, self._wanted_store = broker, store  # including changes after a restart
        self._text = ""

    def text(self) -> str:
        """Return all settings, one per line, including changes after a restart."""
        if not self._text:  # takes a millisecond, hence cached
            self._text = self._make_text()
        return self._text

    def _make_text(self) -> str:
        folders = ",".join(self._wanted_store.commit_log_folders)
        store, port = self._wanted_store, self._wanted_broker.listen_port
        known = {**_EXTRA_SETTINGS, **REPLICATION_DEFAULTS, **pairs(self._wanted_broker, store)}
        known["useTLS"] = str(self.tls.is_used_for_requests).lower()
        known["authenticationEnabled"] = str(self.access.authentication_enabled).lower()
        known["authorizationEnabled"] = str(self.access.authorization_enabled).lower()
        known["storePathCommitLog"] = folders
        for key, path in _PATHS_OF_CONTROLLERS.items():
            known[key] = known[key] or f"{store.store_path_root_dir}/{path}"
        # The values in force, as Java reports them, where ours depend on the role or the port.
        known["haMaxGapNotInSync"] = known["haSlaveFallbehindMax"]
        known["inSyncReplicas"] = str(store.in_sync_replicas or store.replicas_needed)
        if store.ha_listen_port < 0:
            known["haListenPort"] = str(port + HA_PORT_DISTANCE if port else 0)
        return "".join(
            config.property_line(key, text) for key, text in sorted(known.items()) if text
        )

    def check_remote(self, changes: Mapping[str, str], *, may_change_role: bool = False) -> None:
        """Refuse keys that cannot be changed over the network.

        Args:
            changes: Key of broker.conf -> text.
            may_change_role: Whether the client is on this machine, or a super user.

        Raises:
            RequestRefused: A key is on the black list, or protected.
            InvalidOption: A key is not in its canonical form.
        """
        for key, value in changes.items():
            # A key in the form of a field's name would bypass the following lists.
            if config.key_of(key) != key:
                raise InvalidOption(key, value, f"a key that exists, such as {config.key_of(key)}")
        keys = frozenset(_RENAMED.get(key, key) for key in changes)
        if self.broker.enable_controller_mode and keys & _LOCAL_KEYS:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"{', '.join(sorted(keys & _LOCAL_KEYS))}: enableControllerMode is true, so that "
                "the controller names the master: reput cluster elect changes it",
            )
        fixed = sorted(keys & (self.broker.fixed_keys | _ALWAYS_FIXED | _OF_ACCESS))
        if fixed:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"Can not update config in black list. {', '.join(fixed)}: only in the file, and "
                "with a restart",
            )
        mode = self.broker.reput_remote_settings
        role_keys = sorted(keys & _LOCAL_KEYS)
        if may_change_role and mode is not RemoteSettings.NONE:
            keys -= _LOCAL_KEYS
        elif role_keys and mode is RemoteSettings.SAFE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"{role_keys[0]} cannot be changed over the network ({remote_settings.KEY}={mode})"
                ": send it from the machine of the broker, or with access control as a super user; "
                f"or set {remote_settings.KEY}=java in broker.conf, and restart",
            )
        remote_settings.check(keys, mode, file="broker.conf")

    def plan(self, changes: Mapping[str, str]) -> CheckedChange:
        """Check a change of settings; call ``write`` and ``apply`` before the next one is planned.

        Args:
            changes: Key of broker.conf -> text.

        Raises:
            InvalidOption: A key is unknown or a value not allowed.
        """
        given = _values(self._wanted_broker) | _values(self._wanted_store)
        settings = config.Settings(given, explicit=changes)
        broker, store = settings.make(BrokerConfig), settings.make(StoreConfig)
        for unknown in settings.unknown():
            hint = (
                f"did you mean {unknown.suggestion}?"
                if unknown.suggestion
                else "see GET_BROKER_CONFIG"
            )
            raise InvalidOption(unknown.key, changes[unknown.key], f"a key that exists; {hint}")
        wanted = for_role(broker, store)
        if "brokerId" in changes and wanted.broker_id != broker.broker_id:
            allowed = f"{wanted.broker_id}, because brokerRole is {store.broker_role}"
            raise InvalidOption("brokerId", changes["brokerId"], allowed)
        if wanted.broker_id != self._wanted_broker.broker_id:
            changes = {**changes, "brokerId": str(wanted.broker_id)}
        return CheckedChange(changes, wanted, store)

    def changes_role(self, plan: CheckedChange) -> bool:
        """Return True if a change affects the role or id of the broker."""
        before = self.store.broker_role, self.broker.broker_id
        return before != (plan.store.broker_role, plan.broker.broker_id)

    @property
    def is_role_due(self) -> bool:
        """True if the wanted role or id is another than the one in force."""
        before = self.store.broker_role, self.broker.broker_id
        return before != (self._wanted_store.broker_role, self._wanted_broker.broker_id)

    def want_role(self, role: BrokerRole, broker_id: int) -> None:
        """Want a role that a controller has decided, which is not written to broker.conf."""
        self._wanted_store = dataclasses.replace(self._wanted_store, broker_role=role)
        self._wanted_broker = dataclasses.replace(self._wanted_broker, broker_id=broker_id)
        self._text = ""

    def enter_role(self) -> None:
        """Put the wanted role and id in force; to be called while the store is closed."""
        store = self._wanted_store
        if self.store.broker_role is not BrokerRole.SLAVE:
            self.master_role = str(self.store.broker_role)
        self.broker = dataclasses.replace(self.broker, broker_id=self._wanted_broker.broker_id)
        self.store = dataclasses.replace(self.store, broker_role=store.broker_role)

    async def change(self, changes: Mapping[str, str], clock: Clock) -> Change:
        """Change settings in broker.conf and in the running broker; one change at a time.

        Args:
            changes: Key of broker.conf -> text.
            clock: The clock.

        Raises:
            InvalidOption: A key is unknown or a value not allowed, or the file cannot be read.
            WriteFailed: The file cannot be written; nothing is changed.
        """
        plan = self.plan(changes)
        await asyncio.to_thread(self.write, plan)
        return self.apply(plan, clock.now_ms())

    def write(self, plan: CheckedChange) -> None:
        """Write a change to broker.conf, if the broker has one; can run in any thread.

        Raises:
            InvalidOption: The file cannot be read.
            WriteFailed: The file cannot be written.
        """
        if self._path is not None and plan.changes:
            _write(self._path, plan.changes)

    def apply(self, plan: CheckedChange, now_ms: int) -> Change:
        """Apply a change that ``write`` has written."""
        broker, store = plan.broker, plan.store
        changed = _changed(self._wanted_broker, broker) | _changed(self._wanted_store, store)
        self._wanted_broker, self._wanted_store = broker, store
        self._text = ""
        self.broker = _updated(self.broker, broker, _BROKER_AT_ONCE)
        self.store = _updated(self.store, store, _STORE_AT_ONCE)
        in_force = _values(self.broker) | _values(self.store)
        wanted = _values(broker) | _values(store)
        at_once = frozenset(key for key in changed if in_force.get(key) == wanted.get(key))
        role = f"{store.broker_role} with id {broker.broker_id}" if self.changes_role(plan) else ""
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=now_ms)
        # Also keys that an earlier change has set: they are still not in force.
        asked = changed | {_RENAMED.get(key, key) for key in plan.changes}
        after_restart = frozenset(key for key in asked if in_force.get(key) != wanted.get(key))
        is_written = self._path is not None or not plan.changes
        change = Change(at_once, after_restart - _ROLE_KEYS, is_written, role)
        for subscriber in self.on_change:
            subscriber(change)
        return change


def _values(part: BrokerConfig | StoreConfig) -> dict[str, object]:
    """Return the values that are set, by key."""
    values = {
        config.key_of(field.name): getattr(part, field.name) for field in dataclasses.fields(part)
    }
    return {key: value for key, value in values.items() if value is not None}


def _changed(old: _Part, new: _Part) -> frozenset[str]:
    before, after = _values(old), _values(new)
    return frozenset(key for key in before | after if before.get(key) != after.get(key))


def _updated(old: _Part, new: _Part, names: frozenset[str]) -> _Part:
    """Return settings with the new values of some fields."""
    return dataclasses.replace(old, **{name: getattr(new, name) for name in names})


def _write(path: str, changes: Mapping[str, str]) -> None:
    try:
        text = Path(path).read_bytes().decode("latin-1")
    except OSError as error:
        raise InvalidOption(
            "configuration file", path, f"a readable file: {error.strerror}"
        ) from error
    # The file may have a key under its alternative name, and only one of them is allowed.
    spelling = {_RENAMED.get(key, key): key for key in config.parse_properties(text)}
    replacements = {
        spelling.get(_RENAMED.get(key, key), key): value for key, value in changes.items()
    }
    Disk().replace(path, config.replace_properties(text, replacements).encode("latin-1"))


def _ha_certificates(tls: TlsSettings) -> ssl.SSLContext:
    """Return the certificates of a slave, which may become master at any time."""
    if tls.tls_server_mode is TlsMode.DISABLED or tls.is_server_in_test_mode:
        allowed = (
            "false; or true together with tls.server.certPath and tls.server.keyPath, and not with "
            "tls.server.mode=disabled"
        )
        raise InvalidOption("haTlsEnable", "true", allowed)
    return tls_settings.client_context(tls)
