"""What a console consists of; handlers get it in their view."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reput.clock import Clock, SystemClock
from reput.console.access import Proxy
from reput.console.audit import AuditLog
from reput.console.cluster import WatchedCluster
from reput.console.replica_watch import ReplicaWatch
from reput.console.resending import ResendJobs
from reput.console.resends import Resends
from reput.console.scan import SearchSlots
from reput.console.sources.folder import StoreFolders
from reput.console.users import Account
from reput.console.verifying import Verifications


@dataclass(slots=True)
class ConsoleParts:
    """The parts of a running console."""

    clock: Clock
    namesrv: str
    """Name servers: ``host:port;host:port``."""
    cluster: WatchedCluster
    audit: AuditLog
    accounts: Mapping[str, Account] = field(default_factory=dict)
    """Users by name; if empty, every visitor is ``access.LOCAL_USER``."""
    proxy: Proxy | None = None
    """A proxy that authenticates users; None without such a proxy."""
    is_https: bool = False
    """True if a proxy serves the console over TLS: cookies are then sent only over TLS."""
    may_operate: bool = False
    """Whether the console was started with ``--allow operate``."""
    folders: StoreFolders = field(default_factory=lambda: StoreFolders({}, SystemClock()))
    """The store folders of the configuration."""
    controllers: Sequence[str] = ()
    """Addresses of controllers; empty: those in the settings of the brokers."""
    replicas: ReplicaWatch = field(init=False)
    """The replica groups of the controllers."""
    search_slots: SearchSlots = field(default_factory=SearchSlots)
    resends: Resends = field(default_factory=Resends)
    """Receipts of dead letters that were sent again."""
    resend_jobs: ResendJobs = field(init=False)
    """Jobs that send all dead letters of a group again."""
    verifications: Verifications = field(default_factory=lambda: Verifications(SystemClock()))
    stream_count: int = 0
    """Pages that follow the cluster at present."""

    def __post_init__(self) -> None:
        """Create the parts that share others: the clock, the receipts and the audit log."""
        self.replicas = ReplicaWatch(self.cluster.live.admin, self.controllers, self.clock)
        self.resend_jobs = ResendJobs(self.clock, self.resends, self.audit)
