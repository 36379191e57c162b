"""What pages refuse by themselves, below the errors every part shares (headway/errors.py).

Conflict
└── FormAlreadySent      look at what the first post of this form made
"""

from typing import ClassVar

from headway.errors import Conflict


class FormAlreadySent(Conflict):
    """Look at what the first post of this form made; nothing was made twice."""

    code: ClassVar[str] = "form_already_sent"
