"""Which version of a model serves a request while a rollout is open: sticky by tenant and conversation, and monotone.

A conversation is a point between 0 and a million, told by a hash of the rollout's salt, the tenant and the conversation;
the candidate has all points below its share. So a share that grows keeps those who were in, one tenant's conversations are
split like all others', and another rollout draws anew.
"""

from dataclasses import dataclass
from hashlib import blake2b

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a model that serve, by label. Only these ever do."""

    stable: str
    """Empty: the model has external replicas only."""
    candidate: str = ""
    """Empty: no rollout is open."""
    candidate_share_ppm: int = 0
    """Of the conversations that are neither pinned nor asked for by version."""
    salt: str = ""
    """The rollout's."""
    pinned: frozenset[str] = frozenset()
    """Others that tenants have pinned."""

    @property
    def serving(self) -> tuple[str, ...]:
        """The stable one first."""
        others = {label for label in (self.candidate, *self.pinned) if label and label != self.stable}
        return (self.stable, *sorted(others))

    @property
    def is_split(self) -> bool:
        """Whether it matters which conversation a request is of."""
        return bool(self.candidate) and self.candidate_share_ppm > 0

    def serves(self, label: str) -> bool:
        return label == self.stable or (label != "" and (label == self.candidate or label in self.pinned))


def choose(versions: Versions, *, tenant: str, conversation: bytes, pin: str = "") -> str:
    """The label of the version that serves. `pin`: the one it must be, where that still serves; empty: any.

    `conversation` empty: the stable one, as for a request that the candidate has failed.
    """
    if pin and versions.serves(pin):
        return pin
    if not conversation or not versions.is_split:
        return versions.stable
    is_in = point_of(versions.salt, tenant, conversation) < versions.candidate_share_ppm
    return versions.candidate if is_in else versions.stable


def point_of(salt: str, tenant: str, subject: bytes) -> int:
    """From 0 to 999,999, evenly, and the same for the same three."""
    name = b"%b\0%b\0%b" % (salt.encode(), tenant.encode(), subject)
    return int.from_bytes(blake2b(name, digest_size=8).digest()) % MILLION
