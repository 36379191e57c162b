"""What templates of the site need beside Django's."""

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from django import template
from django.http import HttpRequest
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard.services.form_claims import FIELD, new_nonce
from headway.countries import COUNTRIES
from headway.money import PICOS_A_MICRO, PICOS_A_USD, micros_to_usd, picos_to_usd

register = template.Library()

_ASSETS = Path(__file__).resolve().parents[1] / "assets.json"
# The same words as frontend/src/ago.js: below so many seconds, in units of so many.
_STEPS = (
    (60, 1, "s"),
    (3600, 60, "min"),
    (86400, 3600, "h"),
    (86400 * 60, 86400, "d"),
    (86400 * 730, 86400 * 30, "months"),
)


@cache
def _versions() -> dict[str, str]:
    found: dict[str, str] = json.loads(_ASSETS.read_text())
    return found


@register.simple_tag
def asset(name: str) -> str:
    """The address of a built file, with its digest, so that no browser keeps an old one."""
    return f"{static('dashboard/' + name)}?v={_versions().get(name, '')}"


@register.simple_tag
def once() -> SafeString:
    """In every form that makes something: however often it is posted, it makes it once."""
    return format_html('<input type="hidden" name="{}" value="{}">', FIELD, new_nonce())


def ago_text(then: datetime, now: datetime) -> str:
    seconds = round((now - then).total_seconds())
    distance = abs(seconds)
    if distance < 5:
        return "just now"
    size, unit = next(((size, unit) for below, size, unit in _STEPS if distance < below), (86400 * 365, "years"))
    text = f"{distance // size} {unit}"
    return f"in {text}" if seconds < 0 else f"{text} ago"


@register.filter
def ago(at: datetime | None) -> str | SafeString:
    """Relative time, with the exact one in UTC on hover."""
    if at is None:
        return "–"
    return format_html(
        '<time datetime="{}" title="{} UTC" data-ago>{}</time>',
        at.isoformat(),
        f"{at:%Y-%m-%d %H:%M:%S}",
        ago_text(at, timezone.now()),
    )


@register.filter
def usd(micros: float | None) -> str:
    """Of what was agreed on: as `usd_of_picos` shows it."""
    return usd_of_picos(None if micros is None else round(micros * PICOS_A_MICRO))


@register.filter
def usd_of_picos(picos: int | None) -> str:
    """Of what was spent: two decimals, four below a dollar, and exactly where four would say nothing."""
    if picos is None:
        return "–"
    value, sign = abs(picos), "-" if picos < 0 else ""
    if 0 < value < PICOS_A_USD // 10_000:
        return f"{sign}${picos_to_usd(value)}"
    decimals = 2 if value >= PICOS_A_USD or value == 0 else 4
    # Half up, in whole numbers: a float has no room for all of them.
    units = (value * 10**decimals * 2 + PICOS_A_USD) // (2 * PICOS_A_USD)
    whole, rest = divmod(units, 10**decimals)
    return f"{sign}${whole:,}.{rest:0{decimals}d}"


@register.filter
def price(micros: int | None) -> str:
    """Of a million tokens: exactly, with two decimals at least."""
    return "–" if micros is None else f"${micros_to_usd(micros)}"


@register.filter
def exact_usd(picos: int | None) -> str:
    """To the last pico-dollar."""
    return "–" if picos is None else f"{'−' if picos < 0 else ''}${picos_to_usd(abs(picos))}"


@register.filter
def country(code: str) -> str:
    return COUNTRIES.get(code, code)


@register.filter
def thousands(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


@register.filter
def ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


@register.filter
def seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f} s"


_DECIMALS = {"ratio": 3, "mean": 1}


@register.filter
def amount(value: Any, unit: str) -> str:
    """As numbers of that unit are shown: "usd" (micro-dollars), "ms", "ratio" (0 to 1), "mean" (of counts), or a count."""
    if unit in _DECIMALS:
        return "–" if value is None else f"{value:,.{_DECIMALS[unit]}f}"
    return usd(value) if unit == "usd" else ms(value) if unit == "ms" else thousands(value)


@register.filter
def percent(part: float, whole: float) -> str:
    return "–" if not whole else f"{100 * part / whole:.1f} %"


@register.filter
def words(value: str) -> str:
    return value.replace("_", " ").replace(".", " ")


@register.filter
def get(values: dict[str, Any], name: str) -> Any:
    return values.get(name)


@register.simple_tag(takes_context=True)
def with_query(context: dict[str, Any], **changed: Any) -> str:
    """This page's address with some of its query changed; empty values are left out."""
    request: HttpRequest = context["request"]
    query = request.GET.copy()
    for name, value in changed.items():
        if value in (None, ""):
            query.pop(name, None)
        else:
            query[name] = str(value)
    return "?" + query.urlencode()
