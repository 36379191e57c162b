"""What the customers' site adds to the settings: accounts, content security, and where the API is as customers see it."""

from headway import env

PUBLIC_API_URL = env.text("HEADWAY_PUBLIC_API_URL", "").rstrip("/")
METRICS_TOKEN = env.secret("HEADWAY_METRICS_TOKEN", "")
FORM_POSTS_PER_MINUTE = env.whole("HEADWAY_FORM_POSTS_PER_MINUTE", 20, at_least=1)

# Ours first: its templates stand before those of the libraries.
SITE_APPS = ["dashboard", "allauth", "allauth.account", "allauth.mfa", "csp", "django_cotton"]

# Accounts (django-allauth)
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "home"
ACCOUNT_LOGOUT_REDIRECT_URL = "account_login"
ACCOUNT_ADAPTER = "dashboard.accounts.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
# A code is typed into the page that asks for it: it works when the mail is read on another device.
ACCOUNT_EMAIL_VERIFICATION_BY_CODE_ENABLED = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = "[Headway] "
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_PREVENT_ENUMERATION = True
# No answer depends on what an address was sent before: surplus mails are left out instead (dashboard/accounts.py).
ACCOUNT_RATE_LIMITS = {"confirm_email": None, "mail": "4/10m/key"}
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Headway"


def content_security(gateway_url: str) -> dict[str, object]:
    """CONTENT_SECURITY_POLICY: nothing but our own files, and the gateway's socket for the playground."""
    socket_url = "ws" + gateway_url.removeprefix("http")
    return {
        "DIRECTIVES": {
            "default-src": ["'none'"],
            "script-src": ["'self'"],
            "style-src": ["'self'"],
            # data: is the picture of a one-time-password's secret.
            "img-src": ["'self'", "data:"],
            "font-src": ["'self'"],
            "connect-src": ["'self'", socket_url],
            "form-action": ["'self'"],
            "base-uri": ["'none'"],
            "frame-ancestors": ["'none'"],
        }
    }
