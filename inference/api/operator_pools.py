"""Operators: pools, how they scale, and what the autoscaler decided."""

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from inference.api.shapes import DecisionsAsked, DecisionShape, PoolChange, PoolShape
from inference.services.pool_overview import PoolOverview, decisions_of, pools_overview
from inference.services.pools import set_pool
from tenants.api.base import OperatorView


class Pools(OperatorView):
    @extend_schema(operation_id="operator_pools_list", responses=PoolShape(many=True))
    def get(self, _request: Request) -> Response:
        """By model."""
        return self.whole(pools_overview(None), PoolShape)


class OnePool(OperatorView):
    @extend_schema(operation_id="operator_pools_get", responses=PoolShape)
    def get(self, _request: Request, pool_id: int) -> Response:
        return Response(PoolShape(_pool(pool_id)).data)

    @extend_schema(operation_id="operator_pools_change", request=PoolChange, responses=PoolShape)
    def patch(self, _request: Request, pool_id: int) -> Response:
        """Gateways and the autoscaler know within seconds; warm replicas are asked for at once."""
        set_pool(public_id=_pool(pool_id).model, changes=self.read(PoolChange), actor=self.actor)
        return Response(PoolShape(_pool(pool_id)).data)


class Decisions(OperatorView):
    @extend_schema(operation_id="operator_scaling_list", parameters=[DecisionsAsked], responses=DecisionShape(many=True))
    def get(self, _request: Request) -> Response:
        """Newest first."""
        pool_id = self.read_query(DecisionsAsked, is_paged=True).get("pool")
        return self.page(decisions_of(pool_id), DecisionShape, ordering=("-id",))


def _pool(pool_id: int) -> PoolOverview:
    """Raises NotFound."""
    for one in pools_overview(None):
        if one.id == pool_id:
            return one
    raise NotFound("there is no such pool")
