"""What one scope took in the last 60 s, exactly: a log of entries, not counters of fixed windows.

An entry counts from its instant until exactly 60 s later, the end not included, so in no window of 60 s, wherever it
begins, is more counted than the log held at some instant. It has three amounts (requests, input tokens, output tokens)
and may change while it counts: a reservation is settled by what was really used.

Entries are kept in chunks, whose sums are kept once they were asked for, so that "when will enough have gone" jumps over
what is not enough: reserve, settle and expiry cost O(1) amortised, that question O(entries / CHUNK), and CHUNK more for
each chunk that has changed since it was last asked.
"""

from bisect import bisect_right, insort_right
from math import inf, nextafter

WINDOW_S = 60.0
CHUNK = 64

REQUESTS, INPUT, OUTPUT = 0, 1, 2
Amounts = tuple[int, int, int]
NOTHING: Amounts = (0, 0, 0)


class Entry:
    """One request in the logs of its scopes: the tenant's, its key's, its model's."""

    __slots__ = ("amounts", "chunks", "expires_s", "is_open", "names")

    def __init__(self, expires_s: float, amounts: Amounts, *, is_open: bool, names: tuple[str, ...] = ("",)) -> None:
        self.expires_s = expires_s
        self.amounts = amounts
        self.is_open = is_open  # reserved, not yet settled
        self.names = names  # of its scopes
        self.chunks: list[Chunk | None] = [None] * len(names)  # where the log of each keeps it, if it does


class Chunk:
    """Some entries in the order of their expiry, those before `head` gone."""

    __slots__ = ("_sums", "entries", "head")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.head = 0
        self._sums: Amounts | None = None

    def changed(self) -> None:
        self._sums = None

    def sums(self) -> Amounts:
        if self._sums is None:
            requests = tokens_in = tokens_out = 0
            for entry in self.entries[self.head :]:
                amounts = entry.amounts
                requests += amounts[0]
                tokens_in += amounts[1]
                tokens_out += amounts[2]
            self._sums = requests, tokens_in, tokens_out
        return self._sums


def _expiry(entry: Entry) -> float:
    return entry.expires_s


def _first_expiry(chunk: Chunk) -> float:
    return chunk.entries[chunk.head].expires_s


