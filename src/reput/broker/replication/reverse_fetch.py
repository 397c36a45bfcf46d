"""What a master that starts takes back from its slaves: consumer offsets committed there.

While a master is dead, consumers read from its slaves, and commit there. One that restarts before
it has committed to the master again would go back to the master's last consumer offset.

    name servers -> slaves -> same broker, same log? -> newer table? -> larger offsets are taken

It ends before the master listens: no client sees an offset from before. A larger offset is taken
only up to the end of its queue here, and only if the slave's log has the same records: another log
has other messages at these offsets. Tables that are older than the own one, or have no version, are
left out: an offset that an operator has set back would return.

The progress of delay levels and of the timer is not taken back, unlike by RocketMQ's masters, whose
slaves can deliver in their place: no slave delivers here, so its progress is never newer than what
its master had done.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable

from reput.broker import master_guard
from reput.broker.offset.commits import OffsetCommits
from reput.broker.replication.master_requests import MasterRequests, Unanswered
from reput.broker.replication.master_tables import DatedOffsets, MasterTables
from reput.broker.settings.config import BrokerConfig
from reput.broker.topic.topics import Topics
from reput.errors import ReputError, RequestRefused
from reput.format import names
from reput.format.codes import MASTER_ID
from reput.format.signing import Signer
from reput.remoting.client import RemotingClient
from reput.remoting.long_replies import CHUNK, chunks
from reput.remoting.time_slices import run_in_slices
from reput.store.config import BrokerRole
from reput.store.message_store import MessageStore
from reput.store.tables.offsets import ConsumerOffsetTable

DURATION_S_MAX = 3.0
"""Longest time for which slaves delay the start of their master, in s."""

_log = logging.getLogger(__name__)


class ReverseFetch:
    """Fetches consumer offsets from the slaves of a master that does not listen yet.

    Args:
        config: The names of the broker, and the name servers.
        own_address: The address of this broker, as name servers list it.
        store: The store.
        topics: The topics.
        table: The consumer offsets.
        commits: Checks and sets consumer offsets.
        tls: Certificates of the requests; None without TLS.
        signer: Signs the requests; None: they are not signed.
    """

    def __init__(
        self,
        config: BrokerConfig,
        own_address: str,
        store: MessageStore,
        topics: Topics,
        table: ConsumerOffsetTable,
        commits: OffsetCommits,
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._seconds = seconds
        self._tls = tls
        self._signer = signer
        self._config = config
        self._own_address = own_address
        self._store = store
        self._topics = topics
        self._table = table
        self._commits = commits

    async def run(self) -> None:
        """Copy the offsets of the slaves that answer in time; problems are logged."""
        if not (self._config.name_servers and self._store.max_physical_offset):
            return
        answered: list[tuple[str, DatedOffsets]] = []
        try:
            async with asyncio.timeout(DURATION_S_MAX):
                async with self._client() as client:
                    slaves = await self._slaves()
                    await asyncio.gather(*(self._ask(client, slave, answered) for slave in slaves))
        except TimeoutError:
            _log.warning(
                "not all slaves have answered in %d s: consumer offsets that were committed there "
                "are not taken back",
                DURATION_S_MAX,
            )
        for address, theirs in answered:
            await run_in_slices(self._take(address, theirs), seconds=self._seconds)

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[RemotingClient]:
        client = RemotingClient(
            connect_timeout_ms=master_guard.CONNECT_TIMEOUT_MS, tls=self._tls, signer=self._signer
        )
        try:
            yield client
        finally:
            await client.close()

    async def _slaves(self) -> set[str]:
        """Return the addresses of the slaves that name servers list."""
        config = self._config
        questions = master_guard.Questions(config.broker_name, self._tls, self._signer)
        async with contextlib.aclosing(questions):
            listed = await asyncio.gather(*map(questions.listed, config.name_servers))
        return {
            address
            for broker_addrs in listed
            for broker_id, address in broker_addrs.items()
            if broker_id != MASTER_ID and address != self._own_address
        }

    async def _ask(
        self, client: RemotingClient, address: str, answered: list[tuple[str, DatedOffsets]]
    ) -> None:
        slave = MasterRequests(client, address)
        try:
            await self._check(slave)
            answered.append((address, await MasterTables(slave).dated_consumer_offsets()))
        except ReputError as error:
            _log.warning("the consumer offsets of slave %s are not taken: %s", address, error)

    async def _check(self, slave: MasterRequests) -> None:
        """Check that a broker is a slave of this one, and has its log.

        Raises:
            Unanswered: It is not, or does not answer.
        """
        theirs, config = await slave.identity(), self._config
        own = config.broker_cluster_name, config.broker_name, BrokerRole.SLAVE
        if (theirs.cluster, theirs.broker_name, theirs.role) != own:
            raise Unanswered(
                f"it is the {theirs.role} {theirs.broker_name} of cluster {theirs.cluster}"
            )
        if not await self._has_own_log(slave, (await slave.log_range()).max_offset):
            raise Unanswered("its log has other records than this one")

    async def _has_own_log(self, slave: MasterRequests, end: int) -> bool:
        """Return True if the records of a slave are those of this log, as far as both have them.

        Args:
            slave: The slave.
            end: Physical offset of the end of its log.
        """
        store, file_size = self._store, self._store.config.mapped_file_size_commit_log
        end = min(end, store.max_physical_offset)
        newest = next(store.records_before(end), None)
        if newest is None:
            return False
        physical_offset, data = newest
        if await slave.record_at(physical_offset) != data:
            return False
        # What follows there can only be the part of a record, possibly after a blank.
        rest = physical_offset + len(data)
        for begin in {rest, max(rest, end - end % file_size)}:
            if begin < end and await slave.record_at(begin) is not None:
                return False
        return True

    def _take(self, address: str, theirs: DatedOffsets) -> Iterable[None]:
        """Raise consumer offsets to those of a slave, up to the ends of the queues."""
        if theirs.changed_ms < self._table.version.timestamp_ms:
            _log.info("the consumer offsets of slave %s are older than the own", address)
            return
        count = 0
        for chunk in chunks(theirs.offsets.items(), CHUNK):
            for (topic, group), queues in chunk:
                if group not in names.GROUPS_OF_BROKERS:
                    count += sum(self._raise(topic, group, *queue) for queue in queues.items())
            yield
        if count:
            _log.info("%d consumer offsets are taken back from slave %s", count, address)

    def _raise(self, topic_name: str, group: str, queue_id: int, theirs: int) -> bool:
        topic = self._topics.get(topic_name)
        own = self._table.get(topic_name, group, queue_id)
        consumer_offset = min(theirs, self._store.max_offset(topic_name, queue_id))
        if topic is None or (own is not None and consumer_offset <= own):
            return False
        try:
            self._commits.commit(topic, group, queue_id, consumer_offset)
        except RequestRefused:
            return False
        return True
