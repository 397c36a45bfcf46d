"""A store that a job reads, and its reader in each process of the job."""

import functools
import uuid
from dataclasses import dataclass, field

from reput.store.reader import StoreReader


@dataclass(frozen=True, slots=True)
class StoppedStore:
    """A store that no broker writes to while a job runs. Each job opens it again."""

    path: str
    job_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def reader(self) -> StoreReader:
        """Return the reader; a process opens it once per job. Raises as ``StoreReader.open``."""
        return _opened(self)


@functools.lru_cache(maxsize=2)
def _opened(store: StoppedStore) -> StoreReader:
    return StoreReader.open(store.path)
