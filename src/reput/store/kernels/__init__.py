"""Kernels that write and read a store's memory.

Kernels and Python share the control block (``control_block``). ``hot`` has the kernels as
functions. Without compiled kernels, ``reference`` does the store's work. A kernel stops before the
first thing that it does not handle, with nothing half done, and reports why; its caller does the
rest. Kernels that only read bytes are in ``reput.format.kernels``; kernels that read and answer
requests are in ``reput.broker.kernels``.
"""
