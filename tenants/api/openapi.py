"""How the OpenAPI document is made from the views."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

ERROR = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorShape"}}}}


_TEXT_OR_NULL = {"type": ["string", "null"]}
ERROR_SHAPE = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _TEXT_OR_NULL,
                "code": _TEXT_OR_NULL,
            },
        }
    },
}
PAGE_PARAMETERS = [
    {"in": "query", "name": "cursor", "schema": {"type": "string"}, "description": "From `next` or `previous` of a page."},
    {"in": "query", "name": "page_size", "schema": {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}},
]


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "tenants.api.callers.KeyAuthentication"
    name = "api_key"

    def get_security_definition(self, _auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key with the scope that the call needs."}


class HeadwaySchema(AutoSchema):
    """One that knows our lists: views without a queryset, each page cut by a cursor."""

    def _is_list_view(self, serializer: Any = None) -> bool:
        return bool(getattr(serializer, "many", False))

    def _get_paginator(self) -> Any:
        from tenants.api.base import Pages

        return Pages()

    def get_tags(self) -> list[str]:
        return [self.get_operation_id().partition("_")[0]]


def with_common_parts(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Every operation may answer with an error of the one shape; every list takes a cursor and a size."""
    result["components"]["schemas"]["ErrorShape"] = ERROR_SHAPE
    for path in result["paths"].values():
        for operation in path.values():
            operation["responses"]["4XX"] = {"description": "What is wrong, in one shape.", **ERROR}
            operation["responses"]["503"] = {"description": "The database is away: retry after `retry-after`.", **ERROR}
            if "/Paginated" in str(operation["responses"].get("200")):
                operation["parameters"] = [*operation.get("parameters", []), *PAGE_PARAMETERS]
    return result
