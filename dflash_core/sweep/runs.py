"""Decodes the runs of a sweep: a generator that can be closed between blocks and goes on where an earlier one stopped."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..blocks import Block, Generation
from ..pairs import Pair
from ..rows import Request, iter_rows
from ..whatif import judged_positions, rescore
from .plan import RunKey, SweepError, SweepPlan


@dataclass(frozen=True, slots=True)
class Contexts:
    """A run's judged positions scored at all temperatures of the sweep (`whatif.rescore`), summed by place in the block.

    judged: positions judged at place i = 1 … γ. accepted: for each rule, for each of the plan's temperatures, the sums of the
    closed-form acceptance at these places.
    """

    judged: tuple[int, ...]
    accepted: dict[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True, slots=True)
class CellRun:
    """A finished run. rows: how many were decoded together; the seconds of its blocks are a measurement only with 1."""

    key: RunKey
    blocks: tuple[Block, ...]
    rows: int = 1
    contexts: Contexts | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for block in self.blocks for token in block.emitted)


@dataclass(frozen=True, slots=True)
class Step:
    """One block was decoded, and with it maybe a run finished.

    key: the run it belongs to. run: that run, if the block was its last. n_done, n_runs: finished runs, earlier ones included,
    and all. seconds_left: an estimate from the runs so far; None before the first.
    """

    key: RunKey
    block: Block
    run: CellRun | None
    n_done: int
    n_runs: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """What a sweep takes if every run goes to its cap; stop tokens make it less.

    seconds_of_run: of one timed run, by block size, 1 being plain decoding. seconds_of_row: of one run decoded as a row of many.
    """

    seconds: float
    n_runs: int
    seconds_of_run: dict[int, float]
    seconds_of_row: dict[int, float]


def encode_prompts(pair: Pair, plan: SweepPlan) -> tuple[tuple[int, ...], ...]:
    """Token ids of each prompt. Raises SweepError, naming the prompt, for one that is empty or too long for the context."""
    encoded = []
    longest_block = max(plan.block_sizes)
    room = pair.target.max_positions - plan.max_new_tokens - longest_block + 1
    for prompt in plan.prompts:
        try:
            ids = pair.encode(prompt.messages or prompt.text, chat=prompt.chat)[0].tolist()
        except Exception as error:  # a chat template may raise anything
            raise SweepError(f"the prompt {prompt.name!r} cannot be encoded: {error}") from error
        if len(ids) > room:
            raise SweepError(
                f"the prompt {prompt.name!r} has {len(ids):,} tokens; with {plan.max_new_tokens:,} new ones and a block of "
                f"{longest_block} the context of {pair.target.max_positions:,} leaves room for {max(room, 0):,}: shorten it, "
                "or ask for fewer tokens"
            )
        encoded.append(tuple(ids))
    return tuple(encoded)


def sweep_runs(
    pair: Pair,
    plan: SweepPlan,
    prompt_ids: Sequence[Sequence[int]],
    *,
    done: Collection[RunKey] = (),
    part: tuple[int, int] = (0, 1),
) -> Generator[Step, None, None]:
    """Decodes the runs that are not done yet and yields a Step for each block. Close it to stop after the current block.

    prompt_ids: of `encode_prompts`. part: (i, n) takes every n-th group of runs from the i-th on.
    """
    groups = plan.groups[part[0] :: part[1]]
    done = set(done)
    n_runs = sum(map(len, groups))
    todo = [key for group in groups for key in group if key not in done]
    n_done = n_runs - len(todo)
    _warm_up(pair, plan, todo, prompt_ids)
    clock = _TimeLeft(todo)
    blocks: defaultdict[RunKey, list[Block]] = defaultdict(list)
    for rows, key, block in _decode(pair, plan, prompt_ids, todo):
        blocks[key].append(block)
        run = None
        if block.finish_reason:
            decoded = tuple(blocks.pop(key))
            run = CellRun(key, decoded, rows, _contexts(pair, plan, key, prompt_ids[key.prompt], decoded))
            n_done += 1
            clock.finished(key.cell.block_size)
        clock.pause()
        yield Step(key, block, run, n_done, n_runs, clock.seconds_left())
        clock.go_on()


def estimate_time(
    pair: Pair, plan: SweepPlan, prompt_ids: Sequence[Sequence[int]], *, done: Collection[RunKey] = (), seconds: float = 4.0
) -> TimeEstimate:
    """Decodes the first prompt for about so many seconds and says what the runs that are not done yet will take."""
    done = set(done)
    left = Counter(
        (key.cell.block_size, plan.is_timed(key.prompt), plan.has_contexts(key.cell)) for key in plan.keys if key not in done
    )
    measured = {(size, timed) for size, timed, _ in left}
    cost = {
        (size, timed): _seconds_of_run(pair, plan, prompt_ids[0], size, 1 if timed else plan.rows, seconds / len(measured))
        for size, timed in sorted(measured)
    }
    # Scoring a run again is another draft and target pass for each of its blocks.
    total = sum(n * cost[size, timed] * (2 if contexts else 1) for (size, timed, contexts), n in left.items())
    of_run, of_row = ({size: value for (size, timed), value in cost.items() if timed is want} for want in (True, False))
    return TimeEstimate(total, left.total(), of_run, of_row)


def _decode(
    pair: Pair, plan: SweepPlan, prompt_ids: Sequence[Sequence[int]], todo: Iterable[RunKey]
) -> Iterator[tuple[int, RunKey, Block]]:
    """The blocks of all runs, with the number of rows they were decoded in and their run."""
    todo = list(todo)
    batches = [(1, [key]) for key in todo if plan.is_timed(key.prompt)]
    # As many prompts together as there are rows, so that every cell soon has some. Rows of a pass must share a block size, and
    # those of one temperature and rule are drawn together: such runs stand side by side.
    order = {plan.decoded_as(cell): i for i, cell in enumerate(plan.cells)}
    chunks: defaultdict[tuple[int, int], list[RunKey]] = defaultdict(list)
    for key in todo:
        if not plan.is_timed(key.prompt):
            chunks[(key.prompt - plan.timed_prompts) // plan.rows, key.cell.block_size].append(key)
    batches += [(plan.rows, sorted(chunks[name], key=lambda key: order[key.cell])) for name in sorted(chunks)]
    for rows, keys in batches:
        requests = [_request(pair, plan, key, prompt_ids) for key in keys]
        for index, block in iter_rows(pair.draft, pair.target, requests, rows=rows):
            yield rows, keys[index], block


def _warm_up(pair: Pair, plan: SweepPlan, todo: Sequence[RunKey], prompt_ids: Sequence[Sequence[int]]) -> None:
    """A few blocks of each size, kept nowhere: the first passes of a process are slow, and would count against some cell."""
    for key in {key.cell.block_size: key for key in todo if plan.is_timed(key.prompt)}.values():
        for _ in islice(iter_rows(pair.draft, pair.target, [_request(pair, plan, key, prompt_ids)], rows=1), 3):
            pass


def _request(pair: Pair, plan: SweepPlan, key: RunKey, prompt_ids: Sequence[Sequence[int]]) -> Request:
    ids = tuple(prompt_ids[key.prompt])
    return Request(ids, plan.params(key), key.cell.block_size, plan.max_new_tokens, pair.stop_token_ids)


def _contexts(pair: Pair, plan: SweepPlan, key: RunKey, prompt_ids: Sequence[int], blocks: tuple[Block, ...]) -> Contexts | None:
    if not plan.has_contexts(key.cell) or not judged_positions(blocks):
        return None
    generation = Generation(tuple(prompt_ids), plan.params(key), key.cell.block_size, blocks)
    whatif = rescore(pair.draft, pair.target, generation, plan.temperatures, rules=plan.rules)
    judged = [0] * (key.cell.block_size - 1)
    sums = {rule: [[0.0] * len(judged) for _ in plan.temperatures] for rule in plan.rules}
    for row, (_, i) in enumerate(whatif.positions):
        judged[i - 1] += 1
        for rule, table in whatif.acceptance.items():
            for t, value in enumerate(table[row]):
                sums[rule][t][i - 1] += value
    # Six digits, as the what-if has them: the sums would carry the rounding of their order.
    accepted = {rule: tuple(tuple(float(f"{v:.6g}") for v in row) for row in rows) for rule, rows in sums.items()}
    return Contexts(tuple(judged), accepted)


def _seconds_of_run(pair: Pair, plan: SweepPlan, prompt_ids: Sequence[int], block_size: int, rows: int, budget: float) -> float:
    """Wall time of a run to its cap, one of `rows` that are decoded together, from a start of it."""
    key = RunKey(plan.cells[-1], 0, plan.seeds[0])
    params = plan.params(key)
    request = Request(tuple(prompt_ids), params, block_size, plan.max_new_tokens)
    stream = iter_rows(pair.draft, pair.target, [request] * rows, rows=rows)
    began = time.perf_counter()
    list(islice(stream, 2 * rows))  # the prefill and a first block, which finds everything cold
    warm = time.perf_counter()
    tokens = 0
    for _, block in stream:
        tokens += len(block.emitted)
        if time.perf_counter() - began > budget:
            break
    each = (time.perf_counter() - warm) / max(tokens, 1)
    return (warm - began) / rows + each * plan.max_new_tokens


class _TimeLeft:
    """Mean time of the finished runs of each block size, times those that are left. The consumer's time does not count."""

    def __init__(self, todo: Iterable[RunKey]) -> None:
        self._left = Counter(key.cell.block_size for key in todo)
        self._seconds: Counter[int] = Counter()
        self._runs: Counter[int] = Counter()
        self._busy, self._since = 0.0, time.perf_counter()

    def pause(self) -> None:
        self._busy += time.perf_counter() - self._since

    def go_on(self) -> None:
        self._since = time.perf_counter()

    def finished(self, block_size: int) -> None:
        self.pause()
        self._seconds[block_size] += self._busy  # type: ignore[assignment]
        self._runs[block_size] += 1
        self._left[block_size] -= 1
        self._busy, self._since = 0.0, time.perf_counter()

    def seconds_left(self) -> float | None:
        if not self._runs:
            return None
        usual = sum(self._seconds.values()) / self._runs.total()
        return sum(n * (self._seconds[size] / self._runs[size] if self._runs[size] else usual) for size, n in self._left.items())
