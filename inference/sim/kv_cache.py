"""The KV memory of a replica: blocks that sequences own, and whole content blocks kept for the next prompt (LRU).

A *content block* is a piece of prompt that the workload knows by a hash chained over all that stands before it (512 tokens
in Mooncake's trace, so several KV blocks). It belongs to the cache: used while a sequence refers to it, else kept until its
memory is needed (Kwon et al., "PagedAttention", SOSP'23; vLLM's automatic prefix caching).
"""

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """Counts KV blocks. Everything is O(1) a block."""

    def __init__(self, *, capacity_blocks: int, content_blocks: int) -> None:
        """`content_blocks`: KV blocks that a content block takes."""
        assert capacity_blocks > 0 and content_blocks > 0
        self.capacity_blocks = capacity_blocks
        self.content_blocks = content_blocks
        self.used_blocks = 0
        """Owned by sequences, or content that some sequence refers to."""
        self._refs: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def available_blocks(self) -> int:
        """Free, or kept for nobody in particular."""
        return self.capacity_blocks - self.used_blocks

    @property
    def used_ratio(self) -> float:
        return self.used_blocks / self.capacity_blocks

    def match(self, content: Sequence[int], limit: int) -> int:
        """How many of the first `limit` content blocks are there, from the first on without a gap."""
        for index, block in enumerate(content[:limit]):
            if block not in self._refs and block not in self._kept:
                return index
        return min(limit, len(content))

    def can_take(self, matched: Sequence[int], new_blocks: int) -> bool:
        """Whether `new_blocks` fit once these matched content blocks are referred to."""
        woken = sum(block in self._kept for block in matched)
        return new_blocks <= self.available_blocks - woken * self.content_blocks

    def refer(self, block: int) -> None:
        """A sequence uses a content block that is there."""
        if block in self._refs:
            self._refs[block] += 1
            return
        del self._kept[block]
        self._refs[block] = 1
        self.used_blocks += self.content_blocks

    def allocate(self, blocks: int) -> None:
        """Own memory for a sequence; the content longest unused goes first."""
        assert blocks <= self.available_blocks
        self.used_blocks += blocks
        while self.used_blocks + len(self._kept) * self.content_blocks > self.capacity_blocks:
            self._kept.popitem(last=False)

    def publish(self, block: int) -> bool:
        """A sequence has computed this content block in its own memory, which becomes the cache's. False: it has one."""
        if block in self._refs or block in self._kept:
            return False
        self._refs[block] = 1
        return True

    def release(self, held: Sequence[int], own_blocks: int) -> None:
        """A sequence ends: its memory is free; what it referred to is kept, the end of the prompt to go first."""
        self.used_blocks -= own_blocks
        for block in reversed(held):
            left = self._refs[block] - 1
            if left:
                self._refs[block] = left
                continue
            del self._refs[block]
            self.used_blocks -= self.content_blocks
            self._kept[block] = None
        assert self.used_blocks >= 0

    def check_invariants(self) -> None:
        assert not self._refs.keys() & self._kept.keys()
        assert all(count > 0 for count in self._refs.values())
        assert self.used_blocks >= len(self._refs) * self.content_blocks
        assert self.used_blocks + len(self._kept) * self.content_blocks <= self.capacity_blocks
