"""Which replicas hold the beginning of a prompt in their KV cache, as far as can be told from what they were given.

A prompt is a chain of block hashes, each of which names the whole prompt up to there, so a few of them say how much of
it someone holds: the marks (1, 2, 3, 4, 6, 8, 12, 16, 24, ...), of which a prompt of 1,000 blocks has 19. A match is
rounded down to a mark, by a third at most: on Mooncake's trace that costs one part in fifty of what is found in caches.

A replica's marks are kept in the order of use, a prompt's last one as the oldest of it (engines free blocks in that
order too, when a request ends), so a replica that holds a mark holds those before it, and bisection finds the length of
a match. With bisection and the holders counted, the best holders cost O(log marks) each, however many share a beginning.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

Prompt = tuple[int, ...]
"""A prompt's hashes at the marks."""


def marks_up_to(max_depth: int) -> tuple[int, ...]:
    """Numbers of blocks, rising: two to a doubling."""
    marks, step = [1, 2, 3, 4], 2
    while marks[-1] < max_depth:
        marks.extend([marks[-1] + step, marks[-1] + 2 * step])
        step *= 2
    return tuple(mark for mark in marks if mark <= max_depth)


class _Cache:
    """One replica's marks, the least recently used first, each with the blocks since the mark before it."""

    __slots__ = ("blocks", "bound", "capacity", "lru", "size", "taken")

    def __init__(self, size: int) -> None:
        self.size = size  # of the replica's own cache, in blocks
        self.capacity = float(size)  # what the engine's answers say it really keeps; approached as prompts come
        self.bound = 0  # marks
        self.blocks = 0
        self.taken = 0  # blocks, ever
        self.lru: OrderedDict[int | str, int] = OrderedDict()  # a name: blocks that are nobody's beginning


