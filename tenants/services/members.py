"""People who can log in."""

from tenants.models import User


def ensure_operator(*, username: str, password: str) -> User:
    """The operator's account; made with this password if there is none, else left as it is."""
    found = User.objects.filter(username=username).first()
    return found or User.objects.create_superuser(username, password=password)
