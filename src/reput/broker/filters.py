"""SQL92 subscriptions, compiled once an expression."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.broker.config import BrokerConfig
from reput.broker.selection import SQL92, Selection
from reput.errors import RequestRefused
from reput.format import message as record
from reput.format.codes import ResponseCode

if TYPE_CHECKING:
    from reput.format import sql92


class Filters:
    """Makes selections of expressions.

    Args:
        config: Whether expressions are allowed.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config

    def of_expression(self, expression_type: str | None, expression: str | None) -> Selection:
        """Return what an expression selects.

        Raises:
            RequestRefused: It is not allowed, of an unknown type, or no expression.
        """
        if expression_type != SQL92:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"expression type {expression_type!r}; allowed: TAG, SQL92",
            )
        if not self.config.enable_property_filter:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by SQL92",
            )
        return _compiled(expression or "")


@functools.lru_cache(maxsize=1024)
def _compiled(expression: str) -> Selection:
    # Not at the top: the compiler takes a library that takes long to import.
    from reput.format import sql92

    try:
        return Selection(message_filter=_ByExpression(sql92.compile_filter(expression)))
    except sql92.Sql92Error as error:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error


@dataclass(frozen=True, slots=True)
class _ByExpression:
    """Takes messages whose properties match; an error is no match."""

    expression: "sql92.Filter"

    def takes_unit(self, tags_code: int, bit_map: bytes) -> bool:
        return True

    def takes_record(self, data: memoryview) -> bool:
        message = record.decode(bytes(data), check_crc=False)
        return self.expression.matches(message.properties)
