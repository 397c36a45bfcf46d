"""The ``reput`` command: runs servers, reads stores, prints tables or JSON.

Heavy modules are imported when a command needs them: importing this package is free, ``--help``
costs typer, a command costs the modules of its group. Only a command that reads a store costs
numpy, and servers start without typer. ``options`` declares the options that commands share, and
``printing`` renders the documents that commands return.

Exit codes: 0 success, 1 damage was found, 2 a wrong command line or an unreadable store. An error
is one line on stderr; ``REPUT_DEBUG=1`` shows its traceback.
"""
