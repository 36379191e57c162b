"""The Django admin over services: rows are read-only, and what may be made is made by a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.forms import ModelForm
from django.http import HttpRequest

from headway.errors import HeadwayError

# Django's class takes its parameter in the type stubs only.
if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


def admin_actor(request: HttpRequest) -> str:
    """Who the audit log names for a change made on an admin page."""
    return f"admin:{request.user}"


class AuditedAdmin(_ModelAdmin):
    """Nothing is edited or deleted here; `can_add` rows are made by `create`, whose errors become form errors."""

    can_add: ClassVar[bool] = False

    def create(self, request: HttpRequest, form: ModelForm[Any]) -> Model:
        raise NotImplementedError

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        base = super().get_form(request, obj, change, **kwargs)
        if change or not self.can_add:
            return base
        page = self

        class CreatingForm(base):  # type: ignore[misc, valid-type]
            """Calls the service while the form is checked, so that its refusal is shown beside the field it names."""

            def clean(self) -> dict[str, Any]:
                data: dict[str, Any] = super().clean() or self.cleaned_data
                if not self.errors:
                    try:
                        self.made = page.create(request, self)
                    except HeadwayError as error:
                        field = error.param if error.param in self.fields else None
                        raise ValidationError({field: error.message} if field else error.message) from error
                return data

            def _post_clean(self) -> None:
                """The service has made it and said what was wrong: Django would check it against itself."""

            def save(self, commit: bool = True) -> Model:
                self.save_m2m = lambda: None
                return self.made

        return CreatingForm

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """The service has saved it."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.can_add and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
