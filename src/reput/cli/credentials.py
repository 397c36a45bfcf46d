"""Credentials of commands: options, the environment, or mqadmin's ``tools.yml``.

Secrets are never arguments, which every user of the machine can see: they come from files and the
environment.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reput.errors import InvalidOption
from reput.extras import install_command
from reput.secret import NO_SECRET, Secret

ACCESS_KEY_VARIABLE = "REPUT_ACCESS_KEY"
SECRET_KEY_FILE_VARIABLE = "REPUT_SECRET_KEY_FILE"
SECRET_KEY_VARIABLE = "REPUT_SECRET_KEY"
SECURITY_TOKEN_VARIABLE = "REPUT_SECURITY_TOKEN"
TOOLS_FILE = "conf/tools.yml"
"""File of mqadmin with ``accessKey`` and ``secretKey``, below ``ROCKETMQ_HOME``."""

_FILE_BYTES_MAX = 64 * 1024
_ANY_SECRET = f"--secret-key-file, {SECRET_KEY_FILE_VARIABLE} or {SECRET_KEY_VARIABLE}"
_QUOTED = "a text; 'in single quotes' any text is one, with '' for a quote"
_LIKE_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9_]+)[eE][-+]?[0-9]+")
"""Texts that mqadmin takes for a number, and PyYAML does not."""


class CommandCredentials(NamedTuple):
    """Credentials of a command; all are empty if there are none."""

    access_key: str = ""
    secret_key: Secret = NO_SECRET
    security_token: Secret = NO_SECRET


def find_credentials(
    access_key: str | None, secret_key_file: str | None, environment: Mapping[str, str]
) -> CommandCredentials:
    """Return the credentials of a command.

    Args:
        access_key: Option ``--access-key``, or its environment variable.
        secret_key_file: Option ``--secret-key-file``, or its environment variable.
        environment: ``os.environ``: secrets, and ``ROCKETMQ_HOME``, whose ``conf/tools.yml`` is
            used if there is neither an access key nor a secret key.

    Raises:
        InvalidOption: A file cannot be read or has another form, or one of both keys is missing.
    """
    secret = Secret(environment.get(SECRET_KEY_VARIABLE, ""))
    token = Secret(environment.get(SECURITY_TOKEN_VARIABLE, ""))
    if secret_key_file:
        secret = read_secret("--secret-key-file", secret_key_file, "secret key")
    if not access_key and not secret and not token:
        home = environment.get("ROCKETMQ_HOME")
        return _read_tools(Path(home, TOOLS_FILE)) if home else CommandCredentials()
    if not access_key:
        allowed = f"given ({ACCESS_KEY_VARIABLE} does the same), as there is a secret"
        raise InvalidOption("--access-key", access_key, allowed)
    if not secret:
        raise InvalidOption("--access-key", access_key, f"given together with {_ANY_SECRET}")
    return CommandCredentials(access_key, secret, token)


def read_secret(option: str, path: str, content: str) -> Secret:
    """Return the only line of a file.

    Args:
        option: Option that names the file.
        path: The file.
        content: Meaning of the line, for the error.

    Raises:
        InvalidOption: The file cannot be read, or has another form. The error shows none of it.
    """
    text = _read(option, Path(path)).rstrip("\r\n")
    if not text or "\n" in text:
        raise InvalidOption(option, path, f"a file whose only line is the {content}")
    return Secret(text)


def _read_tools(path: Path) -> CommandCredentials:
    """Return the credentials of a ``tools.yml``; none if it does not exist or has no keys.

    It is read as mqadmin does, as YAML 1.1. A value without quotes that is no text there, but a
    number with another text, a boolean or a date, is refused.
    """
    if not path.exists():
        return CommandCredentials()
    text = _read("ROCKETMQ_HOME", path)
    try:
        import yaml
    except ImportError:
        allowed = (
            "given together with --secret-key-file, or PyYAML installed for "
            f"{path}: {install_command('acl')}"
        )
        raise InvalidOption("--access-key", None, allowed) from None
    try:
        root: Any = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        # Neither the text nor the cause is shown: they may have the secret.
        mark = getattr(error, "problem_mark", None)
        if getattr(error, "context", None) == "while scanning a quoted scalar":
            # Where it begins: the problem is the end of the file.
            mark = getattr(error, "context_mark", mark)
        place = str(path) if mark is None else f"{path}, line {mark.line + 1}"
        raise InvalidOption("tools.yml", place, f"YAML; a value is {_QUOTED}") from None
    if root is None:
        return CommandCredentials()
    if root.id != "mapping":
        allowed = "lines `accessKey: NAME` and `secretKey: TEXT`"
        raise InvalidOption("tools.yml", str(path), allowed)
    values: dict[str, str] = {}
    for key, value in root.value:
        if key.id != "scalar" or key.value not in ("accessKey", "secretKey"):
            continue
        place = f"{path}, line {key.start_mark.line + 1}"
        if key.value in values:
            raise InvalidOption("tools.yml", place, f"{key.value} once")
        values[key.value] = _scalar(value, place)
    access_key, secret_key = values.get("accessKey", ""), values.get("secretKey", "")
    if bool(access_key) != bool(secret_key):
        raise InvalidOption("tools.yml", str(path), "both accessKey and secretKey, or neither")
    return CommandCredentials(access_key, Secret(secret_key))


def _scalar(node: Any, place: str) -> str:
    """Return the text of a value. No error shows it."""
    kind = node.tag.rpartition(":")[2]
    if node.id == "scalar":
        text = str(node.value)
        is_decimal = re.fullmatch(r"0|[1-9][0-9]*", text) is not None
        is_plain_text = kind == "str" and not _LIKE_NUMBER.fullmatch(text)
        if node.style in ("'", '"') or (node.style is None and (is_plain_text or is_decimal)):
            return text
        if kind == "null" and not text:
            return ""
    raise InvalidOption("tools.yml", place, _QUOTED)


def _read(option: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise InvalidOption(option, str(path), f"a file of at most {_FILE_BYTES_MAX} bytes")
        return data.decode("utf-8")
    except OSError as error:
        allowed = f"a readable file: {error.strerror or error}"
        raise InvalidOption(option, str(path), allowed) from error
    except UnicodeDecodeError:
        raise InvalidOption(option, str(path), "a file of UTF-8 text") from None
