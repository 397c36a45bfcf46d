"""The gate of the processors: lets requests pass whose sender may do what they need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reput.broker.access.needs import Facts, needs_of
from reput.broker.access.refusals import AccessRefusals
from reput.broker.access.rules import AccessRefused, Account, Need, RuleSet
from reput.errors import REMARK_LETTERS, excerpt
from reput.format.command import Command
from reput.remoting.time_slices import Steps
from reput.store.tables.saved_table import SavedTable

NEEDS_AT_ONCE = 200
"""Needs of one request that are checked between two yields."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions of a held request, which are checked again if rules change."""

    account: Account
    request: Command
    """The request without fields and body."""
    needs: Sequence[Need]
    address: str
    epoch: int
    """Epoch of the rules that allowed it."""


class Access:
    """Decides which requests are served.

    Args:
        rules: The accounts and rules in force.
        facts: What the needs of requests depend on.
        refusals: Counts the refused requests.
        end_revoked: Ends the held requests that changed rules do not allow any more.
        tables: Tables of the accounts and rules that are saved.
    """

    def __init__(
        self,
        rules: RuleSet,
        facts: Facts,
        refusals: AccessRefusals,
        end_revoked: Callable[[], None],
        tables: Sequence[SavedTable] = (),
    ) -> None:
        self.rules = rules
        self.end_revoked = end_revoked
        self.facts = facts
        self.tables = tables
        self.refusals = refusals
        """Counts of refused requests."""
        self.requester: Account | None = None
        """Sender of the request that is being served. To be read before the first ``yield``."""
        self._needs: Sequence[Need] = ()
        self._address = ""

    def admit(self, request: Command, address: str) -> Steps[None] | None:
        """Check a request, and note its sender.

        Args:
            request: The request.
            address: IP address of the sender.

        Returns:
            None if it may be served; a generator if that takes long: it is admitted at its end.

        Raises:
            AccessRefused: It may not be served.
            ReputError: It cannot be decoded.
        """
        self.requester = None
        try:
            return self._admit(request, address)
        except AccessRefused as refused:
            self._note_refusal(request, address, refused)
            raise

    def _admit(self, request: Command, address: str) -> Steps[None] | None:
        account = self.rules.authenticate(request, address)
        # Also those of a super user: it may be an ordinary one when a held request is answered.
        needs = needs_of(self.facts, request)
        if len(needs) > NEEDS_AT_ONCE:
            return self._admit_in_steps(account, request, needs, address)
        self.rules.authorize(account, request, needs, address)
        self._note(account, needs, address)
        return None

    def _admit_in_steps(
        self, account: Account, request: Command, needs: Sequence[Need], address: str
    ) -> Steps[None]:
        for start in range(0, len(needs), NEEDS_AT_ONCE):
            part = needs[start : start + NEEDS_AT_ONCE]
            try:
                self.rules.authorize(account, request, part, address)
            except AccessRefused as refused:
                self._note_refusal(request, address, refused)
                raise
            yield
        self._note(account, needs, address)

    def would_admit(self, request: Command, address: str) -> bool:
        """Return whether ``admit`` would admit a request at once, without recording anything."""
        try:
            account = self.rules.authenticate(request, address)
            needs = needs_of(self.facts, request)
            if len(needs) > NEEDS_AT_ONCE:
                return False
            self.rules.authorize(account, request, needs, address)
        except Exception:  # noqa: BLE001 - ``admit`` meets it again, and refuses the request
            return False
        return True

    def _note_refusal(self, request: Command, address: str, refused: AccessRefused) -> None:
        text = excerpt(str(refused), REMARK_LETTERS)
        self.refusals.add(address, request.code, text, is_unverified=refused.is_unverified)

    def _note(self, account: Account, needs: Sequence[Need], address: str) -> None:
        self.requester, self._needs, self._address = account, needs, address

    def grant(self, envelope: Command) -> Grant | None:
        """Return the grant of the request that is being served, for the time that it is held.

        Args:
            envelope: The request without fields and body.
        """
        if self.requester is None:
            return None
        return Grant(self.requester, envelope, self._needs, self._address, self.rules.epoch)

    def recheck(self, grant: Grant | None) -> None:
        """Check a held request again, if rules have changed.

        Raises:
            AccessRefused: It may not be answered any more.
        """
        if grant is not None and grant.epoch != self.rules.epoch:
            self.rules.authorize(grant.account, grant.request, grant.needs, grant.address)