class SlidingLog:
    __slots__ = ("_chunks", "next_expiry_s", "reserved", "total")

    def __init__(self) -> None:
        self.total = [0, 0, 0]
        """Reserved or settled, of the last 60 s before the latest `advance`."""
        self.reserved = [0, 0, 0]
        """The part of it that is not settled."""
        self.next_expiry_s = inf
        self._chunks: list[Chunk] = []

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __len__(self) -> int:
        return sum(len(chunk.entries) - chunk.head for chunk in self._chunks)

    def advance(self, now_s: float) -> None:
        """Let go what is 60 s old. To be called before the log is read or changed."""
        if now_s < self.next_expiry_s:
            return
        chunks = self._chunks
        while chunks and _first_expiry(chunks[0]) <= now_s:
            chunk = chunks[0]
            entry = chunk.entries[chunk.head]
            chunk.head += 1
            chunk.changed()
            self._count(NOTHING, entry.amounts)
            if entry.is_open:
                self._count_reserved(NOTHING, entry.amounts)
            if chunk.head == len(chunk.entries):
                del chunks[0]
        self.next_expiry_s = _first_expiry(chunks[0]) if chunks else inf

    def add(self, entry: Entry) -> Chunk:
        """Where it is kept: to be given back to `changed`. Its time may lie before others' (a re-announced one)."""
        chunk = self._chunk_for(entry)
        if chunk.entries and entry.expires_s < chunk.entries[-1].expires_s:
            insort_right(chunk.entries, entry, lo=chunk.head, key=_expiry)
        else:
            chunk.entries.append(entry)
        chunk.changed()
        self._count(entry.amounts, NOTHING)
        if entry.is_open:
            self._count_reserved(entry.amounts, NOTHING)
        if entry.expires_s < self.next_expiry_s:
            self.next_expiry_s = entry.expires_s
        return chunk

    def fill_from(self, whole: "SlidingLog", place: int, name: str) -> None:
        """An empty log, with those of another that have this name at this place. O(entries)."""
        assert not self._chunks
        for each in whole._chunks:
            for entry in each.entries[each.head :]:
                if entry.names[place] == name:
                    entry.chunks[place] = self.add(entry)

    def closed(self, entry: Entry, chunk: Chunk, reserved: Amounts) -> None:
        """The entry, which has not expired, was open with `reserved` and is settled as it is now."""
        chunk.changed()
        self._count(entry.amounts, reserved)
        self._count_reserved(NOTHING, reserved)
        if entry.amounts == NOTHING:
            self._drop_empty_tail()

    def wait_s(self, kind: int, amount: int, now_s: float) -> float:
        """Until `amount` of what counts now no longer does; the log holds at least that much.

        Exact also in floating point: at `now_s + wait_s` it has gone.
        """
        assert 0 < amount <= self.total[kind], "no more can go than is there"
        missing = amount
        for chunk in self._chunks:
            in_chunk = chunk.sums()[kind]
            if in_chunk < missing:
                missing -= in_chunk
                continue
            for entry in chunk.entries[chunk.head :]:
                missing -= entry.amounts[kind]
                if missing <= 0:
                    return until_s(entry.expires_s, now_s)
        raise AssertionError("the sums of the chunks are not the log's")

    def empty_in_s(self, kind: int, now_s: float) -> float:
        """Until nothing that counts now does."""
        if not self.total[kind]:
            return 0.0
        newest = self._chunks[-1].entries[-1]
        if newest.amounts[kind]:
            return until_s(newest.expires_s, now_s)
        for chunk in reversed(self._chunks):
            if chunk.sums()[kind]:
                last = next(entry for entry in reversed(chunk.entries) if entry.amounts[kind])
                return until_s(last.expires_s, now_s)
        raise AssertionError("the sums of the chunks are not the log's")

    def check_invariants(self) -> None:
        total, reserved, last_s = [0, 0, 0], [0, 0, 0], -inf
        for chunk in self._chunks:
            alive = chunk.entries[chunk.head :]
            assert alive, "an empty chunk is dropped"
            assert chunk.sums() == tuple(sum(entry.amounts[kind] for entry in alive) for kind in range(3))
            for entry in alive:
                assert entry.expires_s >= last_s, "the log is in order"
                last_s = entry.expires_s
                for kind in range(3):
                    total[kind] += entry.amounts[kind]
                    reserved[kind] += entry.amounts[kind] if entry.is_open else 0
        assert total == self.total and reserved == self.reserved
        assert self.next_expiry_s == (_first_expiry(self._chunks[0]) if self._chunks else inf)

    def _count(self, now: Amounts, before: Amounts) -> None:
        total = self.total
        total[0] += now[0] - before[0]
        total[1] += now[1] - before[1]
        total[2] += now[2] - before[2]

    def _count_reserved(self, now: Amounts, before: Amounts) -> None:
        reserved = self.reserved
        reserved[0] += now[0] - before[0]
        reserved[1] += now[1] - before[1]
        reserved[2] += now[2] - before[2]

    def _chunk_for(self, entry: Entry) -> Chunk:
        chunks = self._chunks
        if not chunks:
            chunks.append(Chunk())
            return chunks[0]
        if entry.expires_s >= chunks[-1].entries[-1].expires_s:
            if len(chunks[-1].entries) >= CHUNK:
                chunks.append(Chunk())
            return chunks[-1]
        # Out of order: into the chunk whose time it is. That one grows: open entries know the chunk they are in, so none
        # is split; re-announced from eight gateways it has eight times the entries.
        at = bisect_right(chunks, entry.expires_s, key=_first_expiry) - 1
        if at < 0 and len(chunks[0].entries) >= CHUNK:
            chunks.insert(0, Chunk())
        return chunks[max(at, 0)]

    def _drop_empty_tail(self) -> None:
        """A storm of refusals leaves nothing behind, not even entries of nothing."""
        chunks = self._chunks
        while chunks and chunks[-1].entries[-1].amounts == NOTHING:
            tail = chunks[-1]
            tail.entries.pop()
            tail.changed()
            if tail.head == len(tail.entries):
                chunks.pop()
        self.next_expiry_s = _first_expiry(chunks[0]) if chunks else inf


def until_s(then_s: float, now_s: float) -> float:
    """The least wait, zero or more, for which `now_s + wait >= then_s` also after rounding."""
    wait_s = then_s - now_s
    if wait_s < 0.0:
        return 0.0
    while now_s + wait_s < then_s:
        wait_s = nextafter(wait_s, inf)
    return wait_s
