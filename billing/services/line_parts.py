"""What each usage record of a statement's line brings to it: over all of a line's records they add up to the line."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from billing.invoice_models import LineKind, StatementLine, TokenKind
from billing.models import Adjustment, UsageRecord
from billing.services.month_sums import FORMER_UNIT_PICOS, prices_of
from billing.services.rating import WHOLE, UnitPrice
from billing.services.statement_lines import unit_picos


@dataclass(frozen=True)
class LinePart:
    record: UsageRecord
    tokens: int | None
    """Of the line's kind; None: the line counts no tokens."""
    amount_picos: int


def parts_of_line(line: StatementLine, records: Iterable[UsageRecord]) -> Iterator[LinePart]:
    """Of some of `month_sums.requests_of_line`; two queries at most, however many they are."""
    records = list(records)
    if line.kind == LineKind.USAGE:
        assert line.unit_picos is not None, "usage has a unit price"
        for record in records:
            tokens = _tokens(record)[TokenKind(line.token_kind)]
            yield LinePart(record, tokens, tokens * line.unit_picos)
    elif line.kind in (LineKind.DISCOUNT, LineKind.ROUNDING):
        prices = prices_of(records)
        for record in records:
            listed, net = _listed_and_net(record, prices)
            yield LinePart(record, None, net - listed if line.kind == LineKind.DISCOUNT else _rounded_up(record, net))
    elif line.kind == LineKind.ADJUSTMENT:
        corrections = _corrections(line, records)
        for record in records:
            yield LinePart(record, None, corrections[record.id])


def _tokens(record: UsageRecord) -> dict[TokenKind, int]:
    """Those that are billed (docs/billing.md: End states)."""
    is_whole = record.end_state in WHOLE
    return {
        TokenKind.INPUT: record.prompt_tokens - record.cached_tokens if is_whole else 0,
        TokenKind.CACHED: record.cached_tokens if is_whole else 0,
        TokenKind.OUTPUT: record.completion_tokens,
    }


def _listed_and_net(record: UsageRecord, prices: Mapping[tuple[str, str], UnitPrice]) -> tuple[int, int]:
    price, tokens = prices[record.model, record.price_version], _tokens(record)
    listed = sum(count * unit_picos(price, kind) for kind, count in tokens.items())
    return listed, sum(count * unit_picos(price, kind, record.discount_percent) for kind, count in tokens.items())


def _rounded_up(record: UsageRecord, net: int) -> int:
    """What it was rounded up by, while requests were (before amounts were exact)."""
    difference = (record.amount_picos or 0) - net
    return difference if 0 <= difference < FORMER_UNIT_PICOS else 0


def _corrections(line: StatementLine, records: Iterable[UsageRecord]) -> dict[int, int]:
    kind, _, reason = line.source.partition(":")
    statement = line.statement
    rows = Adjustment.objects.filter(tenant_id=statement.tenant_id, billing_month=statement.month, kind=kind, reason=reason)
    found = {record.id: 0 for record in records}
    for record_id, amount in rows.filter(record_id__in=found, model=line.model).values_list("record_id", "amount_picos"):
        found[record_id] += amount
    return found
