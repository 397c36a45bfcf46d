"""Kernels that write a store's memory, or answer requests from it: the fast path, compiled.

Kernels and Python share the control block (``control_block``). ``hot`` has the kernels as
functions. Without compiled kernels, ``reference`` does the store's work, and requests fall back to
the processors. A kernel stops before the first thing that it does not handle, with nothing half
done, and reports why; its caller does the rest. Kernels that only read bytes are in
``reput.format.kernels``.
"""
