"""Limits on a command line: the options, their values, and what holds afterwards as a table."""

from typing import Any

from django.core.management.base import CommandParser

from headway.errors import InvalidInput
from headway.money import micros_to_usd, usd_to_micros
from headway.tables import table
from headway.whole_numbers import NONE, whole_or_none
from tenants.models import LimitKind
from tenants.selectors import LimitInForce, TermsInForce

MAX_BUDGET_USD = 1_000_000_000

_OPTIONS = {
    "rpm": (LimitKind.REQUESTS, "requests a minute"),
    "tpm_in": (LimitKind.INPUT_TOKENS, "input tokens a minute"),
    "tpm_out": (LimitKind.OUTPUT_TOKENS, "output tokens a minute"),
    "concurrency": (LimitKind.CONCURRENCY, "requests at once; more wait in the queue"),
}


def add_limit_options(parser: CommandParser) -> None:
    for name, (_, words) in _OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=f"{words}; none removes it")
    parser.add_argument("--budget-usd", metavar="USD", help="spend a calendar month, in US dollars; none removes it")


def limits_given(options: dict[str, Any]) -> dict[LimitKind, int | None]:
    """Raises InvalidInput."""
    given: dict[LimitKind, int | None] = {}
    for name, (kind, _) in _OPTIONS.items():
        if options[name] is not None:
            given[kind] = whole_or_none(options[name], param=f"--{name.replace('_', '-')}")
    if options["budget_usd"] is not None:
        given[LimitKind.BUDGET] = _budget(options["budget_usd"])
    return given


def _budget(text: str) -> int | None:
    if text.lower() == NONE:
        return None
    micros = usd_to_micros(text, param="--budget-usd", max_usd=MAX_BUDGET_USD)
    if not micros:
        raise InvalidInput("--budget-usd must be above 0, or none", param="--budget-usd")
    return micros


def terms_text(terms: TermsInForce) -> str:
    max_tokens = terms.default_max_tokens if terms.default_max_tokens is not None else "none"
    head = (
        f"{terms.tenant}: plan {terms.plan}, weight {terms.weight:g}, tiers up to {terms.tier_ceiling}, "
        f"default max_tokens {max_tokens}, months in {terms.time_zone}"
    )
    if not terms.limits:
        return f"{head}\nno limits"
    return head + "\n" + table(["scope", "limit", "value", "note"], [_row(limit, terms) for limit in terms.limits])


def _row(limit: LimitInForce, terms: TermsInForce) -> list[object]:
    is_money = limit.kind == LimitKind.BUDGET
    scope = {"tenant": "tenant", "key": f"key {limit.id}", "model": f"model {limit.id.partition('/')[2]}"}[limit.scope]
    return [scope, limit.kind, f"{micros_to_usd(limit.value)} USD" if is_money else limit.value, _note(limit, terms)]


def _note(limit: LimitInForce, terms: TermsInForce) -> str:
    if limit.is_from_plan:
        return "of the plan"
    whole = [other.value for other in terms.limits if other.scope == "tenant" and other.kind == limit.kind]
    if limit.scope != "tenant" and whole and whole[0] < limit.value:
        return f"never reached: the tenant's own is {whole[0]}"
    return ""
