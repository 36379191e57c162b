"""What views of the API have in common: who may, pages of lists, one form of errors."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.db import DataError
from rest_framework.exceptions import MethodNotAllowed, NotAuthenticated, NotFound, ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.pagination import CursorPagination
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from headway.errors import InvalidInput
from tenants.access import Action
from tenants.api.callers import AUTHENTICATION, Standing, standing_in
from tenants.api.errors import SecondFactorNeeded, SessionNeeded
from tenants.errors import NotAllowed
from tenants.models import ApiKey, User
from tenants.selectors import is_operator
from tenants.services.second_factor import owes_second_factor

PAGING = ("cursor", "page_size")
READING = frozenset({"GET", "HEAD"})


class BodyParser(JSONParser):
    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        """Raises ParseError."""
        try:
            return super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("JSON parse error - it is nested too deep") from None


class HeadwayView(APIView):
    authentication_classes = AUTHENTICATION
    permission_classes = ()
    parser_classes = (BodyParser,)
    renderer_classes = (JSONRenderer,)
    http_method_names: tuple[str, ...] = (
        "get",
        "head",
        "post",
        "put",
        "patch",
        "delete",
    )  # OPTIONS would tell a stranger what there is

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Nobody between keeps an answer: some hold a key that is shown once."""
        final: Response = super().finalize_response(request, response, *args, **kwargs)
        final.headers.setdefault("cache-control", "no-store")
        return final

    def read(self, shape: type[Serializer], *, partial: bool = False) -> dict[str, Any]:
        """The body, checked. Raises ValidationError."""
        serializer = shape(data=self.request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        found: dict[str, Any] = dict(serializer.validated_data)
        return found

    def read_query(self, shape: type[Serializer], *, is_paged: bool = False) -> dict[str, Any]:
        """What the address asks. Raises ValidationError; InvalidInput for what is none of its parameters."""
        serializer = shape(data=self.request.query_params.dict())
        known = [*serializer.fields, *(PAGING if is_paged else ())]
        unknown = next((name for name in self.request.query_params if name not in known), None)
        if unknown is not None:
            raise InvalidInput(f"{unknown[:50]!r} is no parameter; there are {', '.join(known)}", param=unknown[:50])
        serializer.is_valid(raise_exception=True)
        found: dict[str, Any] = dict(serializer.validated_data)
        return found

    def whole(self, rows: Iterable[Any], shape: type[Serializer]) -> Response:
        """All of a list that is short by its nature, in the form of a page: there is no other one."""
        return Response({"next": None, "previous": None, "results": shape(rows, many=True).data})

    def page(
        self,
        rows: Any,
        shape: type[Serializer],
        *,
        ordering: tuple[str, ...],
        prepare: Callable[[Any], Any] | None = None,
        prepare_all: Callable[[Iterable[Any]], Iterable[Any]] | None = None,
    ) -> Response:
        """A page of a queryset, newest (or as ordered) first, with the links to the next and the one before.

        `prepare`: a row at a time; `prepare_all`: those of the page together, where they share queries.
        """
        paginator = Pages()
        paginator.ordering = ordering
        found: Iterable[Any] = paginator.paginate_queryset(rows, self.request, view=self)
        together = prepare_all(found) if prepare_all else found
        prepared = [prepare(each) for each in together] if prepare else together
        answer: Response = paginator.get_paginated_response(shape(prepared, many=True).data)
        return answer


class TenantView(HeadwayView):
    """Below `/api/v1/tenants/<tenant>/`. Fails closed: a method without an action is refused to everybody."""

    actions: ClassVar[dict[str, Action]] = {}
    """What a caller must be allowed, for each method ("GET" stands for HEAD too)."""
    standing: Standing

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.standing = standing_in(request, kwargs["tenant"])
        action = self.actions.get("GET" if request.method == "HEAD" else str(request.method))
        if action is None:
            raise MethodNotAllowed(str(request.method))
        self.standing.check(action)
        if self.standing.tenant.suspended_at is not None and request.method not in READING:
            raise NotAllowed(f"{self.standing.tenant.name} is suspended: ask our support")


class OperatorView(HeadwayView):
    """Below `/api/v1/operator/`: for operators in a session, as their pages are, with the second factor where the account has
    one. A key is a tenant's, and opens nothing.
    """

    operator: User
    actor: str
    """As the audit log names them."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raises NotAuthenticated, SessionNeeded, NotAllowed, SecondFactorNeeded."""
        super().initial(request, *args, **kwargs)
        self.operator = person_of(request)
        if not is_operator(self.operator):
            raise NotAllowed("only operators may do that")
        if owes_second_factor(request._request):
            raise SecondFactorNeeded(
                "your account has a second factor: give it at /accounts/2fa/reauthenticate/, or log in anew"
            )
        if not hasattr(self, str(request.method).lower()):
            raise MethodNotAllowed(str(request.method))
        self.actor = f"operator:{self.operator}"


def person_of(request: Request) -> User:
    """Raises NotAuthenticated, SessionNeeded."""
    if isinstance(request.auth, ApiKey):
        raise SessionNeeded("a person does that, logged in; a key cannot")
    if not isinstance(request.user, User):
        raise NotAuthenticated
    return request.user


class AsItIs(BaseContentNegotiation):
    """Of files: whatever a client says it takes. Errors are JSON."""

    def select_parser(self, _request: Any, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, _request: Any, renderers: Any, _suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class Pages(CursorPagination):
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        """Raises NotFound for a cursor that is none of ours."""
        try:
            return super().paginate_queryset(queryset, request, view)
        except (ValueError, TypeError, OverflowError, ValidationError, DataError):
            raise NotFound("this cursor is none of ours: begin without one") from None
