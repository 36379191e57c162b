"""People with an e-mail address that counts as verified, made without their asking: for what `make up` sets up."""

import contextlib
from typing import Any

from allauth.account.models import EmailAddress
from django.contrib.auth import get_user_model
from django.db import transaction

from tenants.access import Role
from tenants.errors import AlreadyMember
from tenants.services.members import add_member


def ensure_demo_member(*, email: str, password: str, tenant: Any) -> Any:
    """An owner of the tenant who can log in; made with this password if there is none, else left as they are."""
    with transaction.atomic():
        user, is_new = get_user_model().objects.get_or_create(username=email, defaults={"email": email})
        if is_new:
            user.set_password(password)
            user.save(update_fields=["password"])
            EmailAddress.objects.create(user=user, email=email, verified=True, primary=True)
        with contextlib.suppress(AlreadyMember):
            add_member(tenant=tenant, user=user, role=Role.OWNER, actor="command:up")
    return user
