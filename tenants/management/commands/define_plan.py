from typing import Any

from django.core.management.base import CommandParser
from django.forms import model_to_dict

from headway.command import HeadwayCommand, actor
from headway.errors import InvalidInput
from headway.whole_numbers import whole_or_none
from tenants.management.terms_arguments import add_limit_options, limits_given
from tenants.models import Tier
from tenants.services.terms import define_plan

_TRUTHS = {
    "salt_per_key": "prefix caches are shared within one key, not within the tenant",
    "is_prepaid": "its tenants spend what their balance has, and no more",
    "is_self_service": "a tenant may choose it by itself",
}


class Command(HeadwayCommand):
    help = "Make a plan, or change what is given of one: every tenant on it is told. Prints the plan."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="1 to 63 letters, digits, hyphens or underscores")
        parser.add_argument("--weight", help="its tenants' share of a busy pool, against others of the tier (1)")
        parser.add_argument("--tier-ceiling", help=f"the most urgent tier its tenants get: {', '.join(Tier.values)}")
        parser.add_argument("--max-tokens", metavar="N", help="for requests that name none; none: the room that is left")
        parser.add_argument("--discount-percent", type=int, help="off the list price of every token (0 to 100)")
        for name, words in _TRUTHS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", choices=["yes", "no"], help=words)
        add_limit_options(parser)

    def handle(
        self,
        *,
        name: str,
        weight: str | None,
        tier_ceiling: str | None,
        max_tokens: str | None,
        discount_percent: int | None,
        json: bool,
        **options: Any,
    ) -> None:
        cap = whole_or_none(max_tokens, param="--max-tokens") if max_tokens is not None else None
        plan = define_plan(
            name=name,
            limits=limits_given(options),
            weight=_weight(weight),
            tier_ceiling=tier_ceiling,
            default_max_tokens=cap,
            has_default_max_tokens=max_tokens is None or cap is not None,
            discount_percent=discount_percent,
            **{name: options[name] == "yes" for name in _TRUTHS if options[name] is not None},
            actor=actor(),
        )
        data = {field: value for field, value in model_to_dict(plan).items() if field != "id"}
        parts = [f"{field} {value}" for field, value in data.items() if field != "name" and value is not None]
        self.print_result(f"{plan.name}: {', '.join(parts)}", data, as_json=json)


def _weight(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"--weight must be a number above 0: {text!r}", param="--weight") from None
