"""Which replicas hold the beginning of a prompt in their KV cache, as far as can be told from what they were given.

A prompt is a chain of block hashes, each of which names the whole prompt up to there. A replica's blocks are kept in
the order of use, a chain's last block as the oldest of it (engines free them in that order too), so a replica that
holds a block holds all before it, and bisection finds the length of a match. With bisection and with the holders of a
block counted, the best few holders cost O(log depth) each, however many replicas share the first block.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

Blocks = tuple[int, ...]


class _Cache:
    """One replica's blocks, the least recently used first."""

    __slots__ = ("bound", "capacity", "lru", "size")

    def __init__(self, size: int, bound: int) -> None:
        self.size = size  # of the replica's own cache, in blocks
        self.bound = bound  # never more than this
        self.capacity = float(bound)  # what the engine's answers say it really keeps; approached as blocks come
        self.lru: OrderedDict[int, None] = OrderedDict()


class PrefixIndex:
    """At most `max_blocks` (block, replica) pairs in all, shared alike; at most `max_depth` blocks of a prompt."""

    def __init__(self, *, max_blocks: int, max_depth: int) -> None:
        self._max_blocks = max_blocks
        self._max_depth = max_depth
        self._caches: dict[str, _Cache] = {}
        # A block has one holder nearly always: a dict only from the second on. The order is that of last service.
        self._holders: dict[int, str | dict[str, None]] = {}

    def add(self, replica: str, *, cache_blocks: int) -> None:
        """A replica with an empty cache of this size."""
        assert replica not in self._caches
        self._caches[replica] = _Cache(cache_blocks, 0)
        self._share()

    def forget(self, replica: str) -> None:
        """Its cache is gone; an unknown one is no error. Costs its number of blocks."""
        cache = self._caches.pop(replica, None)
        if cache is None:
            return
        for block in cache.lru:
            self._unlink(replica, block)
        self._share()

    def match(self, blocks: Blocks, limit: int) -> dict[str, int]:
        """At most `limit` holders with the most blocks of this beginning -> how many, the most first.

        Fewer than `limit`: nobody else holds any of it. Among equals those come first that served it longest ago.
        """
        found: dict[str, int] = {}
        depth = self._deepest(blocks, 0, min(len(blocks), self._max_depth))
        while depth > 0 and len(found) < limit:
            held = self._holders[blocks[depth - 1]]
            if held.__class__ is str:
                found.setdefault(held, depth)
                count = 1
            else:
                assert isinstance(held, dict)
                for replica in islice(held, limit):
                    if len(found) < limit:
                        found.setdefault(replica, depth)
                count = len(held)
            depth = self._deepest(blocks, count, depth)
        return found

    def depth_on(self, replica: str, blocks: Blocks) -> int:
        """How many blocks of this beginning the replica holds."""
        lru = self._caches[replica].lru
        if not blocks or blocks[0] not in lru:
            return 0
        end = min(len(blocks), self._max_depth)
        return bisect_left(range(end), True, key=lambda at: blocks[at] not in lru)

    def touch(self, replica: str, blocks: Blocks) -> None:
        """The replica has been given this prompt: it holds it from now on, and the oldest make way."""
        cache = self._caches[replica]
        lru, holders, new = cache.lru, self._holders, 0
        deepest_held = 0
        for at in range(min(len(blocks), self._max_depth) - 1, -1, -1):  # the first block becomes the newest
            block = blocks[at]
            if block in lru:
                lru.move_to_end(block)
                deepest_held = deepest_held or block
                continue
            lru[block] = None
            new += 1
            held = holders.get(block)
            if held is None:
                holders[block] = replica
            elif held.__class__ is dict:
                held[replica] = None
            else:
                holders[block] = {held: None, replica: None}  # type: ignore[dict-item]
        self._goes_last(replica, deepest_held)
        self._trim(replica, cache, new)

    def correct(self, replica: str, *, predicted_blocks: int, cached_blocks: int) -> None:
        """What the engine says it had cached, against what was predicted: the size learns from it.

        Less: it keeps fewer than its size says (running requests need blocks too; or it does not cache at all). As
        much, and it is full: it may keep more.
        """
        cache = self._caches[replica]
        if cached_blocks < predicted_blocks - 1:  # one: the last block of a prompt is not always counted
            cache.capacity = max(cache.capacity * 0.9, min(self._max_depth, cache.bound))
        elif predicted_blocks and len(cache.lru) >= cache.capacity - 1:
            cache.capacity = min(cache.capacity * 1.02, cache.bound)

    def size(self) -> int:
        """(block, replica) pairs."""
        return sum(len(cache.lru) for cache in self._caches.values())

    def size_of(self, replica: str) -> int:
        cache = self._caches.get(replica)
        return len(cache.lru) if cache else 0

    def knows(self, replica: str) -> bool:
        return replica in self._caches

    # Steps

    def _deepest(self, blocks: Blocks, more_than: int, end: int) -> int:
        """The most blocks, at most `end`, that more than so many replicas hold: the deeper, the fewer they are."""
        holders = self._holders

        def is_too_deep(at: int) -> bool:
            held = holders.get(blocks[at])
            if held is None:
                return True
            return (1 if held.__class__ is str else len(held)) <= more_than

        return bisect_left(range(end), True, key=is_too_deep)

    def _goes_last(self, replica: str, block: int) -> None:
        """Where this prompt's holders are found, the one that serves it now is looked at last the next time."""
        held = self._holders.get(block)
        if isinstance(held, dict) and replica in held:
            del held[replica]
            held[replica] = None

    def _trim(self, replica: str, cache: _Cache, new: int) -> None:
        """Down to the bound at once, towards what it really keeps a few blocks at a time."""
        held = len(cache.lru)
        for _ in range(max(held - cache.bound, min(held - int(cache.capacity), new + 8))):
            self._unlink(replica, cache.lru.popitem(last=False)[0])

    def _unlink(self, replica: str, block: int) -> None:
        held = self._holders[block]
        if isinstance(held, dict):
            del held[replica]
            if held:
                return
        del self._holders[block]

    def _share(self) -> None:
        """Everyone's part of the whole; when many come, those that are there give way."""
        part = self._max_blocks // max(len(self._caches), 1)
        for replica, cache in self._caches.items():
            bound = min(cache.size, part)
            if bound == cache.bound:
                continue
            was_full_size = cache.capacity >= cache.bound
            cache.capacity = float(bound) if was_full_size else min(cache.capacity, float(bound))
            cache.bound = bound
            self._trim(replica, cache, 0)

    def check_invariants(self) -> None:
        assert self.size() <= self._max_blocks, "the index outgrew its bound"
        pairs = set(self._pairs())
        assert pairs == {(block, name) for name, cache in self._caches.items() for block in cache.lru}
        for cache in self._caches.values():
            assert len(cache.lru) <= cache.bound <= cache.size
            assert cache.capacity <= cache.bound

    def _pairs(self) -> Iterator[tuple[int, str]]:
        for block, held in self._holders.items():
            for replica in [held] if isinstance(held, str) else held:
                yield block, replica
