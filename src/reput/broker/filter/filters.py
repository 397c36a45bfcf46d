"""SQL92 subscriptions, each expression compiled once."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from reput.broker.filter.selection import SQL92, Selection
from reput.broker.settings.config import BrokerConfig
from reput.errors import RequestRefused, excerpt
from reput.format import bloom, message as record
from reput.format.codes import ResponseCode
from reput.format.text_cache import TextCache
from reput.remoting.time_slices import Steps
from reput.store.tables.filters import ConsumerFilter

if TYPE_CHECKING:
    from reput.format import sql92


class Filters:
    """Creates selections from expressions.

    Args:
        config: Settings, which allow or forbid expressions.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config

    def load_compiler(self) -> None:
        """Load the compiler if expressions are allowed, which takes a third of a second.

        Run in a thread, so that neither the start nor the first filter waits for it.
        """
        if self.config.enable_property_filter:
            _compiled("a IS NULL")

    def of_expression(self, expression_type: str | None, expression: str | None) -> Selection:
        """Return the selection of a request's expression.

        Raises:
            RequestRefused: Expressions are not allowed, or the type or the expression is not valid.
        """
        self.check_type(expression_type)
        return _of_text(expression or "")

    def of_group(self, group_filter: ConsumerFilter) -> Selection:
        """Return the selection of a group's filter, which uses the bits of messages if possible.

        Raises:
            RequestRefused: Expressions are not allowed, or the type or the expression is not valid.
        """
        self.check_type(group_filter.expression_type)
        return _of_filter(group_filter)

    def check_type(self, expression_type: str | None) -> None:
        """Raise ``RequestRefused`` if expressions of a type are unknown or not allowed."""
        if expression_type != SQL92:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"{PARSE_FAILED}: expression type {excerpt(str(expression_type))!r}; "
                "allowed: TAG, SQL92",
            )
        if not self.config.enable_property_filter:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by SQL92",
            )

    def compile_in_steps(
        self, expression_type: str | None, expression: str | None
    ) -> Steps[None] | None:
        """Prepare ``of_expression`` and ``is_expression``, which take no time afterwards.

        None if they take none now. They refuse an expression that is not valid.
        """
        if expression_type != SQL92 or not expression or not self.config.enable_property_filter:
            return None
        # Imported late: the compiler needs a library whose import is slow.
        from reput.format import sql92

        return sql92.compile_in_steps(expression)

    def is_expression(self, expression: str) -> bool:
        """Return True if a text can be compiled; always False if expressions are disabled."""
        if not self.config.enable_property_filter:
            return False
        try:
            _compiled(expression)
        except RequestRefused:
            return False
        return True


PARSE_FAILED = "parse the consumer's subscription failed"
"""Text of RocketMQ's refusal of an expression."""


def _compiled(expression: str) -> "sql92.Filter":
    from reput.format import sql92

    try:
        return sql92.compile_filter(expression)  # has a cache
    except sql92.FilterTooLarge as error:
        raise error.limit.exceeded(error.value) from error
    except sql92.Sql92Error as error:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"{PARSE_FAILED}: {error}"
        ) from error


def _selection_of_text(expression: str) -> Selection:
    return Selection(
        message_filter=_ByExpression(_compiled(expression)), filter_letters=len(expression)
    )


def _selection_of_filter(group_filter: ConsumerFilter) -> Selection:
    expression = _compiled(group_filter.expression)
    return Selection(
        message_filter=_ByGroup(expression, group_filter),
        version=group_filter.client_version,
        filter_letters=len(group_filter.expression),
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
    letters_of=lambda key: len(key.topic) + len(key.group) + len(key.expression),
)


@dataclass(frozen=True, slots=True)
class _ByExpression:
    """Selects messages whose properties match; an error is no match."""

    expression: "sql92.Filter"
    uses_tags: ClassVar[bool] = False

    def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
        return True

    def takes_record(self, data: memoryview) -> bool:
        return self.expression.matches_text(record.property_text(data))


@dataclass(frozen=True, slots=True)
class _ByGroup(_ByExpression):
    """Uses filter bits to skip most messages that do not match."""

    group: ConsumerFilter

    def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
        group_filter = self.group
        if store_timestamp <= group_filter.born_ms:
            return True  # its bits may be older than this filter
        return bloom.may_match(bit_map, group_filter.bloom_bits, group_filter.bloom_positions)
