"""The options of `rollout create`, and what a rollout is made of by them."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from inference.policy.rollout import PPM
from inference.services.rollouts.operating import DEFAULT_WINDOW_S
from inference.services.rollouts.plans import DEFAULT_SAMPLES, DEFAULT_SHARES_PPM, DEFAULT_STEP_S, GATE_NAMES

OFF = "off"


def add_create_arguments(parser: ArgumentParser) -> None:
    shares = ",".join(f"{share / 10_000:g}" for share in DEFAULT_SHARES_PPM)
    parser.add_argument("model", help="the model's public id")
    parser.add_argument("--to", required=True, help="the version that is to be stable, such as v2")
    parser.add_argument("--steps", type=_shares, default=list(DEFAULT_SHARES_PPM), help=f"per cent of the traffic ({shares})")
    parser.add_argument("--step-s", type=int, default=DEFAULT_STEP_S, help=f"how long each lasts at least ({DEFAULT_STEP_S})")
    parser.add_argument(
        "--min-samples", type=int, default=DEFAULT_SAMPLES, help=f"requests of the candidate at each ({DEFAULT_SAMPLES})"
    )
    parser.add_argument("--shadow-percent", type=_share, help="of the requests, mirrored before anybody gets its answers")
    parser.add_argument("--shadow-usd", type=_micros, help="what the mirrored requests may cost")
    parser.add_argument(
        "--gate",
        type=_gate,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"or NAME={OFF} (repeatable); names: {', '.join(GATE_NAMES)}",
    )
    parser.add_argument(
        "--window-s",
        type=int,
        default=DEFAULT_WINDOW_S,
        help=f"the old version is kept warm after promotion ({DEFAULT_WINDOW_S})",
    )
    parser.add_argument("--kept-warm", type=int, help="of its replicas; all if left out")
    parser.add_argument("--at", type=_time, help="start at this time, such as 2027-01-31T04:00 (UTC)")
    parser.add_argument("--start", action="store_true", help="start it at once")


def schedule_from(options: dict[str, Any]) -> dict[str, Any]:
    step = {"min_duration_s": options["step_s"], "min_samples": options["min_samples"]}
    shadow = None
    if options["shadow_percent"] or options["shadow_usd"]:
        shadow = {"share_ppm": options["shadow_percent"] or 0, "max_usd_micros": options["shadow_usd"] or 0, **step}
    return {"steps": [{"share_ppm": share, **step} for share in options["steps"]], "shadow": shadow}


def _share(text: str) -> int:
    """Per cent, as millionths."""
    try:
        ppm = Decimal(text.strip()) * 10_000
    except ArithmeticError:  # no number, or beyond all numbers
        raise ArgumentTypeError(f"a number of per cent, not {text!r}") from None
    if not ppm.is_finite() or not 0 <= ppm <= PPM or ppm != ppm.to_integral_value():
        raise ArgumentTypeError(f"from 0 to 100 per cent, with at most four decimals, not {text!r}")
    return int(ppm)


def _shares(text: str) -> list[int]:
    return [_share(each) for each in text.split(",")]


def _micros(text: str) -> int:
    try:
        micros = Decimal(text) * 1_000_000
    except ArithmeticError:
        raise ArgumentTypeError(f"US dollars, not {text!r}") from None
    if not micros.is_finite() or micros < 0 or micros != micros.to_integral_value():
        raise ArgumentTypeError(f"US dollars with at most six decimals, not {text!r}")
    return int(micros)


def _gate(text: str) -> tuple[str, float | int | None]:
    name, has_value, value = text.partition("=")
    if not has_value:
        raise ArgumentTypeError(f"NAME=VALUE, not {text!r}")
    if value == OFF:
        return name, None
    try:
        number = float(value)
    except ValueError:
        raise ArgumentTypeError(f"{name} is a number or {OFF}, not {value!r}") from None
    return name, int(number) if number.is_integer() else number


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"a time such as 2027-01-31T04:00, not {text!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
