"""Operators: weights on nodes' disks, and what fits on a replica."""

from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from headway.errors import InvalidInput
from inference.api import weight_shapes as w
from inference.services.capacity import Asked, fits
from inference.services.registry import find_version
from inference.services.version_labels import version_label
from inference.services.weight_copies import stage_version
from inference.weight_models import WeightCopy
from tenants.api.base import OperatorView


class Weights(OperatorView):
    @extend_schema(operation_id="operator_weights_list", parameters=[w.CopiesAsked], responses=w.CopyShape(many=True))
    def get(self, _request: Request) -> Response:
        """Copies of versions' weights, the newest wanted first, with how far each is."""
        asked = self.read_query(w.CopiesAsked, is_paged=True)
        rows = WeightCopy.objects.filter(**asked).select_related("version__model")
        return self.page(rows, w.CopyShape, ordering=("-id",), prepare=copy_values)

    @extend_schema(operation_id="operator_weights_stage", request=w.NewCopies, responses={202: w.WantedOn})
    def post(self, _request: Request) -> Response:
        """Want a version on nodes before it is needed. What failed there, or was evicted, is tried again."""
        asked = self.read(w.NewCopies)
        version = find_version(asked["version"])
        nodes = stage_version(version=version, actor=self.actor, nodes=asked["nodes"])
        return Response(w.WantedOn({"version": str(version), "nodes": nodes}).data, status=202)


class Capacity(OperatorView):
    @extend_schema(operation_id="operator_capacity", request=w.CapacityAsked, responses=w.CapacityShape)
    def post(self, _request: Request) -> Response:
        """Weights, KV bytes a token, tokens of cache and sequences of one replica, or why it cannot fit. Nothing is changed."""
        asked = self.read(w.CapacityAsked)
        if asked.get("model", "").startswith(("/", ".")):
            raise InvalidInput("a version is named by its model's public id, or NAME:v2", param="model")
        return Response(w.CapacityShape(vars(fits(Asked(**asked), weights=settings.HOME.weights))).data)


def copy_values(row: WeightCopy) -> dict[str, Any]:
    names = ("id", "node", "state", "reason", "bytes_done", "bytes_total", "digest", "last_used_at", "keep_until", "changed_at")
    version = row.version
    known = {name: getattr(row, name) for name in names}
    return {**known, "model": version.model.public_id, "version": version_label(version)}
