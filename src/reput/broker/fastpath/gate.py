"""The gate: with access control, only requests that are verified and granted take the fast path.

A kernel (``broker.kernels.gate``) verifies the signatures of all frames of a read, and looks up
each (address, account, code, topic, group) in a table of grants. A grant is written here, after the
access control has admitted such a request once. Runs of granted frames are served by the fast path;
every other frame goes through ``Channel.take_frames``, one at a time, and is admitted or refused by
the access control, which sees all that the kernel does not: a verdict of the kernel never replaces
a check in Python, it only decides who may look at a frame.

Only codes are granted whose needs are those of a topic and a group in the header, as far as the
fast path serves them. Others depend on a record, a body or a property, and are never granted.

All grants and accounts are forgotten at once if a user, a rule, a topic or a group changes.
"""

import ctypes
import secrets
from collections.abc import Callable

import numpy as np

from reput.broker.access.access import Access
from reput.broker.kernels import gate_words as words, native
from reput.broker.kernels.gate_words import ROW, AccountRow, GateCall, GateRow, Grant, GrantableCode
from reput.format import command as commands, signing
from reput.format.codes import RequestCode
from reput.format.command import LENGTH
from reput.format.kernels.native import has_sha
from reput.format.kernels.rows import Rows, rows_of, start_of, word_count
from reput.remoting.channel import Channel
from reput.secret import Secret

_GRANTABLE: dict[int, tuple[str, str]] = {
    RequestCode.SEND_MESSAGE_V2: ("b", ""),
    RequestCode.PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.ACK_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.POP_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.SEND_MESSAGE: ("topic", ""),
    RequestCode.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
}
"""Request code -> fields with the topic and the group that all its needs depend on.

The kernel of sends serves no message with properties that name further topics.
"""
_ROWS_MAX = 256
_ACCOUNT_SLOTS = 1 << 13
_GRANT_SLOTS = 1 << 16
_NAME_BYTES = 4 << 20
"""Room for the names in both tables, bytes."""
_LEARNED_AT_ONCE_MAX = 4
"""Maximum number of times that the tables are filled for one frame: account and grant, and again
if the tables were full."""

Row = list[int]
"""A frame: the words of a ``GateRow``."""
ServeRun = Callable[[int, int], int]
"""Serves the granted frames between two positions; returns the first one that it leaves."""


