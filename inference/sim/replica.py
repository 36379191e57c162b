"""An engine of continuous batching: vLLM's scheduler, as far as its timing goes.

In each step every decoding sequence makes one token; what is left of the token budget goes to prompts, in order: those begun,
then waiting ones. KV blocks are taken as tokens are scheduled. When they run out the last in order is preempted: it loses
its blocks, waits again in its old place and computes prompt and answer anew (recompute). A waiting sequence never preempts
(ENGINE.md section 4). Steps without a prompt in them are all alike, so many are done as one event; whatever happens
meanwhile waits for the end of the step in progress, as it does in the engine.
"""

import heapq
from collections.abc import Iterator
from typing import Protocol

from inference.policy.decisions import StateFrame
from inference.sim.decode_batch import DecodeBatch
from inference.sim.engine_profile import EngineProfile
from inference.sim.event_loop import Event, EventLoop
from inference.sim.histogram import Histogram
from inference.sim.kv_cache import KvCache
from inference.sim.run import Run
from inference.sim.sequence import Sequence, Stage


class Listener(Protocol):
    """Whoever runs the replica: told at the end of the step in which it happens."""

    def on_first_token(self, replica: "Replica", sequence: Sequence) -> None: ...

    def on_end(self, replica: "Replica", sequence: Sequence) -> None: ...


