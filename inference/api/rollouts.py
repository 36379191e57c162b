"""Operators: releases over REST, by the same services as pages and commands."""

from collections.abc import Callable
from typing import Any, ClassVar

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from headway.errors import InvalidInput
from inference.api import rollout_shapes as shapes
from inference.rollout_models import Rollout
from inference.services.rollouts.approving import approve_rollout
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import (
    abort_rollout,
    create_rollout,
    pause_rollout,
    promote_rollout,
    resume_rollout,
    roll_back_rollout,
    start_rollout,
)
from inference.services.rollouts.reading import event_shown, every_event, rollouts, shown
from inference.services.version_labels import version_label
from tenants.api.base import OperatorView


class Rollouts(OperatorView):
    @extend_schema(
        operation_id="operator_rollouts_list", parameters=[shapes.RolloutsAsked], responses=shapes.RolloutShape(many=True)
    )
    def get(self, _request: Request) -> Response:
        """Newest first."""
        asked, now = self.read_query(shapes.RolloutsAsked, is_paged=True), timezone.now()
        is_open = asked["state"] == "open" if "state" in asked else None
        rows = rollouts(public_id=asked.get("model", ""), is_open=is_open)
        return self.page(rows, shapes.RolloutShape, ordering=("-id",), prepare=lambda rollout: shown(rollout, now=now))

    @extend_schema(operation_id="operator_rollouts_create", request=shapes.NewRollout, responses={201: shapes.RolloutShape})
    def post(self, _request: Request) -> Response:
        """A draft: nothing happens until it is started, or until its time."""
        asked = self.read(shapes.NewRollout)
        gates = {name: int(value) if value and value.is_integer() else value for name, value in asked.pop("gates").items()}
        public_id = asked.pop("model")
        return _answer(create_rollout(public_id=public_id, gates=gates, actor=self.actor, **asked), status=201)


class OneRollout(OperatorView):
    @extend_schema(operation_id="operator_rollouts_read", responses=shapes.RolloutShape)
    def get(self, _request: Request, rollout_id: int) -> Response:
        return _answer(rollout_numbered(rollout_id))


class RolloutEvents(OperatorView):
    @extend_schema(operation_id="operator_rollouts_events", responses=shapes.EventShape(many=True))
    def get(self, _request: Request, rollout_id: int) -> Response:
        """What happened, newest first, with the evidence it was decided on."""
        rows = every_event(rollout_numbered(rollout_id))
        return self.page(rows, shapes.EventShape, ordering=("-id",), prepare=event_shown)


class StartRollout(OperatorView):
    @extend_schema(operation_id="operator_rollouts_start", request=None, responses=shapes.RolloutShape)
    def post(self, _request: Request, rollout_id: int) -> Response:
        """Its weights are staged, and a replica is certified."""
        rollout = rollout_numbered(rollout_id)
        start_rollout(rollout=rollout, actor=self.actor)
        return _answer(rollout)


class PauseRollout(OperatorView):
    @extend_schema(operation_id="operator_rollouts_pause", request=shapes.RolloutReason, responses=shapes.RolloutShape)
    def post(self, _request: Request, rollout_id: int) -> Response:
        """Its share stays, its gates are watched, it goes no further."""
        rollout = rollout_numbered(rollout_id)
        pause_rollout(rollout=rollout, actor=self.actor, reason=self.read(shapes.RolloutReason)["reason"])
        return _answer(rollout)


class ResumeRollout(OperatorView):
    @extend_schema(operation_id="operator_rollouts_resume", request=None, responses=shapes.RolloutShape)
    def post(self, _request: Request, rollout_id: int) -> Response:
        """Where it was; its step is measured anew. One on its way back from promotion stays promoted."""
        rollout = rollout_numbered(rollout_id)
        resume_rollout(rollout=rollout, actor=self.actor)
        return _answer(rollout)


class TowardsAVersion(OperatorView):
    """What changes which version serves names it."""

    does: ClassVar[Callable[..., None]]
    is_forward: ClassVar[bool] = False

    def carry_out(self, rollout_id: int) -> Response:
        """Raises InvalidInput for a version that is not the one that would serve."""
        rollout, asked = rollout_numbered(rollout_id), self.read(shapes.Target)
        target = version_label(rollout.to_version if self.is_forward else rollout.from_version)
        if asked["version"] != target:
            raise InvalidInput(f"{target} would serve, not {asked['version']}", param="version")
        type(self).does(rollout=rollout, actor=self.actor, reason=asked["reason"])
        return _answer(rollout)


class ApproveRollout(TowardsAVersion):
    does = staticmethod(approve_rollout)
    is_forward = True

    @extend_schema(operation_id="operator_rollouts_approve", request=shapes.Target, responses=shapes.RolloutShape)
    def post(self, _request: Request, rollout_id: int) -> Response:
        """By an operator who did not make it: it is promoted once its steps are through. Where two persons are asked for."""
        return self.carry_out(rollout_id)


class PromoteRollout(TowardsAVersion):
    does = staticmethod(promote_rollout)
    is_forward = True

    @extend_schema(operation_id="operator_rollouts_promote", request=shapes.Target, responses=shapes.RolloutShape)
    def post(self, _request: Request, rollout_id: int) -> Response:
        """As soon as replicas enough of it serve, without waiting for what is left of its steps."""
        return self.carry_out(rollout_id)


class RollBackRollout(TowardsAVersion):
    does = staticmethod(roll_back_rollout)

    @extend_schema(operation_id="operator_rollouts_roll_back", request=shapes.Target, responses=shapes.RolloutShape)
    def post(self, _request: Request, rollout_id: int) -> Response:
        """To the version it came from; after promotion as long as that is kept warm."""
        return self.carry_out(rollout_id)


class AbortRollout(TowardsAVersion):
    does = staticmethod(abort_rollout)

    @extend_schema(operation_id="operator_rollouts_abort", request=shapes.Target, responses=shapes.RolloutShape)
    def post(self, _request: Request, rollout_id: int) -> Response:
        """Before it is promoted."""
        return self.carry_out(rollout_id)


def _answer(rollout: Rollout, status: int = 200) -> Response:
    found: dict[str, Any] = shown(rollout_numbered(rollout.pk), now=timezone.now())
    return Response(shapes.RolloutShape(found).data, status=status)