class Gate:
    """Decides which frames the fast path may see.

    Args:
        access: The access control.
        buffer_address: Address of the buffer that connections are read into; it must not move.
    """

    def __init__(self, access: Access, buffer_address: int) -> None:
        self._access = access
        self._judge_rows = native.plain_function("gate", [ctypes.c_int64], is_short=True)
        self._add_account = native.plain_function(
            "gate_account", [ctypes.c_int64] * 4, is_short=True
        )
        self._add_grant = native.plain_function("gate_grant", [ctypes.c_int64] * 7, is_short=True)
        self._rows = np.zeros(word_count(GateRow) * _ROWS_MAX, np.int64)
        self._row_words = self._rows.data
        self._scratch = np.empty(words.SCRATCH_BYTES, np.uint8)
        self._accounts = np.zeros(word_count(AccountRow) * _ACCOUNT_SLOTS, np.int64)
        self._grants = np.zeros(word_count(Grant) * _GRANT_SLOTS, np.int64)
        self._names = np.zeros(_NAME_BYTES, np.uint8)
        self._names_view = self._names.data
        self._names_address = _address_of(self._names)
        self._codes = self._code_rows()
        block = self._block = GateCall()
        self._argument = ctypes.c_int64(block.address)
        block.buffer = buffer_address
        block.frames = _address_of(self._rows)
        block.scratch = _address_of(self._scratch)
        block.has_sha = has_sha()
        block.seed = secrets.randbits(63)
        block.accounts = _address_of(self._accounts)
        block.account_slots = _ACCOUNT_SLOTS
        block.grants = _address_of(self._grants)
        block.grant_slots = _GRANT_SLOTS
        block.codes = start_of(self._codes)
        block.code_count = len(_GRANTABLE)
        self._names_used = 0
        self._counts = [0, 0]
        self._peers: dict[str, int] = {}
        """IP address -> its number in grants."""
        self._rules_epoch = access.rules.epoch
        self._secret_keys: dict[str, Secret] | None = None
        """Access key -> secret key of the accounts that may be used; None: not read yet."""
        self.forget()

    def _code_rows(self) -> Rows[GrantableCode]:
        names = {name for pair in _GRANTABLE.values() for name in pair}
        self._field_names = {name: np.frombuffer(name.encode() + b"\0", np.uint8) for name in names}
        rows = rows_of(GrantableCode, len(_GRANTABLE))
        for row, (code, (topic, group)) in zip(rows, _GRANTABLE.items(), strict=True):
            row.number = int(code)
            row.topic, row.topic_size = _address_of(self._field_names[topic]), len(topic)
            row.group, row.group_size = _address_of(self._field_names[group]), len(group)
        return rows

    # The tables ---------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget all accounts and grants, since accounts, rules or topics have changed."""
        self._block.epoch += 1
        self._names_used = 0
        self._counts = [0, 0]
        self._peers.clear()

    def _keep_name(self, name: bytes) -> int:
        """Copy a name to memory that stays until ``forget``; return its address."""
        start = self._names_used
        self._names_view[start : start + len(name)] = name
        self._names_used = start + len(name)
        return self._names_address + start

    def _make_room(self, table: int, slots: int, name_bytes: int) -> None:
        """Clear the tables if a table or the buffer of names is full."""
        is_full = 2 * self._counts[table] >= slots
        if is_full or self._names_used + name_bytes > _NAME_BYTES:
            self.forget()

    def add_account(self, access_key: bytes, secret_key: Secret) -> None:
        """Let the kernel verify the signatures of an account.

        Args:
            access_key: Name of the account, in UTF-8.
            secret_key: Its secret key.
        """
        self._make_room(0, _ACCOUNT_SLOTS, len(access_key))
        pads = np.frombuffer(bytearray(b"".join(signing.key_pads(secret_key))), np.uint8)
        address = self._keep_name(access_key)
        slot = self._add_account(
            self._argument,
            ctypes.c_int64(address),
            ctypes.c_int64(len(access_key)),
            ctypes.c_int64(_address_of(pads)),
        )
        pads[:] = 0
        self._counts[0] += 1
        if slot < 0:
            self.forget()

    def add_grant(self, address: str, account: int, code: int, topic: bytes, group: bytes) -> None:
        """Let the fast path serve requests of a kind.

        Args:
            address: IP address of the sender.
            account: Slot of the account.
            code: Request code.
            topic: Value of the field with the topic, in UTF-8.
            group: Value of the field with the group; empty if that does not count.
        """
        self._make_room(1, _GRANT_SLOTS, len(topic) + len(group))
        self._block.peer = self._peers.setdefault(address, len(self._peers) + 1)
        slot = self._add_grant(
            self._argument,
            ctypes.c_int64(account),
            ctypes.c_int64(code),
            ctypes.c_int64(self._keep_name(topic)),
            ctypes.c_int64(len(topic)),
            ctypes.c_int64(self._keep_name(group)),
            ctypes.c_int64(len(group)),
        )
        self._counts[1] += 1
        if slot < 0:
            self.forget()

    # Frames -------------------------------------------------------------------------------------

    def judge(self, address: str, position: int, end: int, rows_max: int = _ROWS_MAX) -> list[Row]:
        """Return the verdicts about the whole frames from a position of the buffer on.

        Granted frames at the beginning have one row, that of the last one: most reads have no
        others.

        Args:
            address: IP address of the sender.
            position: The position of the first frame.
            end: The end of the bytes in the buffer; the last frame may be incomplete.
            rows_max: Maximum number of frames.
        """
        epoch = self._access.rules.epoch
        if epoch != self._rules_epoch:
            self._rules_epoch = epoch
            self._secret_keys = None
            self.forget()
        block = self._block
        block.position = position
        block.end = end
        block.rows_max = rows_max
        block.peer = self._peers.get(address, 0)  # no grant has 0
        count = self._judge_rows(self._argument)
        width = word_count(GateRow)
        verdicts = self._row_words[ROW.verdict : width * count : width].tolist()
        granted = count
        if verdicts.count(words.GRANTED) < count:
            granted = next(i for i, verdict in enumerate(verdicts) if verdict != words.GRANTED)
        first = width * max(granted - 1, 0)
        values = self._row_words[first : width * count].tolist()
        return [values[start : start + width] for start in range(0, len(values), width)]

    def serve(self, channel: Channel, view: memoryview, end: int, serve_run: ServeRun) -> int:
        """Serve the bytes that a connection has sent; see ``remoting.channel.Owner.on_bytes``.

        Args:
            channel: The connection.
            view: The buffer.
            end: The end of the bytes in the buffer.
            serve_run: Serves granted frames.
        """
        position = 0
        rows_max = _ROWS_MAX
        learned_position, learned_count = -1, 0
        is_first = True  # the first frame of a read is always served; ``serve_run`` looks too
        while position < end and not channel.is_closed:
            if not is_first and channel.has_stalled():
                break
            is_first = False
            rows = self.judge(channel.address, position, end, rows_max)
            if not rows:  # the frame is incomplete, or its length is invalid
                return channel.take_frames(view, position, end, 1)
            rows_max = min(2 * rows_max, _ROWS_MAX)
            reached, learnable = self._serve_rows(channel, view, position, rows, serve_run)
            if learnable is None:
                if reached == position:
                    return position
                position = reached
                continue
            if reached != learned_position:
                learned_position, learned_count = reached, 0
            position = reached
            rows_max = 1  # many may be left to Python: so judging them takes linear time
            if learned_count < _LEARNED_AT_ONCE_MAX and self._learn(
                channel, view, position, learnable
            ):
                learned_count += 1
                continue
            reached = channel.take_frames(view, position, learnable[ROW.end], 1)
            if reached == position:
                return position
            position = reached
        return position

    def _serve_rows(
        self,
        channel: Channel,
        view: memoryview,
        position: int,
        rows: list[Row],
        serve_run: ServeRun,
    ) -> tuple[int, Row | None]:
        """Serve judged frames while their verdicts are valid.

        Returns:
            The position of the first frame that is not served; and its row, if the tables may lack
            something that would change its verdict.
        """
        count = len(rows)
        i = 0
        while i < count and self._access.rules.epoch == self._rules_epoch:
            if i and (channel.is_closed or channel.has_stalled()):
                break
            row = rows[i]
            verdict = row[ROW.verdict]
            if verdict == words.GRANTED:
                while i < count and rows[i][ROW.verdict] == words.GRANTED:
                    i += 1
                run_end = rows[i - 1][ROW.end]
                reached = serve_run(position, run_end)
                if reached != run_end:
                    return reached, None
                position = reached
                continue
            if verdict == words.UNKNOWN or (
                verdict == words.VERIFIED and row[ROW.code] in _GRANTABLE
            ):
                return position, row
            frame_end = channel.take_frames(view, position, row[ROW.end], 1)
            if frame_end == position:
                break
            position = frame_end
            i += 1
        return position, None

    def _secret_key_of(self, access_key: str) -> Secret | None:
        """Return the secret key of an account; None if there is none that may be used."""
        if self._secret_keys is None:
            rows = self._access.rules.rows()
            self._secret_keys = {row.access_key: row.secret_key for row in rows if row.is_usable}
        return self._secret_keys.get(access_key)

    def _learn(self, channel: Channel, view: memoryview, position: int, row: Row) -> bool:
        """Fill the tables for a frame; return False if it is not admitted by them."""
        if row[ROW.verdict] == words.UNKNOWN:
            start = row[ROW.key]
            if start < 0:
                return False
            access_key = bytes(view[start : start + row[ROW.key_size]])
            secret_key = self._secret_key_of(access_key.decode("utf-8", "replace"))
            if secret_key is None:
                return False
            self.add_account(access_key, secret_key)
            return True
        request = commands.decode(view[position + LENGTH.size : row[ROW.end]])
        fields = request.ext_fields or {}
        topic_field, group_field = _GRANTABLE[row[ROW.code]]
        topic, group = fields.get(topic_field, ""), fields.get(group_field, "")
        # A refusal has its text, and its place in the log, from the check that follows.
        if not topic or bool(group_field) != bool(group) or request.code != row[ROW.code]:
            return False
        if not self._access.would_admit(request, channel.address):
            return False
        self.add_grant(
            channel.address, row[ROW.account], request.code, topic.encode(), group.encode()
        )
        return True


def _address_of(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> int:
    return int(array.__array_interface__["data"][0])
