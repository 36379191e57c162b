"""Django's settings. Everything that varies comes from the environment through headway.env (docs/operations.md)."""

import socket
from pathlib import Path

from headway import env
from headway.home import Home
from headway.local_url import local_url
from headway.redis_server import own_broker_url, own_url
from headway.settings_billing import *  # noqa: F403
from headway.settings_site import *  # noqa: F403
from headway.settings_site import PUBLIC_API_URL, SITE_APPS, content_security
from headway.smtp import smtp_server

CHECKOUT = Path(__file__).resolve().parents[2]
HOME = Home(env.folder("HEADWAY_HOME", CHECKOUT / ".headway"))
HOME.folder(".")
NODE_NAME = env.text("HEADWAY_NODE_NAME", socket.gethostname())
ZONE = env.text("HEADWAY_ZONE", "")
NODE_ADDRESS = env.text("HEADWAY_NODE_ADDRESS", "")
NODE_LISTEN_HOST = env.text("HEADWAY_NODE_LISTEN_HOST", "0.0.0.0")
TWO_PERSON_RULE = env.truth("HEADWAY_TWO_PERSON_RULE", False)
NODE_LOST_S = env.seconds("HEADWAY_NODE_LOST_S", 10.0, at_least=1.0)
GATEWAY_HOST = env.text("HEADWAY_GATEWAY_HOST", "127.0.0.1")
GATEWAY_PORT = env.whole("HEADWAY_GATEWAY_PORT", 9100, at_least=1, at_most=65535)
GATEWAY_PROCESSES = env.whole("HEADWAY_GATEWAY_PROCESSES", 1, at_least=1, at_most=256)
METRICS_PORT = env.whole("HEADWAY_METRICS_PORT", 9101, at_least=1, at_most=65535)
SITE_HOST = env.text("HEADWAY_SITE_HOST", "127.0.0.1")
SITE_PORT = env.whole("HEADWAY_SITE_PORT", 8000, at_least=1, at_most=65535)
SITE_URL = env.text("HEADWAY_SITE_URL", local_url(SITE_HOST, SITE_PORT)).rstrip("/")
ALLAUTH_TRUSTED_PROXY_COUNT = TRUSTED_PROXY_HOPS = env.whole("HEADWAY_TRUSTED_PROXY_HOPS", 0, at_least=0, at_most=16)

DEBUG = env.truth("HEADWAY_DEBUG", False)
SECRET_KEY = env.secret("HEADWAY_SECRET_KEY", "") or HOME.secret_key()
ALLOWED_HOSTS = env.names("HEADWAY_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.names("HEADWAY_CSRF_TRUSTED_ORIGINS", [])

DATA_PLANE_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "tenants", "billing", "inference"]
INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    *DATA_PLANE_APPS,
    *SITE_APPS,
    "workers",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "headway.clean_text.CleanTextMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "headway.content_security.ContentSecurityMiddleware",
    "headway.logs.RequestIdMiddleware",
    "tenants.acting_from.ActingFromMiddleware",
]
ROOT_URLCONF = "headway.urls"
ASGI_APPLICATION = "headway.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.context.site",
            ]
        },
    }
]

DATABASES = {"default": env.database("DATABASE_URL", HOME.root / "headway.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "tenants.User"

# Workers' broker and the site's cache: one server, and a prefix for each. The data plane uses none of it.
OUTSIDE_REDIS_URL = env.secret("REDIS_URL", "")
HAS_OUTSIDE_REDIS = bool(OUTSIDE_REDIS_URL)
REDIS_URL = OUTSIDE_REDIS_URL or own_url(HOME)
CACHES = {
    "default": {
        "BACKEND": "headway.cache.SiteCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "headway-cache",
        "OPTIONS": {"socket_connect_timeout": 0.5, "socket_timeout": 0.5},
    }
}
CELERY_BROKER_URL = OUTSIDE_REDIS_URL or own_broker_url(HOME)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "global_keyprefix": "headway-celery:",
    "visibility_timeout": 600,  # above the longest task; what is told again early does no harm
    # For who only tells, and has somebody waiting; workers, who listen, have longer (their command).
    "socket_connect_timeout": 1,
    "socket_timeout": 1,
    "max_retries": 0,  # who tells a broker that is away goes on at once: the sweep tells it again
}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "headway"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 8
CELERY_TIMEZONE = "UTC"
OUTBOX_SWEEP_S = env.seconds("HEADWAY_OUTBOX_SWEEP_S", 2.0, at_least=0.1)
AUTOSCALE_S = env.seconds("HEADWAY_AUTOSCALE_S", 5.0, at_least=1.0)
# Each sweep finds what is due by the database: one that nobody took for so long is told again by the next. Without an end,
# workers that were away for a day would come back to a quarter of a million of them. Far above what clocks differ by.
SWEEP_KEPT_S = 600.0
_EVERY_S = {
    "outbox": ("sweep_outbox", OUTBOX_SWEEP_S),
    "fleet": ("look_after_fleet", 2.0),
    "key use": ("sweep_key_use", 30.0),
    "expiring keys": ("sweep_expiring_keys", 60.0),
    "budgets": ("sweep_budgets", 30.0),
    "statements": ("sweep_statements", 3600.0),
    "holds": ("sweep_holds", 60.0),
    "grants": ("sweep_grants", 60.0),
    "balances": ("sweep_balances", 60.0),
    "faults of balances": ("look_at_balances", 60.0),
    "rollouts": ("tick_rollouts", 5.0),
    "evals": ("sweep_evals", 30.0),
    "reconciliation": ("reconcile_ledger", 3600.0),
    "weights": ("stage_weights", 20.0),
    "wake-ups": ("wake_sleeping_pools", 1.0),
    "autoscaler": ("look_at_pools", AUTOSCALE_S),
    "charts of pools": ("note_pools", 10.0),
    "old rows": ("forget_what_is_old", 3600.0),
}
CELERY_BEAT_SCHEDULE = {
    label: {"task": f"workers.tasks.{task}", "schedule": every_s, "options": {"expires": max(SWEEP_KEPT_S, every_s)}}
    for label, (task, every_s) in _EVERY_S.items()
}

EMAIL_BACKEND = "workers.mail_backend.OutboxBackend"
SMTP = smtp_server(env.secret("HEADWAY_SMTP_URL", ""), name="HEADWAY_SMTP_URL")
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env.text("HEADWAY_MAIL_FROM", "headway@localhost")

REST_FRAMEWORK = {
    "EXCEPTION_HANDLER": "tenants.api.errors.answer_of",
    "DEFAULT_SCHEMA_CLASS": "tenants.api.openapi.HeadwaySchema",
    "DEFAULT_AUTHENTICATION_CLASSES": ["tenants.api.callers.KeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],  # a view says otherwise, or is closed
    "UNICODE_JSON": True,
    "STRICT_JSON": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Headway control API",
    "VERSION": "1",
    "DESCRIPTION": "What the pages do, for programs: send an API key with the right scope, or use a session.",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "POSTPROCESSING_HOOKS": ["tenants.api.openapi.with_common_parts"],
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
}

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

API_URL = PUBLIC_API_URL or local_url(GATEWAY_HOST, GATEWAY_PORT)
EVAL_API_URL = env.text("HEADWAY_EVAL_API_URL", "").rstrip("/") or API_URL
CONTENT_SECURITY_POLICY = content_security(API_URL)
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.truth("HEADWAY_SECURE_COOKIES", False)

LOG_LEVEL = env.text("HEADWAY_LOG_LEVEL", "INFO")
LOGGING_CONFIG = "headway.logs.configure"
LOGGING = {"level": LOG_LEVEL}
