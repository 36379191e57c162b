"""Amounts as programs write them: decimal numbers as text, never as JSON numbers, which carry binary fractions."""

from typing import Any

from rest_framework import serializers as s

MAX_CHARS = 40


class AmountText(s.CharField):
    """What it is worth is for the service to say."""

    default_error_messages = {"no_text": 'Write the amount as text, such as "2.50".'}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=MAX_CHARS, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("no_text")
        text: str = super().to_internal_value(data)
        return text
