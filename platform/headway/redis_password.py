"""How Celery learns the password of our own Redis-protocol server: by this class, which its URL names."""

from django.conf import settings
from redis.credentials import CredentialProvider

from headway.home import Home


class OwnPassword(CredentialProvider):
    def get_credentials(self) -> tuple[str]:
        home: Home = settings.HOME
        return (home.redis_password(),)
