"""Kernels that write a store's memory, or answer requests from it: the fast path, compiled.

Kernels and Python share the control block (``control_block``). ``hot`` has the kernels as
functions, with a fallback in plain Python for each. A kernel stops before what it does not handle,
with nothing half done, and says why; its caller does the rest. Kernels that only read bytes are in
``reput.format.kernels``.
"""
