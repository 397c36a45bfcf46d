"""The wrong kind of ``with``: an error that names the right one.

Python says only that the object "does not support the context manager protocol".
"""

from typing import TYPE_CHECKING


class AsyncWithOnly:
    """Base of the asyncio clients, which ``async with`` starts and closes."""

    if not TYPE_CHECKING:  # Type checkers find the mistake, unless there is such a method.

        def __enter__(self):
            name = type(self).__name__
            raise TypeError(
                f"{name} is an asyncio client: use `async with` instead of `with`,"
                f" or reput.client.blocking, which has it without `await`"
            )

        def __exit__(self, *_):
            """Do nothing: ``__enter__`` has failed."""


class PlainWithOnly:
    """Base of the blocking clients, which ``with`` starts and closes."""

    if not TYPE_CHECKING:

        async def __aenter__(self):
            name = type(self).__name__
            raise TypeError(
                f"{name} is a blocking client: use `with` instead of `async with`,"
                f" or reput.client, which has it with `await`"
            )

        async def __aexit__(self, *_):
            """Do nothing: ``__aenter__`` has failed."""
