"""What is asked of a rollout: its steps, what is mirrored, its gates. Kept as JSON; read and checked here alone.

schedule  {"steps": [{"share_ppm", "min_duration_s", "min_samples"}, ...],
           "shadow": null or {"share_ppm", "min_duration_s", "min_samples", "max_usd_micros"}}
gates     the fields of inference.policy.rollout_gates.Gates that are no default; null: that gate is off
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any

from headway.errors import InvalidInput
from inference.policy.rollout import PPM, Plan, ShadowStep, Step
from inference.policy.rollout_gates import Gates

MAX_STEPS = 20
MAX_S = 30 * 24 * 3600
MAX_SAMPLES = 1_000_000
MAX_SHADOW_MICROS = 10**12
DEFAULT_SHARES_PPM = (10_000, 50_000, 250_000, 500_000)
DEFAULT_STEP_S = 300
DEFAULT_SAMPLES = 150
GATE_NAMES = tuple(field.name for field in fields(Gates))
_MAY_BE_OFF = {field.name for field in fields(Gates) if "None" in str(field.type)}
_AT_MOST = {"max_error_rise": 1, "max_length_rise": 1, "min_similarity": 1}


def default_schedule() -> dict[str, Any]:
    step = {"min_duration_s": DEFAULT_STEP_S, "min_samples": DEFAULT_SAMPLES}
    return {"steps": [{"share_ppm": share, **step} for share in DEFAULT_SHARES_PPM], "shadow": None}


def plan_of(schedule: Mapping[str, Any], gates: Mapping[str, Any]) -> Plan:
    """Raises InvalidInput for what a rollout could not be run by."""
    unknown = sorted(schedule.keys() - {"steps", "shadow"})
    if unknown:
        raise InvalidInput(f"a schedule has steps and shadow, not {unknown[0]!r}", param="schedule")
    return Plan(
        steps=_steps(schedule.get("steps")),
        gates=gates_of(gates),
        shadow=_shadow(schedule.get("shadow")),
    )


def gates_of(given: Mapping[str, Any]) -> Gates:
    """Raises InvalidInput."""
    for name, value in given.items():
        if name not in GATE_NAMES:
            raise InvalidInput(f"there is no gate {name!r}; there are {', '.join(GATE_NAMES)}", param="gates")
        if value is None and name in _MAY_BE_OFF:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidInput(f"{name} is a number{' or off' if name in _MAY_BE_OFF else ''}", param="gates")
        if not 0 <= value <= _AT_MOST.get(name, MAX_SAMPLES):
            raise InvalidInput(f"{name} is from 0 to {_AT_MOST.get(name, MAX_SAMPLES)}", param="gates")
        if name.endswith("_ratio") and value < 1:
            raise InvalidInput(f"{name} is at least 1: as slow as the stable version is", param="gates")
    gates = Gates(**given)
    if not 0.5 < gates.confidence < 1 or not gates.confidence <= gates.breach_confidence < 1:
        raise InvalidInput("0.5 < confidence <= breach_confidence < 1", param="gates")
    if gates.max_failed_starts < 1:
        raise InvalidInput("max_failed_starts is at least 1", param="gates")
    return gates


def gates_shown(gates: Gates) -> dict[str, Any]:
    return asdict(gates)


def _steps(given: Any) -> tuple[Step, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_STEPS:
        raise InvalidInput(f"a rollout has 1 to {MAX_STEPS} steps", param="steps")
    steps = tuple(
        Step(**_numbers(each, {"share_ppm": PPM - 1, "min_duration_s": MAX_S, "min_samples": MAX_SAMPLES})) for each in given
    )
    if any(step.share_ppm < 1 for step in steps) or any(a.share_ppm >= b.share_ppm for a, b in pairwise(steps)):
        raise InvalidInput("the steps' shares are above 0, below 100 %, and each is above the one before", param="steps")
    return steps


def _shadow(given: Any) -> ShadowStep | None:
    if given is None:
        return None
    most = {"share_ppm": PPM, "min_duration_s": MAX_S, "min_samples": MAX_SAMPLES, "max_usd_micros": MAX_SHADOW_MICROS}
    step = ShadowStep(**_numbers(given, most))
    if not step.share_ppm or not step.max_usd_micros:
        raise InvalidInput("what is mirrored has a share and may cost something; leave shadow out to skip it", param="shadow")
    return step


def _numbers(given: Any, most: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(given, dict) or given.keys() != most.keys():
        raise InvalidInput(f"a step has {', '.join(most)}", param="steps")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most[name]:
            raise InvalidInput(f"{name} is a whole number from 0 to {most[name]}", param="steps")
    return dict(given)