class Replica:
    def __init__(
        self,
        replica_id: str,
        *,
        profile: EngineProfile,
        content_block_tokens: int,
        loop: EventLoop,
        listener: Listener,
    ) -> None:
        assert content_block_tokens % profile.kv_block_tokens == 0
        self.id = replica_id
        self.profile = profile
        self.gaps: dict[tuple[int, str], Histogram] = {}
        """Times between two tokens of one sequence, by group."""
        self.prefilled_tokens = 0
        """Computed, recomputed ones too; not what was found in the cache."""
        self.generated_tokens = 0
        self.preemptions = 0
        self.busy_s = 0.0
        self.cache = KvCache(
            capacity_blocks=profile.kv_tokens // profile.kv_block_tokens,
            content_blocks=content_block_tokens // profile.kv_block_tokens,
        )
        self._content_tokens = content_block_tokens
        self._loop, self._listener = loop, listener
        self._decodes = DecodeBatch(block_tokens=profile.kv_block_tokens)
        self._prefills: list[Sequence] = []
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._num_waiting = 0
        self._order = 0
        self._aborted: list[Sequence] = []
        self._run: Run | None = None
        self._end: Event
        self._is_finishing = False
        self._iteration_s: float | None = None

    # What the outside does.

    def can_ever_serve(self, prompt_tokens: int, output_tokens: int) -> bool:
        return prompt_tokens + output_tokens <= self.profile.kv_tokens - self._content_tokens

    def submit(self, sequence: Sequence) -> None:
        assert sequence.prompt_tokens > 0 and sequence.output_tokens > 0
        assert self.can_ever_serve(sequence.prompt_tokens, sequence.output_tokens)
        self._order += 1
        sequence.order = self._order
        self._wait(sequence)
        self._wake()

    def abort(self, sequence: Sequence) -> None:
        """It ends without a word to the listener; its memory is free at the end of the step in progress."""
        if sequence.stage is Stage.ENDED or sequence.is_aborted:
            return
        sequence.is_aborted = True
        self._aborted.append(sequence)
        self._wake()

    def generated_by(self, sequence: Sequence) -> int:
        """Tokens that it has made by now."""
        if sequence.joined_step < 0:
            return sequence.generated
        return sequence.generated + self._step_now() - sequence.joined_step

    def progress(self) -> Iterator[tuple[str, int]]:
        """Id and tokens made by now, of all that decode."""
        step = self._step_now()
        for sequence in self._decodes.sequences.values():
            yield sequence.id, sequence.generated + step - sequence.joined_step

    def _step_now(self) -> int:
        run = self._run
        if run is None or self._loop.now_s <= run.start_s:
            return self._decodes.step
        return self._decodes.step + run.steps_ended(self._loop.now_s)

    @property
    def running(self) -> int:
        return len(self._decodes) + len(self._prefills)

    def frame(self) -> StateFrame:
        """What its agent would say of it now."""
        return StateFrame(
            running=self.running,
            waiting=self._num_waiting,
            kv_used_ratio=self.cache.used_ratio,
            generated_tokens=self.generated_tokens,
            iteration_s=self._iteration_s,
        )

    # Between steps.

    def _wake(self) -> None:
        """Something new: plan at the end of the step in progress."""
        if self._is_finishing:
            return
        if self._run is None:
            self._plan()
            return
        steps = self._run.steps_begun(self._loop.now_s)
        if steps < self._run.steps:
            self._run.steps = steps
            self._end.cancel()
            self._end = self._loop.at(self._run.end_s, self._finish)

    def _plan(self) -> None:
        self._drop_aborted()
        preemptions = self.preemptions
        while self._decodes.blocks_needed(1) > self.cache.available_blocks:
            self._preempt(self._last_running())
        budget = self.profile.step_budget_tokens - len(self._decodes)
        chunks = self._chunks_of_begun(budget)
        if self.preemptions == preemptions:
            budget -= sum(tokens for _, tokens in chunks)
            chunks += self._chunks_of_waiting(budget)
        self.cache.allocate(self._decodes.blocks_needed(1))
        if not chunks and not self._decodes:
            assert not self._prefills and not self._num_waiting, "nothing runs and nothing fits"
            self._run = None
            return
        self._start(chunks)

    def _start(self, chunks: list[tuple[Sequence, int]]) -> None:
        sequences = len(self._decodes)
        step_s = self.profile.decode_s(sequences, self._decodes.kv_tokens)
        step_s += sum(self.profile.prefill_s(tokens, sequence.computed_tokens) for sequence, tokens in chunks)
        steps = 1
        if not chunks:
            ahead = self._decodes.blocks_needed(1)
            steps = self._decodes.steps_until_change(self.cache.available_blocks + ahead)
        self._run = Run(self._loop.now_s, steps, step_s, self.profile.kv_token_s * sequences, chunks)
        self._end = self._loop.at(self._run.end_s, self._finish)

    def _finish(self) -> None:
        """The steps of the run are done."""
        run = self._run
        assert run is not None
        self._run, self._is_finishing = None, True
        total_s = run.time_s(run.steps)
        self.busy_s += total_s
        self._iteration_s = total_s / run.steps
        self._count_gaps(run)
        self.cache.allocate(self._decodes.blocks_needed(run.steps - 1, after=1))
        self.generated_tokens += run.steps * len(self._decodes)
        ended = self._decodes.advance(run.steps)
        for sequence in ended:
            self._leave_decodes(sequence)
        for sequence, tokens in run.chunks:
            self._computed(sequence, tokens, ended)
        for sequence in ended:
            if not sequence.is_aborted:
                self._release(sequence)
                sequence.stage = Stage.ENDED
                self._listener.on_end(self, sequence)
        self._is_finishing = False
        self._plan()

    def _count_gaps(self, run: Run) -> None:
        if self._decodes:
            for step_s, steps in run.step_times():
                for group, sequences in self._decodes.groups.items():
                    self._gaps_of(group).add(step_s, sequences * steps)

    def _gaps_of(self, group: tuple[int, str]) -> Histogram:
        gaps = self.gaps.get(group)
        if gaps is None:
            gaps = self.gaps[group] = Histogram()
        return gaps

    # Prompts.

    def _chunks_of_begun(self, budget: int) -> list[tuple[Sequence, int]]:
        """The next piece of each prompt that is under way, in order; preempts from the end when blocks run out."""
        chunks: list[tuple[Sequence, int]] = []
        for sequence in sorted(self._prefills, key=_rank):
            if budget <= 0 or sequence.stage is not Stage.PREFILL:
                continue
            tokens = min(budget, sequence.target_tokens - sequence.computed_tokens)
            if not self._take_blocks(sequence, tokens):
                break
            chunks.append((sequence, tokens))
            budget -= tokens
        return chunks

    def _take_blocks(self, sequence: Sequence, tokens: int) -> bool:
        needed = self._blocks(sequence.computed_tokens + tokens) - sequence.kv_blocks
        while needed + self._decodes.blocks_needed(1) > self.cache.available_blocks:
            victim = self._last_running()
            self._preempt(victim)
            if victim is sequence:
                return False
        self.cache.allocate(needed)
        sequence.kv_blocks += needed
        return True

    def _chunks_of_waiting(self, budget: int) -> list[tuple[Sequence, int]]:
        chunks: list[tuple[Sequence, int]] = []
        while budget > 0 and self._waiting and self.running < self.profile.max_sequences:
            sequence = self._waiting[0][1]
            if sequence.stage is not Stage.WAITING:
                heapq.heappop(self._waiting)
                continue
            tokens = self._admit(sequence, budget)
            if not tokens:
                break
            heapq.heappop(self._waiting)
            self._num_waiting -= 1
            chunks.append((sequence, tokens))
            budget -= tokens
        return chunks

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Tokens of its first chunk; 0: there is no memory for it now."""
        target = sequence.prompt_tokens + sequence.generated
        whole = min(sequence.prompt_tokens, target - 1) // self._content_tokens  # the last token is always computed
        matched = sequence.content[: self.cache.match(sequence.content, whole)]
        cached = len(matched) * self._content_tokens
        tokens = min(budget, target - cached)
        held_blocks = len(matched) * self.cache.content_blocks
        needed = self._blocks(cached + tokens) - held_blocks
        if not self.cache.can_take(matched, needed + self._decodes.blocks_needed(1)):
            return 0
        for block in matched:
            self.cache.refer(block)
        self.cache.allocate(needed)
        sequence.held = list(matched)
        sequence.published = len(matched)
        sequence.kv_blocks = held_blocks + needed
        sequence.computed_tokens, sequence.target_tokens = cached, target
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached
        sequence.stage = Stage.PREFILL
        self._prefills.append(sequence)
        return tokens

    def _computed(self, sequence: Sequence, tokens: int, ended: list[Sequence]) -> None:
        """A chunk is done; with the last one comes a token."""
        self.prefilled_tokens += tokens
        sequence.computed_tokens += tokens
        whole = min(sequence.computed_tokens, sequence.prompt_tokens) // self._content_tokens
        for block in sequence.content[sequence.published : whole]:
            if self.cache.publish(block):
                sequence.held.append(block)
        sequence.published = max(sequence.published, whole)
        if sequence.computed_tokens < sequence.target_tokens:
            return
        self._prefills.remove(sequence)
        sequence.generated += 1
        self.generated_tokens += 1
        sequence.stage = Stage.DECODE
        if sequence.generated < sequence.output_tokens:
            self._decodes.join(sequence)
        else:
            ended.append(sequence)
        if sequence.last_token_s is not None:
            self._gaps_of(sequence.group).add(self._loop.now_s - sequence.last_token_s)
        elif not sequence.is_aborted:
            self._listener.on_first_token(self, sequence)

    # Leaving.

    def _wait(self, sequence: Sequence) -> None:
        sequence.stage = Stage.WAITING
        self._num_waiting += 1
        heapq.heappush(self._waiting, (sequence.rank, sequence))

    def _leave_decodes(self, sequence: Sequence) -> None:
        self._decodes.leave(sequence)
        sequence.last_token_s = self._loop.now_s

    def _release(self, sequence: Sequence) -> None:
        own_blocks = sequence.kv_blocks - len(sequence.held) * self.cache.content_blocks
        self.cache.release(sequence.held, own_blocks)
        sequence.held, sequence.kv_blocks, sequence.computed_tokens = [], 0, 0

    def _last_running(self) -> Sequence:
        return max((*self._decodes.sequences.values(), *self._prefills), key=_rank)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        sequence.preemptions += 1
        if sequence.stage is Stage.DECODE:
            self._leave_decodes(sequence)
        else:
            self._prefills.remove(sequence)
        self._release(sequence)
        self._wait(sequence)

    def _drop_aborted(self) -> None:
        for sequence in self._aborted:
            if sequence.joined_step >= 0:
                self._leave_decodes(sequence)
            elif sequence.stage is Stage.PREFILL:
                self._prefills.remove(sequence)
            elif sequence.stage is Stage.WAITING:
                self._num_waiting -= 1
            if sequence.stage is not Stage.WAITING:
                self._release(sequence)
            sequence.stage = Stage.ENDED
        self._aborted.clear()

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.profile.kv_block_tokens)

    def check_invariants(self) -> None:
        """Between events."""
        self.cache.check_invariants()
        self._decodes.check_invariants()
        assert self.running <= self.profile.max_sequences
        assert self._num_waiting == sum(entry[1].stage is Stage.WAITING for entry in self._waiting)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
