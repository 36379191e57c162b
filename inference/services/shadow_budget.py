"""What mirrored requests of a rollout may cost: gateways take parts of it before they spend, so the sum is never above the cap.

`rollout` is the salt that gateways know it by: its number.
"""

from django.db.models import F

from inference.rollout_models import Rollout

_TRIES = 5


def take_shadow_part(*, rollout: str, micros: int) -> int:
    """Take up to `micros` of what is left. Returns how many there were: 0 where nothing is, or nothing is mirrored now.

    What a caller never hears of, because the database went away, is spent as far as the cap goes.
    """
    rows = Rollout.objects.filter(pk=int(rollout), shadow_share_ppm__gt=0)
    for _ in range(_TRIES):
        left = rows.values_list("shadow_micros_left", flat=True).first() or 0
        given = min(left, micros)
        if given <= 0:
            return 0
        if rows.filter(shadow_micros_left=left).update(shadow_micros_left=F("shadow_micros_left") - given):
            return given
    return 0  # others were quicker each time: the next round asks again


def give_back_shadow_part(*, rollout: str, micros: int) -> None:
    """What was taken and not spent."""
    Rollout.objects.filter(pk=int(rollout)).update(shadow_micros_left=F("shadow_micros_left") + micros)
