"""One engine's own token counters, told to the registry for reconciliation; and how many of them are ours."""

import time
from datetime import UTC, datetime
from pathlib import Path

from inference.node.own_work import OwnTokens, OwnWork
from inference.node.probes import Look
from inference.node.tools import Tools
from inference.services.engine_counters import Count

BUSY_FACTOR = 10
"""An engine that is never idle is counted so many times as seldom: what is under way then makes the figures vague."""


class Counting:
    """`begin` or `go_on` with each engine; `seen` with each look at a ready one."""

    def __init__(self, tools: Tools, replica_id: str) -> None:
        self._tools, self._replica = tools, replica_id
        self.own: OwnWork | None = None
        self._epoch = 0
        self._told_s: float | None = None

    def begin(self, epoch: int) -> None:
        """An engine is about to be started."""
        self.own = OwnWork(self._path, OwnTokens(epoch=epoch, began_at_s=time.time()))
        self._epoch, self._told_s = epoch, None

    def go_on(self, epoch: int) -> None:
        """One that an earlier agent started."""
        self.own = OwnWork.found(self._path, epoch=epoch)
        self._epoch, self._told_s = epoch, None

    def seen(self, look: Look, *, now_s: float) -> None:
        """Tell it if it is time to. Not where a request of ours was under way: that may be counted or not."""
        if (
            look.load is None
            or look.canary is not None
            or not self._is_due(look.load.num_running + look.load.num_waiting, now_s)
        ):
            return
        count = self._count(look)
        if count is not None and self._tools.link.count(count):
            self._told_s = now_s

    def last(self, look: Look) -> None:
        """Before its engine is ended."""
        count = self._count(look)
        if count is not None:
            self._tools.link.count(count)

    def _is_due(self, num_open: int, now_s: float) -> bool:
        every_s = self._tools.settings.count_every_s
        return self._told_s is None or now_s - self._told_s >= every_s * (BUSY_FACTOR if num_open else 1)

    def _count(self, look: Look) -> Count | None:
        load, own = look.load, self.own.tokens if self.own is not None else None
        if load is None or load.prompt_tokens is None or load.completion_tokens is None:
            return None
        return Count(
            replica=self._replica,
            epoch=self._epoch,
            prompt_tokens=load.prompt_tokens,
            completion_tokens=load.completion_tokens,
            counted_from=datetime.fromtimestamp(look.from_s, UTC),
            counted_at=datetime.fromtimestamp(look.until_s, UTC),
            open_requests=load.num_running + load.num_waiting,
            is_whole=own is not None,
            began_at=datetime.fromtimestamp(own.began_at_s, UTC) if own is not None else None,
            own_prompt_tokens=own.prompt_tokens if own is not None else 0,
            own_completion_tokens=own.completion_tokens if own is not None else 0,
            own_max_prompt_tokens=own.max_prompt_tokens if own is not None else 0,
            own_max_completion_tokens=own.max_completion_tokens if own is not None else 0,
        )

    @property
    def _path(self) -> Path:
        return self._tools.files.own / f"{self._replica}.json"
