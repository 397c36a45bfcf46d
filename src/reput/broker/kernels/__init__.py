"""Kernels that read and answer frames of remoting: the fast path, compiled.

``send`` stores sends, ``deliver`` answers pulls, ``lookup_requests`` lookups, ``acks``
acknowledgements; ``scan_requests`` turns other requests into rows. ``gate`` verifies the signatures
of a read's frames, and looks up what their users may do. They write the store's memory with the
kernels of ``reput.store.kernels``, which are compiled into this library too.
"""
