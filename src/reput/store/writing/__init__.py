"""What changes an open store: puts, copies, dispatch, flushes, expiry, removal of queues."""
