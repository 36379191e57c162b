"""The customers' pages. A tenant is named in the address, so that a link is a link and two tabs are two tenants."""

from allauth.account import views as account
from django.urls import include, path

from dashboard.accounts import limited
from dashboard.once import made_once
from dashboard.views import (
    audit,
    entrance,
    keys,
    limits,
    members,
    models,
    overview,
    playground,
    presets,
    requests,
    tenant_settings,
    usage,
    webhooks,
)

T = "t/<slug:tenant>/"

urlpatterns = [
    path("", entrance.home, name="home"),
    path("start/", entrance.start, name="start"),
    path("invitations/<str:token>/", entrance.invitation, name="invitation"),
    # Before allauth's own: what strangers may post is limited by the address it comes from.
    path("accounts/login/", limited("login")(account.login)),
    path("accounts/signup/", limited("signup")(made_once("account_email_verification_sent")(account.signup))),
    path("accounts/password/reset/", limited("reset")(account.password_reset)),
    path("accounts/confirm-email/", limited("confirm")(account.email_verification_sent)),
    path("accounts/", include("allauth.urls")),
    path(T, overview.overview, name="overview"),
    path(T + "playground/", playground.playground, name="playground"),
    path(T + "playground/presets/", presets.save, name="playground_presets"),
    path(T + "playground/presets/<uuid:preset_id>/delete/", presets.delete, name="playground_presets_delete"),
    path(T + "playground/ticket/", playground.ticket, name="playground_ticket"),
    path(T + "keys/", keys.keys, name="keys"),
    path(T + "keys/new/", keys.new, name="keys_new"),
    path(T + "keys/made/", keys.made, name="keys_made"),
    path(T + "keys/<str:key_id>/", keys.edit, name="keys_edit"),
    path(T + "keys/<str:key_id>/rotate/", keys.rotate, name="keys_rotate"),
    path(T + "keys/<str:key_id>/switch/", keys.switch, name="keys_switch"),
    path(T + "keys/<str:key_id>/revoke/", keys.revoke, name="keys_revoke"),
    path(T + "models/", models.models, name="models"),
    path(T + "usage/", usage.usage, name="usage"),
    path(T + "usage/views/", usage.save, name="usage_views"),
    path(T + "usage/views/<int:view_id>/delete/", usage.delete, name="usage_views_delete"),
    path(T + "requests.csv", usage.export_requests, name="requests_csv"),
    path(T + "usage.csv", usage.export, name="usage_csv"),
    path(T + "requests/", requests.requests, name="requests"),
    path(T + "requests/<str:request_id>/", requests.request, name="request"),
    path(T + "limits/", limits.limits, name="limits"),
    path(T + "members/", members.members, name="members"),
    path(T + "members/invite/", members.invite, name="members_invite"),
    path(T + "members/invitations/<str:invitation_id>/resend/", members.resend, name="members_resend"),
    path(T + "members/invitations/<str:invitation_id>/revoke/", members.revoke, name="members_revoke"),
    path(T + "members/<int:user_id>/role/", members.role, name="members_role"),
    path(T + "members/<int:user_id>/remove/", members.remove, name="members_remove"),
    path(T + "members/<int:user_id>/transfer/", members.transfer, name="members_transfer"),
    path(T + "members/leave/", members.leave, name="members_leave"),
    path(T + "audit/", audit.audit, name="audit"),
    path(T + "audit.csv", audit.export, name="audit_csv"),
    path(T + "settings/", tenant_settings.settings, name="settings"),
    path(T + "settings/alerts/", tenant_settings.alerts, name="settings_alerts"),
    path(T + "settings/plan/", tenant_settings.plan, name="settings_plan"),
    path(T + "webhooks/", webhooks.webhooks, name="webhooks"),
    path(T + "webhooks/<str:webhook_id>/", webhooks.webhook, name="webhooks_one"),
    path(T + "webhooks/<str:webhook_id>/switch/", webhooks.switch, name="webhooks_switch"),
    path(T + "webhooks/<str:webhook_id>/test/", webhooks.test, name="webhooks_test"),
    path(T + "webhooks/<str:webhook_id>/delete/", webhooks.delete, name="webhooks_delete"),
    path(T + "webhooks/<str:webhook_id>/deliveries/<str:delivery_id>/resend/", webhooks.resend, name="webhooks_resend"),
]
