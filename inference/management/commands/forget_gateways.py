from typing import Any

from django.utils import timezone

from headway.command import HeadwayCommand
from inference.services.feed_progress import forget_silent_gateways


class Command(HeadwayCommand):
    help = (
        "Say that gateways which have not been seen for a minute are dead. Needed after the loss of a machine with more than "
        "half of the gateways: until then a dispatcher elsewhere grants nothing, as they might go on with the one they had."
    )

    def handle(self, *, json: bool, **_options: Any) -> None:
        names = forget_silent_gateways(now=timezone.now())
        self.print_result("\n".join(names) or "none", {"forgotten": names}, as_json=json)
