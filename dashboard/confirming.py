"""What destroys is confirmed by typing a name. The page asks; the server asks again."""

from django.contrib import messages
from django.http import HttpRequest


def is_confirmed(request: HttpRequest, word: str) -> bool:
    """Says so on the next page when it is not."""
    if request.POST.get("confirm", "").strip() == word:
        return True
    messages.error(request, f"Nothing was changed: type {word} to confirm")
    return False
