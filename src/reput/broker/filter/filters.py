"""SQL92 subscriptions, compiled once an expression."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from reput.broker.filter.selection import SQL92, Selection
from reput.broker.settings.config import BrokerConfig
from reput.errors import RequestRefused, excerpt
from reput.format import bloom, message as record
from reput.format.codes import ResponseCode
from reput.format.text_cache import TextCache
from reput.store.table_files import ConsumerFilter

if TYPE_CHECKING:
    from reput.format import sql92


class Filters:
    """Makes selections of expressions.

    Args:
        config: Whether expressions are allowed.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config

    def load_compiler(self) -> None:
        """Load the compiler, if expressions are allowed: it takes a third of a second.

        In a thread beside the loop, so that neither a start nor the first filter waits for it.
        """
        if self.config.enable_property_filter:
            _compiled("a IS NULL")

    def of_expression(self, expression_type: str | None, expression: str | None) -> Selection:
        """Return what an expression selects that a request brings.

        Raises:
            RequestRefused: It is not allowed, of an unknown type, or no expression.
        """
        self.check_type(expression_type)
        return _of_text(expression or "")

    def of_group(self, one: ConsumerFilter) -> Selection:
        """Return what the filter of a group selects, by the bits of messages where there are any.

        Raises:
            RequestRefused: It is not allowed, of an unknown type, or no expression.
        """
        self.check_type(one.expression_type)
        return _of_filter(one)

    def check_type(self, expression_type: str | None) -> None:
        """Raises ``RequestRefused`` if expressions of a type are unknown, or not allowed."""
        if expression_type != SQL92:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"expression type {excerpt(str(expression_type))!r}; allowed: TAG, SQL92",
            )
        if not self.config.enable_property_filter:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by SQL92",
            )

    def is_expression(self, expression: str) -> bool:
        """Whether a text can be compiled. Without filters nothing is, and no compiler is loaded."""
        if not self.config.enable_property_filter:
            return False
        try:
            _compiled(expression)
        except RequestRefused:
            return False
        return True


def _compiled(expression: str) -> "sql92.Filter":
    # Not at the top: the compiler takes a library that takes long to import.
    from reput.format import sql92

    try:
        return sql92.compile_filter(expression)  # which keeps some
    except sql92.FilterTooLarge as error:
        raise error.refusal from error
    except sql92.Sql92Error as error:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error


def _selection_of_text(expression: str) -> Selection:
    return Selection(
        message_filter=_ByExpression(_compiled(expression)), filter_letters=len(expression)
    )


def _selection_of_filter(one: ConsumerFilter) -> Selection:
    expression = _compiled(one.expression)
    return Selection(
        message_filter=_ByGroup(expression, one),
        version=one.client_version,
        filter_letters=len(one.expression),
    )


_SELECTIONS_MAX = 1024
_LETTERS_MAX = 128 * 1024

_of_text = TextCache(
    _selection_of_text, count_max=_SELECTIONS_MAX, letters_max=_LETTERS_MAX, letters_of=len
)
_of_filter = TextCache(
    _selection_of_filter,
    count_max=_SELECTIONS_MAX,
    letters_max=_LETTERS_MAX,
    letters_of=lambda one: len(one.topic) + len(one.group) + len(one.expression),
)


@dataclass(frozen=True, slots=True)
class _ByExpression:
    """Takes messages whose properties match; an error is no match."""

    expression: "sql92.Filter"
    looks_at_tags: ClassVar[bool] = False

    def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
        return True

    def takes_record(self, data: memoryview) -> bool:
        return self.expression.matches_text(record.property_text(data))


@dataclass(frozen=True, slots=True)
class _ByGroup(_ByExpression):
    """Leaves out by their bits most of those that do not match."""

    group: ConsumerFilter

    def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
        one = self.group
        if store_timestamp <= one.born_ms:
            return True  # its bits may be from before there was this filter
        return bloom.may_match(bit_map, one.bloom_bits, one.bloom_positions)
