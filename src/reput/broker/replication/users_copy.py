"""A slave's copy of its master's users and rules of access control 2.0.

    3005, 3010 -> users and rules of the master -> those of the slave, at once

The master's replace those of the slave as a whole: a user that was deleted there, or whose rules
were, must not be served by a slave that becomes master. The replies have no version, so a deletion
looks like a lost table; both end with fewer permissions, never with more. Only a reply
without any user, which no master can give to a signed request, changes nothing.

Source: rocketmq 5.5.0 ``SlaveSynchronize`` does not copy them: ``mqadmin -c`` changes slaves too.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from reput.broker import limits
from reput.broker.access.acls import subject_of
from reput.broker.access.policy import Acl
from reput.broker.access.user_rules import UserRules
from reput.broker.access.users import User
from reput.broker.replication.master_requests import MasterRequests, Unanswered
from reput.broker.replication.master_tables import MasterTables
from reput.errors import ReputError

_NAMES_LOGGED = 10

_log = logging.getLogger(__name__)


class UsersCopy:
    """Copies users and rules.

    Args:
        rules: The users and rules of the slave.
        end_revoked: Ends the held requests that changed rules do not allow any more.
    """

    def __init__(self, rules: UserRules, end_revoked: Callable[[], None]) -> None:
        self._rules = rules
        self._end_revoked = end_revoked

    async def copy(self, master: MasterRequests) -> None:
        """Copy the users, then their rules.

        Raises:
            Unanswered: The master did not return them, or not all of each; nothing has changed.
        """
        tables = MasterTables(master)
        users = await tables.users()
        # Rules of a user that was made meanwhile wait for the next copy, with the user.
        acls = await tables.acls()
        try:
            limits.USERS.check(len(users))
        except ReputError as error:
            raise Unanswered(f"the users of {master.address}: {error}") from error
        self._take(users, acls)

    def _take(self, users: Sequence[User], acls: Mapping[str, Acl]) -> None:
        """Replace the users and rules in one step, so that no request is checked with a mixture."""
        wanted = {user.name: user for user in users}
        subjects = {subject_of(name): name for name in wanted}
        changed, deleted = set(), set()
        for user in self._rules.users.all():
            if user.name not in wanted:
                self._rules.users.delete(user.name)
                deleted.add(user.name)
        for user in users:
            if self._rules.users.get(user.name) != user:
                self._rules.users.put(user)
                changed.add(user.name)
        for subject, _ in self._rules.acls.all():
            if subject not in acls or subject not in subjects:
                self._rules.acls.delete(subject)
                changed.add(subjects.get(subject, subject))
        for subject in acls.keys() & subjects.keys():
            if self._rules.acls.get(subject) != acls[subject]:
                self._rules.acls.put(subject, acls[subject])
                changed.add(subjects[subject])
        if changed or deleted:
            _log.warning(
                "users and rules copied from the master; changed: %s; deleted: %s",
                _listed(changed), _listed(deleted),
            )  # fmt: skip
            self._end_revoked()


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ", ".join(map(repr, ordered[:_NAMES_LOGGED])) or "none"
    more = len(ordered) - _NAMES_LOGGED
    return f"{shown} and {more} more" if more > 0 else shown
