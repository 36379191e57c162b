"""Is the site able to work? `/healthz`: the process answers. `/readyz`: its database does too."""

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse


def healthz(_request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


def readyz(_request: HttpRequest) -> JsonResponse:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return JsonResponse({"status": "unavailable", "reason": "the database does not answer"}, status=503)
    return JsonResponse({"status": "ok"})
