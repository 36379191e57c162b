"""Which version of a model is to serve a request, as far as its client, its tenant and its conversation say.

`x-headway-version` comes first, then the tenant's pin, then the split between the stable version and a candidate. The split
is by conversation: what `x-headway-conversation` says, else `safety_identifier`, else `user`, else the chat's system messages
and its first word of the user (a chat that grows keeps both), else the whole prompt.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from headway.errors import Unavailable
from inference.gateway.openai_errors import BadRequest
from inference.gateway.requests import GenerationRequest
from inference.gateway.state import ModelEntry, ReplicaEntry
from inference.gateway.tenant_rows import TenantFacts
from inference.tokenising.counter import prompts_of

VERSION_HEADER = b"x-headway-version"
CONVERSATION_HEADER = b"x-headway-conversation"
SHOWN_CHARS = 32
MAX_TEXT_BYTES = 256 * 1024
"""So much of a text tells conversations apart."""

Headers = Iterable[tuple[bytes, bytes]]


class VersionNotAllowed(BadRequest):
    """Leave the header `x-headway-version` out, or name a version that may be asked for."""

    code = "version_not_allowed"


class VersionGone(Unavailable):
    """Leave the header `x-headway-version` out, or name another one: no replica of that version serves any more."""

    code = "version_unavailable"


@dataclass(frozen=True, slots=True)
class Wish:
    version: str = ""
    """It must be that one; empty: any that serves."""
    is_asked: bool = False
    """By its client, which is rather refused than served by another."""
    conversation: bytes = b""
    """By what a split decides; empty: there is none, or the candidate has failed it."""

    def is_on_trial(self, model: ModelEntry, replica: ReplicaEntry) -> bool:
        """Did the split bring it to the candidate? Then what fails there is the stable version's to answer."""
        return bool(self.conversation) and replica.version not in ("", model.stable)

    def without_candidate(self) -> "Wish":
        return replace(self, conversation=b"")

    def check(self, model: ModelEntry, replica: ReplicaEntry) -> None:
        """Raises VersionGone."""
        if self.is_asked and replica.version not in ("", self.version):
            raise VersionGone(f"Version {self.version!a} of the model {model.public_id!a} serves no longer.", retry_after_s=1.0)


ANY = Wish()


def wish_of(model: ModelEntry, request: GenerationRequest, facts: TenantFacts, headers: Headers, salt: str) -> Wish:
    """`salt`: the tenant's. Raises VersionNotAllowed."""
    asked = _value(headers, VERSION_HEADER)
    pin, versions = facts.pins.get(model.public_id, ""), model.versions
    if asked:
        label = asked.decode("latin-1")
        is_candidate = versions is not None and bool(versions.candidate) and label == versions.candidate
        if label == model.stable or (label == pin and _serves(model, pin)) or (is_candidate and facts.is_operator):
            return Wish(label, is_asked=True)
        raise VersionNotAllowed(
            f"Version {label[:SHOWN_CHARS]!a} of the model {model.public_id!a} is none that you may ask for. Leave the header "
            "`x-headway-version` out, or name the stable version, or one that your organisation has pinned.",
            param="x-headway-version",
        )
    if versions is None:
        return ANY
    if pin and versions.serves(pin):
        return Wish(pin)
    if not versions.is_split:
        return ANY
    return Wish(conversation=conversation_of(request, _value(headers, CONVERSATION_HEADER), salt))


def conversation_of(request: GenerationRequest, named: bytes, salt: str) -> bytes:
    """16 bytes that tell one conversation from another; nothing can be learnt from them without the salt."""
    if named:
        kind, data = b"n", named
    elif request.subject:
        kind, data = b"s", request.subject.encode()
    else:
        kind, data = b"t", _beginning(request)[:MAX_TEXT_BYTES]
    return blake2b(kind + data, digest_size=16, key=salt.encode()[:64]).digest()


def _beginning(request: GenerationRequest) -> bytes:
    if request.api == "completions":
        first = prompts_of(request.fields["prompt"])[0]
        return first.encode() if isinstance(first, str) else msgspec.json.encode(first)
    parts: list[bytes] = []
    for message in request.fields["messages"]:
        content = message.get("content")
        if message["role"] in ("system", "developer", "user"):
            parts.append(content.encode() if isinstance(content, str) else msgspec.json.encode(content))
        if message["role"] == "user":
            break
    return b"\0".join(parts)


def _serves(model: ModelEntry, label: str) -> bool:
    return bool(label) and model.versions is not None and model.versions.serves(label)


def _value(headers: Headers, wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")
