"""The sequences of a replica that decode, as sums, so that a step costs the same whatever their number.

In every step each of them computes one token. So a sequence is described by the step in which it joined, ends are a heap of
step numbers, and which sequences need another KV block in a step follows from their length modulo the block's.
"""

import heapq

from inference.sim.sequence import Sequence


class DecodeBatch:
    def __init__(self, *, block_tokens: int) -> None:
        self.step = 0
        self.kv_tokens = 0
        self.groups: dict[tuple[int, str], int] = {}
        self.sequences: dict[str, Sequence] = {}
        self._block_tokens = block_tokens
        self._residues = [0] * block_tokens
        """How many have (length - step) % block_tokens == index: fixed while they decode."""
        self._ends: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def join(self, sequence: Sequence) -> None:
        """It has all its prompt computed and at least one token left to make."""
        assert sequence.generated < sequence.output_tokens
        sequence.joined_step = self.step
        self.sequences[sequence.id] = sequence
        self.kv_tokens += sequence.computed_tokens
        self.groups[sequence.group] = self.groups.get(sequence.group, 0) + 1
        self._residues[(sequence.computed_tokens - self.step) % self._block_tokens] += 1
        end = self.step + sequence.output_tokens - sequence.generated
        heapq.heappush(self._ends, (end, sequence.order, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Ended, preempted or aborted: its own numbers are made exact."""
        del self.sequences[sequence.id]
        self._residues[(sequence.computed_tokens - sequence.joined_step) % self._block_tokens] -= 1
        done = self.step - sequence.joined_step
        sequence.generated += done
        sequence.computed_tokens += done
        sequence.kv_blocks = -(-sequence.computed_tokens // self._block_tokens)
        sequence.joined_step = -1  # its entry in the heap is void
        self.kv_tokens -= sequence.computed_tokens
        left = self.groups[sequence.group] - 1
        if left:
            self.groups[sequence.group] = left
        else:
            del self.groups[sequence.group]

    def blocks_needed(self, steps: int, *, after: int = 0) -> int:
        """KV blocks that the steps after the next `after` ones take, `steps` of them."""
        cycles, rest = divmod(steps, self._block_tokens)
        first = self.step + after
        return cycles * len(self.sequences) + sum(
            self._residues[-step % self._block_tokens] for step in range(first, first + rest)
        )

    def steps_until_change(self, available_blocks: int) -> int:
        """Steps until the first end, or until blocks would run out: at least 1, whose blocks the caller has seen to."""
        while self._is_void(self._ends[0]):
            heapq.heappop(self._ends)
        steps = self._ends[0][0] - self.step
        assert steps >= 1
        if self.blocks_needed(steps) <= available_blocks:
            return steps
        low, high = 1, steps  # blocks for `low` are there (or it is 1), for `high` not
        while high - low > 1:
            middle = (low + high) // 2
            if self.blocks_needed(middle) <= available_blocks:
                low = middle
            else:
                high = middle
        return low

    def advance(self, steps: int) -> list[Sequence]:
        """Those that have ended after so many steps; they still have to `leave`."""
        self.step += steps
        self.kv_tokens += steps * len(self.sequences)
        ended = []
        while self._ends and self._ends[0][0] <= self.step:
            entry = heapq.heappop(self._ends)
            if not self._is_void(entry):
                ended.append(entry[2])
        return ended

    def _is_void(self, entry: tuple[int, int, Sequence]) -> bool:
        end, _, sequence = entry
        return sequence.joined_step < 0 or end != sequence.joined_step + sequence.output_tokens - sequence.generated

    def check_invariants(self) -> None:
        lengths = [sequence.computed_tokens + self.step - sequence.joined_step for sequence in self.sequences.values()]
        assert self.kv_tokens == sum(lengths)
        assert sum(self._residues) == sum(self.groups.values()) == len(lengths)
