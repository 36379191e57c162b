"""How versions are named: "v3" is the third of its model. A blank: no version of ours (an external replica)."""

import re

from inference.errors import UnknownVersion
from inference.models import Model, ModelVersion

_LABEL = re.compile(r"v?([1-9][0-9]{0,8})")


def version_label(version: ModelVersion | None) -> str:
    return f"v{version.number}" if version else ""


def version_named(model: Model, label: str) -> ModelVersion:
    """By its label, such as v3. Raises UnknownVersion."""
    named = _LABEL.fullmatch(label.strip())
    found = model.versions.filter(number=int(named[1])).first() if named else None
    if found is None:
        raise UnknownVersion(f"{model} has no version {label[:40]!r}; versions are named v1, v2 and so on", param="version")
    return found
