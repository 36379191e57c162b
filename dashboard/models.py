"""What pages keep for themselves."""

from django.db import models


class FormClaim(models.Model):
    """A form that makes something was posted and did: its nonce is claimed in the transaction that made it."""

    nonce = models.CharField(max_length=32, unique=True)
    made_at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return self.nonce
