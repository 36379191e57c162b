"""Operators: the fleet by zone, node and replica; drain, restart, cordon, logs."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from dashboard.confirming import is_confirmed
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_fleet import TONES, fleet_page, node_named, replica_page, zone_page
from dashboard.telling import telling
from inference.selectors import brain_seen_now
from inference.services.log_tails import ask_for_log
from inference.services.lost_nodes import forget_node
from inference.services.moving import drain_replica, restart_replica
from inference.services.nodes import set_cordon
from inference.services.zones import drain_zone, undrain_zone


@require_GET
@operators_only
def fleet(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/fleet.html", {"page": fleet_page(brain_seen_now()), "tones": TONES})


@require_GET
@operators_only
def zone(request: HttpRequest, zone: str) -> HttpResponse:
    return render(request, "operator/zone.html", {"page": zone_page(zone), "tones": TONES})


@require_POST
@operators_only
def drain(request: HttpRequest, zone: str) -> HttpResponse:
    name = zone_page(zone).zone.name
    if is_confirmed(request, name):
        with telling(request, f"Zone {name} is being emptied: replacements first"):
            drain_zone(zone=name, actor=actor_of(request), is_forced=request.POST.get("force") == "yes")
    return redirect("operator_zone", name)


@require_POST
@operators_only
def undrain(request: HttpRequest, zone: str) -> HttpResponse:
    name = zone_page(zone).zone.name
    with telling(request, f"Zone {name} takes replicas again"):
        undrain_zone(zone=name, actor=actor_of(request))
    return redirect("operator_zone", name)


@require_POST
@operators_only
def cordon(request: HttpRequest, node: str) -> HttpResponse:
    """On, or off where the form says so."""
    found, is_on = node_named(node), request.POST.get("cordon") == "yes"
    done = "gets no new replica; what runs there goes on" if is_on else "takes replicas again"
    with telling(request, f"{found.name} {done}"):
        set_cordon(node=found.name, is_cordoned=is_on, actor=actor_of(request))
    return redirect("operator_fleet")


@require_POST
@operators_only
def forget(request: HttpRequest, node: str) -> HttpResponse:
    found = node_named(node)
    if is_confirmed(request, found.name):
        with telling(request, f"{found.name} is forgotten"):
            forget_node(node=found.name, actor=actor_of(request))
    return redirect("operator_fleet")


@require_GET
@operators_only
def replica(request: HttpRequest, replica: str) -> HttpResponse:
    return render(request, "operator/replica.html", {"page": replica_page(replica), "tones": TONES})


@require_POST
@operators_only
def move(request: HttpRequest, replica: str) -> HttpResponse:
    if is_confirmed(request, replica):
        with telling(request, "Another one is started elsewhere; this one goes once that one serves"):
            drain_replica(replica_id=replica, actor=actor_of(request))
    return redirect("operator_replica", replica)


@require_POST
@operators_only
def restart(request: HttpRequest, replica: str) -> HttpResponse:
    if is_confirmed(request, replica):
        with telling(request, "A new engine is started in its place"):
            restart_replica(replica_id=replica, actor=actor_of(request))
    return redirect("operator_replica", replica)


@require_POST
@operators_only
def log(request: HttpRequest, replica: str) -> HttpResponse:
    with telling(request, "Its node was asked for the log"):
        ask_for_log(replica_id=replica)
    return redirect("operator_replica", replica)
