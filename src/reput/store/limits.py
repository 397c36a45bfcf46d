"""Limits of batches and searches."""

from reput.format.codes import ResponseCode
from reput.limits import KIB, declare

# --- batches ---------------------------------------------------------------------------------

BATCH_MESSAGES = declare(
    "batch_messages",
    "messages of a batch",
    64 * KIB,
    response_code=ResponseCode.MESSAGE_ILLEGAL,
)
BATCH_KEYS = declare(
    "batch_keys",
    "words in the properties of a batch, which may be keys",
    250_000,
    response_code=ResponseCode.MESSAGE_ILLEGAL,
)

# --- queries by key --------------------------------------------------------------------------

INDEX_STEPS = declare(
    "index_steps",
    "index entries that a query examines",
    1_000_000,
    response_code=ResponseCode.QUERY_NOT_FOUND,
)
