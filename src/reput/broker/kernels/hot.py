"""The kernels of this package as functions, except those of ``gate``.

They are short and keep the GIL; arguments and results are those of ``reput.store.kernels.hot``.
Without compiled kernels they serve nothing: requests fall back to the processors.
"""

import ctypes

from reput.broker.kernels import native
from reput.store.kernels import hot

is_compiled = native.is_compiled() and hot.is_compiled
"""Whether these kernels and those of the store are compiled: the fast path needs both."""


def _kernel(name: str, argument_count: int) -> hot.Kernel:
    """Return a kernel, or a function that serves nothing."""
    if is_compiled:
        return native.plain_function(name, [ctypes.c_int64] * argument_count, is_short=True)
    return hot.serve_nothing


receive = _kernel("receive", 1)
"""``receive(block: c_int64) -> count``; see ``send.receive``."""
acks = _kernel("acks", 1)
"""``acks(block: c_int64) -> count``; see ``acks.acks``. The block is an ``AckCall``."""
scan_requests = _kernel("scan_requests", 2)
"""``scan_requests(block: c_int64, wanted: c_int64) -> count``; see ``scan_requests``."""
lookups = _kernel("lookups", 3)
"""``lookups(block: c_int64, args: c_int64, time_args: c_int64) -> count``; see
``lookup_requests``."""
