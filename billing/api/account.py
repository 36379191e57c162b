"""Who is billed, what the next invoice says so far, credit, prices."""

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api import shapes
from billing.api.values import TOP_UP_AMOUNTS, grant_values, line_values, price_values, top_up_values
from billing.models import Grant
from billing.selectors import every_price_in_force
from billing.services.accounts import billing_account
from billing.services.balance_reads import balance_of
from billing.services.balances import MAX_GRANT_MICROS
from billing.services.open_months import open_month
from billing.services.own_account import change_own_account
from billing.services.statements import draft_statement
from billing.services.top_ups import set_top_up, top_up_of
from headway.currencies import minor_to_text
from headway.money import MICROS_A_USD, picos_to_usd, usd_to_micros
from inference.selectors import model_ids
from tenants.access import Action
from tenants.api.base import TenantView
from tenants.selectors import plan_of


class Account(TenantView):
    actions = {"GET": Action.VIEW_BILLING, "PUT": Action.MANAGE_BILLING}

    @extend_schema(operation_id="billing_account_read", responses=shapes.AccountShape)
    def get(self, _request: Request, tenant: str) -> Response:
        return Response(shapes.AccountShape(billing_account(self.standing.tenant.id)).data)

    @extend_schema(operation_id="billing_account_set", request=shapes.AccountFields, responses=shapes.AccountShape)
    def put(self, _request: Request, tenant: str) -> Response:
        """What is not named stays. It holds from the next invoice on."""
        asked = self.read(shapes.AccountFields)
        account = change_own_account(tenant_id=self.standing.tenant.id, actor=self.standing.actor, **asked)
        return Response(shapes.AccountShape(account).data)


class NextInvoice(TenantView):
    actions = {"GET": Action.VIEW_BILLING}

    @extend_schema(operation_id="billing_next_invoice", responses=shapes.NextInvoiceShape)
    def get(self, _request: Request, tenant: str) -> Response:
        """The month that runs, as the ledger has it now, line by line."""
        now, owner = timezone.now(), self.standing.tenant
        month = open_month(owner.id, now, owner.time_zone, now=now)
        draft = draft_statement(owner.id, month, now=now, zone=owner.time_zone)
        currency = draft.money.currency
        sums = {"subtotal": draft.subtotal_minor, "tax": draft.tax_minor, "total": draft.total_minor}
        values = {
            **{name: getattr(draft, name) for name in ("month", "time_zone", "starts_at", "ends_at")},
            "as_of": now,
            "currency": currency,
            "lines": [line_values(line, currency, position=place) for place, line in enumerate(draft.lines, start=1)],
            "ledger_usd": picos_to_usd(draft.ledger_picos),
            **{name: minor_to_text(minor, currency) for name, minor in sums.items()},
        }
        return Response(shapes.NextInvoiceShape(values).data)


class Balance(TenantView):
    actions = {"GET": Action.VIEW_BILLING}

    @extend_schema(operation_id="billing_balance_read", responses=shapes.BalanceShape)
    def get(self, _request: Request, tenant: str) -> Response:
        now = timezone.now()
        view = balance_of(self.standing.tenant.id, now=now)
        values = {
            "is_prepaid": view.is_prepaid,
            "left_usd": picos_to_usd(view.left_picos),
            "held_usd": picos_to_usd(view.held_picos),
            "overdrawn_usd": picos_to_usd(view.overdrawn_picos),
            "next_expiry_at": view.next_expiry_at,
            "next_expiry_usd": picos_to_usd(view.next_expiry_picos),
            "as_of": now,
        }
        return Response(shapes.BalanceShape(values).data)


class Grants(TenantView):
    actions = {"GET": Action.VIEW_BILLING}

    @extend_schema(operation_id="billing_grants_list", responses=shapes.GrantShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Credit that was given or paid in advance, newest first; used up and expired too."""
        rows = Grant.objects.filter(tenant_id=self.standing.tenant.id)
        return self.page(rows, shapes.GrantShape, ordering=("-created_at", "id"), prepare=grant_values)


class TopUps(TenantView):
    actions = {"GET": Action.VIEW_BILLING, "PUT": Action.MANAGE_BILLING}

    @extend_schema(operation_id="billing_top_up_read", responses=shapes.TopUpShape)
    def get(self, _request: Request, tenant: str) -> Response:
        """How a balance is to be filled by itself. It is kept; nothing is charged yet."""
        return Response(shapes.TopUpShape(top_up_values(top_up_of(self.standing.tenant.id))).data)

    @extend_schema(operation_id="billing_top_up_set", request=shapes.TopUpFields, responses=shapes.TopUpShape)
    def put(self, _request: Request, tenant: str) -> Response:
        """When less than the threshold is left, by the amount, and by no more than the cap in a month."""
        asked = self.read(shapes.TopUpFields)
        most = MAX_GRANT_MICROS // MICROS_A_USD
        micros = {
            f"{name}_micros": usd_to_micros(asked[f"{name}_usd"], param=f"{name}_usd", max_usd=most) for name in TOP_UP_AMOUNTS
        }
        kept = set_top_up(
            tenant_id=self.standing.tenant.id, is_enabled=asked["is_enabled"], actor=self.standing.actor, **micros
        )
        return Response(shapes.TopUpShape(top_up_values(kept)).data)


class Prices(TenantView):
    actions = {"GET": Action.VIEW_TENANT}

    @extend_schema(operation_id="prices_list", responses=shapes.PricesShape)
    def get(self, _request: Request, tenant: str) -> Response:
        """List prices of every model that has one: those in force, and those that will be."""
        now = timezone.now()
        prices = [
            price_values(price, is_in_force=price.effective_from <= now) for price in every_price_in_force(model_ids(), now=now)
        ]
        plan = plan_of(self.standing.tenant)
        return Response(shapes.PricesShape({"discount_percent": plan.discount_percent, "results": prices}).data)
