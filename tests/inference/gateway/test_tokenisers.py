"""Where a gateway's tokenisers come from: files first, then the database, and nothing that is not what its digest says."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.gateway import tokenisers
from inference.gateway.tokenisers import TokeniserStore
from inference.services.tokenisers import keep_tokeniser, tokeniser_content
from inference.tokenising.bundle import digest_of, encode_bundle
from inference.tokenising.counter import PromptCounter
from tests.fakes.tokeniser import byte_bundle, size_of_chat

CONTENT = encode_bundle(byte_bundle())
DIGEST = digest_of(CONTENT)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Shelf:
    """A database that may be away, may be slow, and may have something else."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = contents
        self.is_away = False
        self.num_asked = 0

    def fetch(self, digest: str) -> bytes | None:
        self.num_asked += 1
        if self.is_away:
            raise LookupError("the database is away")
        return self.contents.get(digest)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(**{DIGEST: CONTENT})


@pytest.fixture
def store(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokeniserStore]:
    monkeypatch.setattr(tokenisers, "RETRY_S", 0.05)
    made = TokeniserStore(tmp_path, shelf.fetch)
    made.start()
    yield made
    made.stop()


async def loaded(store: TokeniserStore, digest: str = DIGEST, within_s: float = 5.0) -> PromptCounter:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        counter = await store.counter(digest)
        if counter is not None:
            return counter
        await asyncio.sleep(0.01)
    raise AssertionError("not loaded")


async def test_a_tokeniser_is_fetched_kept_and_counts(store: TokeniserStore, tmp_path: Path) -> None:
    store.want(frozenset({DIGEST}))
    counter = await store.counter(DIGEST)  # the first request waits for it
    assert counter is not None and counter.chat(CHAT) == size_of_chat("hi")
    assert (tmp_path / DIGEST).read_bytes() == CONTENT
    assert (tmp_path / DIGEST).stat().st_mode & 0o077 == 0


async def test_one_that_was_kept_is_used_with_the_database_away(store: TokeniserStore, shelf: Shelf, tmp_path: Path) -> None:
    shelf.is_away = True
    (tmp_path / DIGEST).write_bytes(CONTENT)
    store.want(frozenset({DIGEST}))
    assert (await loaded(store)).chat(CHAT) == size_of_chat("hi")
    assert shelf.num_asked == 0


async def test_one_that_could_not_be_fetched_is_tried_again(store: TokeniserStore, shelf: Shelf) -> None:
    shelf.is_away = True
    store.want(frozenset({DIGEST}))
    assert await store.counter(DIGEST) is None or shelf.num_asked
    started_s = time.monotonic()
    assert await store.counter(DIGEST) is None
    assert time.monotonic() - started_s < 1.0  # nothing is waited for after a failure
    shelf.is_away = False
    await loaded(store)


async def test_a_damaged_file_is_replaced(store: TokeniserStore, tmp_path: Path) -> None:
    (tmp_path / DIGEST).write_bytes(CONTENT[:-1])
    store.want(frozenset({DIGEST}))
    await loaded(store)
    assert (tmp_path / DIGEST).read_bytes() == CONTENT


async def test_what_is_not_what_its_digest_says_is_never_used(store: TokeniserStore, shelf: Shelf, tmp_path: Path) -> None:
    shelf.contents[DIGEST] = encode_bundle(byte_bundle(counts_chat=False))
    store.want(frozenset({DIGEST}))
    deadline_s = time.monotonic() + 5
    while shelf.num_asked < 2 and time.monotonic() < deadline_s:
        assert await store.counter(DIGEST) is None
        await asyncio.sleep(0.01)
    assert shelf.num_asked >= 2
    assert not (tmp_path / DIGEST).exists()


async def test_what_no_replica_names_any_more_is_let_go(store: TokeniserStore, shelf: Shelf) -> None:
    other = encode_bundle(byte_bundle(template_kwargs={"a": 1}))
    shelf.contents[digest_of(other)] = other
    store.want(frozenset({DIGEST}))
    await loaded(store)
    store.want(frozenset({digest_of(other)}))
    await loaded(store, digest_of(other))
    deadline_s = time.monotonic() + 5
    while await store.counter(DIGEST) is not None:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    store.want(frozenset({DIGEST}))
    await loaded(store)


async def test_one_that_is_unknown_is_not_waited_for(store: TokeniserStore) -> None:
    started_s = time.monotonic()
    assert await store.counter("unknown") is None
    assert time.monotonic() - started_s < 1.0


@pytest.mark.django_db
def test_the_database_keeps_one_of_each() -> None:
    assert tokeniser_content(DIGEST) is None
    for _ in range(2):
        keep_tokeniser(digest=DIGEST, content=CONTENT)
    assert tokeniser_content(DIGEST) == CONTENT
