"""Parts of ``world`` by their former names, for ``tests/interop``."""

from world import (
    CLUSTER as CLUSTER,
    Subject as Subject,
    broker_config as broker_config,
    messages_in as messages_in,
    store_config as store_config,
)
