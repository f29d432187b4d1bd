"""A run as a table and as a summary, for other programs. Pure: no gradio import."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict

from dflash_core.generate import accept_uniforms
from dflash_core.metrics import CONFIDENCE

from .run import Run

COLUMNS = (
    "block", "position", "place", "token_id", "token", "p", "q", "acceptance_probability", "accepted", "in_output",
    "emitted_token_id", "emitted_token", "uniform", "target_entropy_nats", "draft_entropy_nats",
)  # fmt: skip
FORMULA = "=+-@＝＋－＠"  # a spreadsheet takes a cell that begins so for a formula
DEFINITIONS = {
    "tau": "tokens emitted per draft-verify cycle, the prefill left out; the interval is Student's t over the run's blocks",
    "alpha": "accepted / judged; tokens after the first rejection were never judged; Wilson's interval",
    "positions": "by place in the block: rate = accepted / judged with Wilson's interval; survival by Kaplan and Meier",
    "speculative_decoding": "what vLLM reports of a request, by its names: mean_acceptance_length is 1 + accepted / steps, so it "
    "differs from tau if a block was cut; draft_acceptance_rate divides by all drafted tokens, judged or not",
    "counters": "the counts of vLLM's engine-wide statistics, for this run alone",
}


def table(run: Run) -> str:
    """One row for each judged token, as CSV by RFC 4180.

    A text that a spreadsheet would take for a formula gets an apostrophe in front; token_id says what the token was.
    accepted: the rule kept it. in_output: it is part of the text; a token can be accepted and cut off. emitted_…: what stands at
    its position. uniform: the number drawn for it, under rules that draw one.
    """
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(COLUMNS)
    for block in run.blocks[: len(run.views)]:
        uniforms = accept_uniforms(run.request.params, block)
        for k, judged in enumerate(block.judged, start=1):
            drafted, emitted = block.drafted[k - 1], block.emitted[k - 1] if k <= len(block.emitted) else None
            rows.writerow(
                [
                    block.index,
                    block.start + k,
                    k,
                    drafted,
                    _cell(run.words.get(str(drafted), "")),
                    judged.target_prob,
                    judged.draft_prob,
                    judged.accept_prob,
                    str(k <= block.n_accepted).lower(),
                    str(k <= block.accepted).lower(),
                    "" if emitted is None else emitted,
                    "" if emitted is None else _cell(run.words.get(str(emitted), "")),
                    "" if uniforms is None else uniforms[k - 1],
                    judged.target_entropy,
                    judged.draft_entropy,
                ]
            )
    return out.getvalue()


def summary(run: Run) -> str:
    """The run's figures as JSON: vLLM's names for what it has names for, then ours with their intervals."""
    stats, params = run.stats(), run.request.params
    blocks = [block for block in run.blocks[: len(run.views)] if block.index]
    accepted = [block.accepted for block in blocks]
    n_drafted = run.request.block_size - 1
    steps = len(blocks)
    speculative = {
        "mean_acceptance_length": 1 + stats.accepted / steps if steps and n_drafted else None,
        "draft_acceptance_rate": stats.accepted / stats.drafted if stats.drafted else None,
        "acceptance_histogram": [accepted.count(j) for j in range(n_drafted + 1)],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
        "num_spec_tokens": n_drafted,
        "per_step_accepted": accepted,
        "per_step_drafted": [len(block.drafted) for block in blocks],
    }
    counters = {
        "num_drafts": steps if n_drafted else 0,
        "num_draft_tokens": stats.drafted,
        "num_accepted_tokens": stats.accepted,
        "num_accepted_tokens_per_pos": [row.accepted for row in stats.positions],
    }
    about = {name: value for name, value in run.about.items() if name not in ("prompt_chips", "words")}
    values = {
        "format": "dflash-summary",
        "version": 1,
        "run": about | asdict(params) | {"block_size": run.request.block_size, "finish_reason": _finish_reason(run)},
        "usage": {
            "prompt_tokens": len(run.prompt_ids),
            "completion_tokens": stats.n_tokens,
            "total_tokens": len(run.prompt_ids) + stats.n_tokens,
        },
        "metrics": {"speculative_decoding": speculative},
        "counters": counters,
        "figures": {"confidence": CONFIDENCE} | asdict(stats),
        "plain_decoding": run.plain,
        "definitions": DEFINITIONS,
    }
    return json.dumps(values, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _finish_reason(run: Run) -> str | None:
    return run.blocks[-1].finish_reason if run.blocks else None


def _cell(text: str) -> str:
    risky = text.startswith(("\t", "\r", "\n")) or text.lstrip().startswith(tuple(FORMULA))
    return f"'{text}" if risky else text