class PrefixIndex:
    """At most `max_entries` in all (a mark, or an answer, of a replica), shared alike; `max_depth` blocks of a prompt."""

    def __init__(self, *, max_entries: int, max_depth: int) -> None:
        self._max_entries = max_entries
        self._marks = marks_up_to(max_depth)
        self._steps = tuple(mark - before for before, mark in zip((0, *self._marks), self._marks, strict=False))
        # By how many marks there are: all at once, for this is done for each request.
        self._pick: dict[int, Callable[[Sequence[int]], Prompt]] = {
            num: itemgetter(*(mark - 1 for mark in self._marks[:num])) for num in range(2, len(self._marks) + 1)
        }
        self._caches: dict[str, _Cache] = {}
        # A mark has one holder nearly always: a dict only from the second on. The order is that of last service.
        self._holders: dict[int, str | dict[str, None]] = {}

    def add(self, replica: str, *, cache_blocks: int) -> None:
        """A replica with an empty cache of this size."""
        assert replica not in self._caches
        self._caches[replica] = _Cache(cache_blocks)
        self._share()

    def forget(self, replica: str) -> None:
        """Its cache is gone; an unknown one is no error. Costs its number of marks."""
        cache = self._caches.pop(replica, None)
        if cache is None:
            return
        for mark in cache.lru:
            self._unlink(replica, mark)
        self._share()

    def marks_of(self, blocks: Sequence[int]) -> Prompt:
        """The hashes at the marks: what the other methods take as a prompt."""
        num = bisect_right(self._marks, len(blocks))
        return self._pick[num](blocks) if num > 1 else tuple(blocks[:num])

    def depth_of(self, prompt: Prompt) -> int:
        """How many blocks its marks stand for."""
        return self._marks[len(prompt) - 1] if prompt else 0

    def match(self, prompt: Prompt, limit: int, matters_ratio: float) -> dict[str, int]:
        """At most `limit` holders with the most of this beginning -> how many blocks, the most first.

        Those with less than this ratio of the most are left out. Nobody else holds more than the last one found. Among
        equals those come first that served it longest ago.
        """
        found: dict[str, int] = {}
        num = self._deepest(prompt, 0, len(prompt))
        fewest = self._marks[num - 1] * matters_ratio if num else 0.0
        while num > 0 and self._marks[num - 1] >= fewest:
            blocks, held = self._marks[num - 1], self._holders[prompt[num - 1]]
            if isinstance(held, str):
                found.setdefault(held, blocks)
                count = 1
            else:
                for replica in islice(held, limit):
                    if len(found) < limit:
                        found.setdefault(replica, blocks)
                count = len(held)
            if len(found) >= limit:
                break
            num = self._deepest(prompt, count, num)
        return found

    def depth_on(self, replica: str, prompt: Prompt, at_most_blocks: int) -> int:
        """How many blocks of this beginning the replica holds, known not to be more than so many."""
        lru = self._caches[replica].lru
        if not prompt or prompt[0] not in lru:
            return 0
        num = min(len(prompt), bisect_right(self._marks, at_most_blocks))
        if prompt[num - 1] in lru:
            return self._marks[num - 1]
        low, end = 1, num - 1
        while low < end:
            middle = (low + end) // 2
            if prompt[middle] in lru:
                low = middle + 1
            else:
                end = middle
        return self._marks[low - 1]

    def fill(self, replica: str, name: str, blocks: int) -> None:
        """So many blocks of its cache were used for what no other prompt begins with: answers, mostly."""
        cache = self._caches[replica]
        if blocks > 0 and name not in cache.lru:
            cache.lru[name] = blocks
            cache.blocks += blocks
            cache.taken += blocks
            self._trim(replica, cache, 2 * blocks)

    def touch(self, replica: str, prompt: Prompt) -> None:
        """The replica has been given this prompt: it holds it from now on, and the oldest make way."""
        cache = self._caches[replica]
        lru, holders, steps = cache.lru, self._holders, self._steps
        deepest_held, new_blocks = 0, 0
        for at in range(len(prompt) - 1, -1, -1):  # the first becomes the newest
            mark = prompt[at]
            if mark in lru:
                lru.move_to_end(mark)
                deepest_held = deepest_held or mark
                continue
            lru[mark] = step = steps[at]
            new_blocks += step
            held = holders.get(mark)
            if held is None:
                holders[mark] = replica
            elif isinstance(held, str):
                holders[mark] = {held: None, replica: None}
            else:
                held[replica] = None
        if deepest_held:
            self._goes_last(replica, deepest_held)
        if new_blocks:
            cache.blocks += new_blocks
            cache.taken += new_blocks
            self._trim(replica, cache, 2 * new_blocks)

    def correct(self, replica: str, *, predicted_blocks: int, cached_blocks: int) -> None:
        """What the engine says it had cached, against what was predicted: the size learns from it.

        Less: it keeps fewer than its size says (running requests need blocks too; or it does not cache at all). As
        much, and it is full: it may keep more.
        """
        cache = self._caches[replica]
        if cached_blocks < predicted_blocks - 1:  # one: the last block of a prompt is not always counted
            cache.capacity = max(cache.capacity * 0.9, min(self._marks[-1], cache.size))
        elif predicted_blocks and cache.blocks >= 0.9 * cache.capacity:
            cache.capacity = min(cache.capacity * 1.02, cache.size)

    def size(self) -> int:
        """Entries."""
        return sum(len(cache.lru) for cache in self._caches.values())

    def taken_by(self, replica: str) -> int:
        """Blocks it has ever taken in: a clock for `touch_again`."""
        return self._caches[replica].taken

    def touch_again(self, replica: str, prompt: Prompt, taken: int) -> None:
        """A prompt touched when that clock said `taken` has been in use until now; when little has come since, no matter."""
        cache = self._caches[replica]
        if cache.taken - taken > cache.capacity / 8.0:
            self.touch(replica, prompt)

    def blocks_of(self, replica: str) -> int:
        """How many blocks it is believed to hold."""
        cache = self._caches.get(replica)
        return cache.blocks if cache else 0

    def knows(self, replica: str) -> bool:
        return replica in self._caches

    # Steps

    def _deepest(self, prompt: Prompt, more_than: int, end: int) -> int:
        """The most marks, at most `end`, that more than so many replicas hold: the deeper, the fewer they are."""
        holders, low = self._holders, 0
        while low < end:
            middle = (low + end) // 2
            held = holders.get(prompt[middle])
            if held is None or (1 if isinstance(held, str) else len(held)) <= more_than:
                end = middle
            else:
                low = middle + 1
        return low

    def _goes_last(self, replica: str, mark: int) -> None:
        """Where this prompt's holders are found, the one that serves it now is looked at last the next time."""
        held = self._holders.get(mark)
        if isinstance(held, dict):
            del held[replica]
            held[replica] = None

    def _trim(self, replica: str, cache: _Cache, at_most_blocks: int) -> None:
        """Down to the bound at once; towards what it really keeps by so many blocks at a time."""
        lru = cache.lru
        until = max(cache.capacity, cache.blocks - at_most_blocks)
        while len(lru) > cache.bound or cache.blocks > until:
            mark, blocks = lru.popitem(last=False)
            cache.blocks -= blocks
            self._unlink(replica, mark)

    def _unlink(self, replica: str, mark: int | str) -> None:
        if isinstance(mark, str):
            return
        held = self._holders[mark]
        if isinstance(held, dict):
            del held[replica]
            if held:
                return
        del self._holders[mark]

    def _share(self) -> None:
        """Everyone's part of the whole; when many come, those that are there give way."""
        part = self._max_entries // max(len(self._caches), 1)
        for replica, cache in self._caches.items():
            cache.bound = part
            if len(cache.lru) > part:
                self._trim(replica, cache, 0)

    def check_invariants(self) -> None:
        assert self.size() <= self._max_entries, "the index outgrew its bound"
        pairs = list(self._pairs())
        held = [(mark, name) for name, cache in self._caches.items() for mark in cache.lru if isinstance(mark, int)]
        assert len(pairs) == len(held) and set(pairs) == set(held)
        for cache in self._caches.values():
            assert len(cache.lru) <= cache.bound
            assert cache.blocks == sum(cache.lru.values())

    def _pairs(self) -> Iterator[tuple[int, str]]:
        for mark, held in self._holders.items():
            for replica in [held] if isinstance(held, str) else held:
                yield mark, replica
