"""What tenants add to the API (`headway.urls_api` puts it together)."""

from typing import Any

from django.urls import register_converter

from tenants.api import alerts, keys, members, operator_visits, plans, tenants, usage, webhooks


class IdConverter:
    """A row's number that every database can look for."""

    regex = "[0-9]{1,18}"

    def to_python(self, value: str) -> int:
        return int(value)

    def to_url(self, value: Any) -> str:
        return str(value)


register_converter(IdConverter, "id")

OF_TENANT = {
    "": tenants.OneTenant,
    "leave/": tenants.Leave,
    "transfer/": tenants.TransferOwnership,
    "members/": members.Members,
    "members/<id:user_id>/": members.OneMember,
    "invitations/": members.Invitations,
    "invitations/<uuid:invitation_id>/": members.OneInvitation,
    "invitations/<uuid:invitation_id>/resend/": members.ResendInvitation,
    "keys/": keys.Keys,
    "keys/<slug:key_id>/": keys.OneKey,
    "keys/<slug:key_id>/rotate/": keys.RotateKey,
    "keys/<slug:key_id>/disable/": keys.DisableKey,
    "keys/<slug:key_id>/enable/": keys.EnableKey,
    "plan/": plans.ChosenPlan,
    "plans/": plans.Plans,
    "plans/<slug:plan>/preview/": plans.PlanPreview,
    "limits/": plans.Limits,
    "usage/": usage.Usage,
    "requests/": usage.Requests,
    "requests/<slug:request_id>/": usage.OneRequest,
    "audit/": usage.Audit,
    "alert-mails/": alerts.AlertMails,
    "webhooks/": webhooks.Webhooks,
    "webhooks/<uuid:endpoint_id>/": webhooks.OneWebhook,
    "webhooks/<uuid:endpoint_id>/secret/": webhooks.RenewSecret,
    "webhooks/<uuid:endpoint_id>/test/": webhooks.TestWebhook,
    "deliveries/": webhooks.Deliveries,
    "deliveries/<uuid:delivery_id>/resend/": webhooks.Resend,
}
"""Below `tenants/<tenant>/`: every one is a TenantView (a test walks them all)."""

OF_OPERATORS: dict[str, Any] = {
    "visits/": operator_visits.Visits,
    "visits/end/": operator_visits.EndVisits,
}
"""Below `operator/`: every one is an OperatorView (a test walks them all)."""
