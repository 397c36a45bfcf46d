"""Credentials of commands: options, the environment, or mqadmin's ``tools.yml``.

Secrets are never arguments, which every user of the machine can see: they come from files and the
environment.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from reput.errors import InvalidOption
from reput.secret import NO_SECRET, Secret

ACCESS_KEY_VARIABLE = "REPUT_ACCESS_KEY"
SECRET_KEY_FILE_VARIABLE = "REPUT_SECRET_KEY_FILE"
SECRET_KEY_VARIABLE = "REPUT_SECRET_KEY"
SECURITY_TOKEN_VARIABLE = "REPUT_SECURITY_TOKEN"
TOOLS_FILE = "conf/tools.yml"
"""File of mqadmin with ``accessKey`` and ``secretKey``, below ``ROCKETMQ_HOME``."""

_FILE_BYTES_MAX = 64 * 1024
_ANY_SECRET = f"--secret-key-file, {SECRET_KEY_FILE_VARIABLE} or {SECRET_KEY_VARIABLE}"
_LINE = re.compile(r"(\w+)\s*:(?:\s+(.*?))?\s*")
_QUOTED = re.compile(r"'((?:[^']|'')*)'|\"([^\"\\]*)\"")
_NO_TEXT = re.compile(
    r"""
    ~ | null | true | false | yes | no | on | off | y | n
    | [-+]? (?: 0[0-7_]+ | 0b[01_]+ | 0x[0-9a-f_]+ | [0-9]+ (?:_[0-9_]*)+
        | [0-9][0-9_]* (?: :[0-5]?[0-9])+ (?:\.[0-9_]*)? | [0-9_]*\.[0-9_]* (?:e[-+]?[0-9]+)?
        | [0-9][0-9_]*e[-+]?[0-9]+ | \.inf | \.nan )
    | [+][0-9]+
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*
    | = | [\[\]{}>|*&!%@`,?#-].* | .*\s\#.* | .*:(?:\s.*)?
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Values without quotes that are no text in YAML 1.1, or another one."""


class Given(NamedTuple):
    """Credentials of a command; all are empty if there are none."""

    access_key: str = ""
    secret_key: Secret = NO_SECRET
    security_token: Secret = NO_SECRET


def find_credentials(
    access_key: str | None, secret_key_file: str | None, environment: Mapping[str, str]
) -> Given:
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
        return _read_tools(Path(home, TOOLS_FILE)) if home else Given()
    if not access_key:
        allowed = f"given ({ACCESS_KEY_VARIABLE} does the same), as there is a secret"
        raise InvalidOption("--access-key", access_key, allowed)
    if not secret:
        raise InvalidOption("--access-key", access_key, f"given together with {_ANY_SECRET}")
    return Given(access_key, secret, token)


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


def _read_tools(path: Path) -> Given:
    """Return the credentials of a ``tools.yml``; none if it does not exist or has no keys."""
    if not path.exists():
        return Given()
    values: dict[str, str] = {}
    for number, raw in enumerate(_read("ROCKETMQ_HOME", path).splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or line in ("---", "..."):
            continue
        pair = _LINE.fullmatch(raw)
        if pair is None or pair[1] in values:
            allowed = "lines `accessKey: NAME` and `secretKey: TEXT`, each at most once"
            raise InvalidOption("tools.yml", f"{path}, line {number}", allowed)
        values[pair[1]] = _scalar(pair[2] or "", f"{path}, line {number}")
    access_key, secret_key = values.get("accessKey", ""), values.get("secretKey", "")
    if bool(access_key) != bool(secret_key):
        raise InvalidOption("tools.yml", str(path), "both accessKey and secretKey, or neither")
    return Given(access_key, Secret(secret_key))


def _scalar(text: str, place: str) -> str:
    """Return the text of a scalar of YAML 1.1. No error shows it."""
    quoted = _QUOTED.fullmatch(re.sub(r"(?<=['\"])\s+#.*$", "", text))
    if quoted is not None:
        return (quoted[1] or "").replace("''", "'") if quoted[2] is None else quoted[2]
    plain = re.sub(r"(?:^|\s+)#.*$", "", text)
    if plain[:1] in ("'", '"') or (plain and _NO_TEXT.fullmatch(plain)):
        allowed = "a text; 'in single quotes' any text is one, with '' for a quote"
        raise InvalidOption("tools.yml", place, allowed)
    return plain


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
