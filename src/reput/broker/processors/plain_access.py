"""Codes 50 to 53: change the accounts of access control 1.0, and their versions.

Only admins get here. Texts and codes are Java's, 4.9.7, except that no reply shows a secret, and
that a change which would not load is refused. 54, which returned all secrets, is not served.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from reput.broker.access.plain_accounts import (
    ADMIN,
    DEFAULT_GROUP,
    DEFAULT_TOPIC,
    GROUPS,
    KEY_LETTERS_MIN,
    PERMISSIONS,
    SECRET_KEY,
    TOPICS,
    WHITE_ADDRESS,
)
from reput.broker.access.plain_control import PlainControl
from reput.broker.parts import Parts
from reput.errors import InvalidOption, RequestRefused, WriteFailed
from reput.format import command as commands, headers
from reput.format.bodies import DataVersion
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AclVersionReplyHeader,
    DeleteAclAccountHeader,
    UpdateAclAccountHeader,
    UpdateWhiteAddressesHeader,
)
from reput.remoting.channel import Channel

_log = logging.getLogger(__name__)


def update_account(parts: Parts, channel: Channel, request: Command) -> None:
    """Create an account, or change the fields that the request names."""
    control = _control(parts, request)
    header = headers.decode(UpdateAclAccountHeader, request.ext_fields)
    access_key, secret_key = header.access_key or "", header.secret_key or ""
    failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    if min(len(access_key), len(secret_key)) < KEY_LETTERS_MIN:
        text = f"The accessKey={access_key} and secretKey=*** cannot be null and length should "
        raise RequestRefused(failed, text + "longer than 6")
    values: dict[str, object] = {SECRET_KEY: secret_key}
    if header.white_remote_address is not None:
        values[WHITE_ADDRESS] = header.white_remote_address
    values[ADMIN] = header.admin or False
    defaults = {
        DEFAULT_TOPIC: header.default_topic_perm,
        DEFAULT_GROUP: header.default_group_perm,
    }
    values |= {key: text for key, text in defaults.items() if text}
    permissions = {TOPICS: header.topic_perms, GROUPS: header.group_perms}
    for key, entries in permissions.items():
        if entries is not None:
            values[key] = _permissions(entries, failed)
    now_ms = parts.clock.now_ms()

    async def change() -> None:
        await control.update(lambda files: files.put_account(access_key, values, now_ms))
        _log.warning("account %r was changed by %s", access_key, channel.peer)

    _answer(parts, channel, request, change, failed)


def delete_account(parts: Parts, channel: Channel, request: Command) -> None:
    """Delete an account; its held requests end."""
    control = _control(parts, request)
    access_key = headers.decode(DeleteAclAccountHeader, request.ext_fields).access_key
    failed, now_ms = ResponseCode.DELETE_ACL_CONFIG_FAILED, parts.clock.now_ms()

    async def delete() -> None:
        if not await control.update(lambda files: files.delete_account(access_key, now_ms)):
            text = f"The accesskey[{access_key}] corresponding to accessConfig has been deleted"
            raise RequestRefused(failed, f"{text} failed.")
        _log.warning("account %r was deleted by %s", access_key, channel.peer)

    _answer(parts, channel, request, delete, failed)


def update_white_addresses(parts: Parts, channel: Channel, request: Command) -> None:
    """Replace the global white addresses of a file."""
    control = _control(parts, request)
    header = headers.decode(UpdateWhiteAddressesHeader, request.ext_fields)
    failed, now_ms = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, parts.clock.now_ms()
    texts = [text for text in header.global_white_addrs.split(",") if text]
    path = header.acl_file_full_path or ""

    async def change() -> None:
        if not await control.update(lambda files: files.put_white_addresses(texts, path, now_ms)):
            text = f"The globalWhiteAddresses[{header.global_white_addrs}] has been updated failed."
            raise RequestRefused(failed, text)
        _log.warning("the global white addresses were changed by %s: %s", channel.peer, texts)

    _answer(parts, channel, request, change, failed)


def versions(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the versions of all files."""
    control = _control(parts, request)
    by_path = {file.path: file.version for file in control.files.accounts.files}
    config = parts.settings.broker
    header = AclVersionReplyHeader(
        version=_json(by_path.get(control.files.default_path, DataVersion())),
        all_acl_file_version=_json(by_path),
        broker_name=config.broker_name,
        broker_addr=parts.identity.address,
        cluster_name=config.broker_cluster_name,
    )
    return commands.reply(request, ext_fields=headers.encode(header))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _control(parts: Parts, request: Command) -> PlainControl:
    """Return the files of access control 1.0.

    Raises:
        RequestRefused: It is off.
    """
    if parts.plain_control is None:
        raise RequestRefused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
        )
    return parts.plain_control


def _permissions(text: str, failed: ResponseCode) -> list[str]:
    """Return the permissions of a list with commas.

    Raises:
        RequestRefused: One is wrong.
    """
    entries = [entry for entry in text.split(",") if entry]
    for entry in entries:
        items = [item for item in entry.split("=") if item]
        if len(items) != 2:
            expected = "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            raise RequestRefused(failed, f"Parse Resource format error for {entry}.\n{expected}")
        if items[1].strip() not in PERMISSIONS:
            expected = "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
            raise RequestRefused(
                failed, f"Parse resource permission error for {entry}.\n{expected}"
            )
    return entries


def _answer(
    parts: Parts,
    channel: Channel,
    request: Command,
    work: Callable[[], Awaitable[None]],
    failed: ResponseCode,
) -> None:
    """Do the work of a request after earlier ones, and reply; errors have Java's code."""

    async def answer() -> None:
        try:
            await work()
        except (InvalidOption, WriteFailed) as error:
            raise RequestRefused(failed, str(error)) from error

    parts.setting_requests.answer(channel, request, answer)
