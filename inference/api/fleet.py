"""Operators: zones with their nodes and replicas; cordon, drain, restart."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from inference.api import fleet_shapes as f
from inference.services.fleet_reads import drain_rows, fleet_by_zone, newest_drain
from inference.services.moving import drain_replica, restart_replica
from inference.services.nodes import set_cordon
from inference.services.zones import drain_zone, undrain_zone
from tenants.api.base import OperatorView


class Fleet(OperatorView):
    @extend_schema(operation_id="operator_fleet_read", responses=f.ZoneShape(many=True))
    def get(self, _request: Request) -> Response:
        """By zone, node and replica: what each does now, as node agents told it a moment ago."""
        return self.whole(fleet_by_zone(), f.ZoneShape)


class Cordons(OperatorView):
    @extend_schema(operation_id="operator_cordons_set", request=f.CordonAsked, responses=f.CordonAsked)
    def put(self, _request: Request) -> Response:
        """Keep new replicas off a node, or let them on again."""
        asked = self.read(f.CordonAsked)
        set_cordon(**asked, actor=self.actor)
        return Response(asked)


class Moves(OperatorView):
    @extend_schema(operation_id="operator_moves_create", request=f.MoveAsked, responses={201: f.MoveShape})
    def post(self, _request: Request) -> Response:
        """Another replica in this one's place: the new one first, wherever there is room for two."""
        asked, is_gapless = self.read(f.MoveAsked), True
        if asked["kind"] == "drain":
            new = drain_replica(replica_id=asked["replica"], actor=self.actor)
        else:
            new, is_gapless = restart_replica(replica_id=asked["replica"], actor=self.actor)
        made = {"replica": asked["replica"], "replaced_by": new, "is_gapless": is_gapless}
        return Response(f.MoveShape(made).data, status=201)


class Drains(OperatorView):
    @extend_schema(operation_id="operator_drains_list", responses=f.DrainShape(many=True))
    def get(self, _request: Request) -> Response:
        """Drains of zones with their proof, newest first."""
        return self.page(drain_rows(), f.DrainShape, ordering=("-id",))

    @extend_schema(operation_id="operator_drains_create", request=f.NewDrain, responses={202: f.DrainShape})
    def post(self, _request: Request) -> Response:
        """Empty a zone. Refused, with the numbers, where the others cannot carry it."""
        asked = self.read(f.NewDrain)
        drain_zone(zone=asked["zone"], is_forced=asked["force"], actor=self.actor)
        return Response(f.DrainShape(newest_drain(asked["zone"])).data, status=202)


class Undrains(OperatorView):
    @extend_schema(operation_id="operator_undrains_create", request=f.ZoneNamed, responses=f.ZoneNamed)
    def post(self, _request: Request) -> Response:
        """Let replicas into a zone again; a drain under way is cancelled, and what has not left yet stays."""
        asked = self.read(f.ZoneNamed)
        undrain_zone(zone=asked["zone"], actor=self.actor)
        return Response(asked)
