"""The ``reput`` command: runs servers, reads stores, prints tables or JSON.

Nothing heavy is imported before a command needs it: importing this package is free, ``--help``
costs typer, a command costs the modules of its group, only one that reads a store costs numpy, and
servers start without typer. ``options`` declares what commands share, ``printing`` renders what
they return.

Exit codes: 0 all right, 1 damage was found, 2 the question or the store could not be read. Errors
are one line on stderr; ``REPUT_DEBUG=1`` shows the traceback behind it.
"""
