"""What a page puts into its forms that make something."""

from dashboard.services.form_claims import FIELD, new_nonce


def form_nonce() -> dict[str, str]:
    """As if the page was drawn anew."""
    return {FIELD: new_nonce()}
