"""People with an e-mail address that counts as verified, made without their asking: for what `make up` sets up."""

import contextlib
from typing import Any

from allauth.account.models import EmailAddress
from django.contrib.auth import get_user_model
from django.db import transaction

from dashboard.accounts import made_up_username
from tenants.access import Role
from tenants.errors import AlreadyMember
from tenants.services.members import add_member


def ensure_demo_member(*, email: str, password: str, tenant: Any) -> Any:
    """An owner of the tenant who can log in; made with this password if there is none, else left as they are."""
    with transaction.atomic():
        user = get_user_model().objects.filter(email__iexact=email).first()
        if user is None:
            user = get_user_model().objects.create_user(made_up_username(), email, password)
            EmailAddress.objects.create(user=user, email=email, verified=True, primary=True)
        with contextlib.suppress(AlreadyMember):
            add_member(tenant=tenant, user=user, role=Role.OWNER, actor="command:up")
    return user
