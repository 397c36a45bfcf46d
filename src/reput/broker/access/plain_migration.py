"""Takes the accounts of access control 1.0 over as users of access control 2.0, at a start.

Admins become super users. Permissions of topics and groups become rules; the default permissions
become rules of the default policy, which count where no other one matches. White addresses are
dropped. A user or rules that exist are left alone.
Source: rocketmq 5.5.0 ``AuthMigrator``.
"""

import logging
from collections.abc import Iterable

from reput.broker.access.acls import AclTable, subject_of
from reput.broker.access.plain_accounts import RETRY_PREFIX, Permission, PlainAccount
from reput.broker.access.policy import Acl, Rule
from reput.broker.access.users import User, UserTable
from reput.format.access import (
    Action,
    Decision,
    Resource,
    ResourcePattern,
    ResourceType,
    UserType,
)

_log = logging.getLogger(__name__)
