"""Trains a draft on a target's own conversations: `python -m dflash_core.training.train --data DIRECTORY --out DIRECTORY`.

Every step takes some conversations, random anchors in their responses, one block size, and teaches the draft to guess what
follows each anchor. The state is written every few minutes; the same command goes on from it, with the same result as if it
had never stopped. `--out` gets the averaged weights as a draft ready to be used (`draft/`), the state (`state.pt`) and
`log.jsonl`, with the held-out loss, agreement and overlap by position; `python -m dflash_ui.training_chart` draws it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from ..blocks import require
from ..draft_model import DFlashDraftModel
from ..weights import ensure_target
from .arguments import device, model_source, number, output_directory, whole
from .data import Shards
from .loss import LossMix
from .trainer import Trainer, TrainingOptions
from .warm_start import new_draft


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    try:
        trainer = make_trainer(options)
        if (options.out / "state.pt").exists():
            for changed in trainer.resume(options.out):
                print(f"train: goes on at step {trainer.step:,} of a run that was begun with {changed}", file=sys.stderr)
    except (OSError, ValueError) as error:
        raise SystemExit(f"train: {error}") from error
    run(trainer, options)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = TrainingOptions()
    mix = (default.mix.tokens, default.mix.distillation, default.mix.overlap)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="directories of shards made by synthesise")
    parser.add_argument(
        "--out", type=output_directory, required=True, help="directory of the run; it may hold a part of it already"
    )
    parser.add_argument(
        "--target", type=model_source, default="", help="directory or hub id of the target; the embedded one if not given"
    )
    parser.add_argument("--init", type=model_source, help="a draft to begin with (default: copies of the target's upper layers)")
    parser.add_argument("--layers", type=whole(1), default=3, help="of the draft")
    parser.add_argument(
        "--taps", type=whole(0), nargs="+", help="target layers that the draft sees (default: all that were stored)"
    )
    parser.add_argument("--mask-token", type=whole(0), default=7, help="token id of the mask: one that is never produced in chat")
    parser.add_argument("--block-size", type=whole(2), default=16, help="largest, written into the config")
    parser.add_argument("--steps", type=whole(1), default=default.steps)
    parser.add_argument("--conversations", type=whole(1), default=default.conversations, help="in a step")
    parser.add_argument(
        "--block-tokens", type=whole(2), default=default.block_tokens, help="anchors × block size in a conversation"
    )
    parser.add_argument("--learning-rate", type=number(1e-9), default=default.learning_rate)
    parser.add_argument("--weight-decay", type=number(0), default=default.weight_decay)
    parser.add_argument(
        "--averaging", type=number(0, 0.99999), default=default.averaging, help="share of the past that the average keeps"
    )
    parser.add_argument(
        "--decay", type=number(1e-3), default=default.decay, help="loss weight of position k: exp(−(k − 1)/decay)"
    )
    parser.add_argument("--mix", type=number(0), nargs=3, default=mix, metavar=("TOKENS", "DISTILLATION", "OVERLAP"))
    parser.add_argument(
        "--block-sizes",
        type=int,
        nargs="+",
        default=default.block_sizes,
        help="one is drawn for each step; repeats make it likelier",
    )
    parser.add_argument(
        "--temperatures",
        type=number(0),
        nargs=2,
        default=default.temperatures,
        metavar=("LOWEST", "HIGHEST"),
        help="of the conversations that are trained on",
    )
    parser.add_argument("--words", type=whole(1), default=default.words, help="most frequent tokens, in every step's loss")
    parser.add_argument(
        "--draft-words",
        type=whole(0),
        default=default.draft_words,
        help="most frequent tokens that the finished draft says; 0: all",
    )
    parser.add_argument(
        "--full-head", type=number(0, 1), default=default.full_head, help="share of steps with the whole vocabulary"
    )
    parser.add_argument(
        "--held-out-one-in", type=whole(2), default=default.held_out_one_in, help="of so many prompts, one is kept back"
    )
    parser.add_argument("--evaluate-every", type=whole(1), default=500, help="steps")
    parser.add_argument("--save-every", type=number(0), default=300, help="seconds")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--float32", dest="autocast", action="store_false", help="no bfloat16 arithmetic")
    return parser.parse_args(arguments)


def make_trainer(options: argparse.Namespace) -> Trainer:
    disable_progress_bar()
    shards = Shards(options.data)
    source = options.target or str(ensure_target())
    target = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    if options.init:
        draft = DFlashDraftModel.from_pretrained(options.init, dtype=torch.float32)
        size = target.config.get_text_config().hidden_size
        require(
            draft.config.hidden_size == size, f"{options.init} is of hidden size {draft.config.hidden_size}, the target of {size}"
        )
    else:
        draft = new_draft(
            target,
            shards[0].token_ids[None],
            taps=options.taps or shards.taps,
            n_layers=options.layers,
            block_size=options.block_size,
            mask_token_id=options.mask_token,
        )
    embedding, head = target.get_input_embeddings().weight.detach(), target.get_output_embeddings().weight.detach()
    require(options.mask_token < len(embedding), f"the mask token must be below {len(embedding):,}, not {options.mask_token}")
    draft.config.block_size = options.block_size
    training_options = TrainingOptions(
        steps=options.steps,
        conversations=options.conversations,
        block_tokens=options.block_tokens,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        averaging=options.averaging,
        decay=options.decay,
        mix=LossMix(*options.mix),
        words=options.words,
        full_head=options.full_head,
        held_out_one_in=options.held_out_one_in,
        seed=options.seed,
        autocast=options.autocast,
        draft_words=options.draft_words,
        block_sizes=tuple(options.block_sizes),
        temperatures=tuple(options.temperatures),
    )
    return Trainer(draft, embedding, head, shards, training_options, options.device)


def run(trainer: Trainer, options: argparse.Namespace) -> None:
    """From the trainer's step to the last one. The next batch is read while a step is at work."""
    saved, recent = time.monotonic(), 0.0
    with (
        ThreadPoolExecutor(1) as pool,
        tqdm(total=options.steps, initial=trainer.step, unit="step", smoothing=0.02, dynamic_ncols=True) as bar,
    ):
        if trainer.step == 0:  # what it knows before: its distance between the two sides is that of their texts
            tqdm.write(report(trainer, options.out / "log.jsonl", None))
        ahead = pool.submit(trainer.batch, trainer.step)
        while trainer.step < options.steps:
            batch = ahead.result()
            ahead = pool.submit(trainer.batch, trainer.step + 1)
            loss = trainer.train_step(batch)
            recent = 0.98 * recent + 0.02 * loss if recent else loss
            bar.update()
            bar.set_postfix(loss=f"{recent:.3f}")
            if trainer.step % options.evaluate_every == 0 or trainer.step == options.steps:
                tqdm.write(report(trainer, options.out / "log.jsonl", recent))
            if time.monotonic() - saved > options.save_every or trainer.step == options.steps:
                trainer.save(options.out)
                saved = time.monotonic()


def report(trainer: Trainer, log: Path, recent_loss: float | None) -> str:
    """One line of the log: the figures on held-out conversations, and on some that were trained on. Returns it in words."""
    held_out = trainer.evaluate(trainer.held_out[:192])
    seen = trainer.evaluate(trainer.training[:: max(1, len(trainer.training) // 192)][:192])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        line = {"step": trainer.step, "training_loss": recent_loss, "held_out": held_out, "training": seen}
        file.write(json.dumps(line) + "\n")
    taus = ", ".join(f"{name} {value:.2f}" for name, value in held_out.items() if name.startswith("tau"))
    return (
        f"step {trainer.step}: {taus}; position 1: agreement {shown(held_out['agreement_at_1'])}, "
        f"training {shown(seen['agreement_at_1'])}; overlap {shown(held_out['overlap_at_1'])}"
    )


def shown(estimate: tuple[float, float | None, float | None]) -> str:
    value, low, high = estimate
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} – {high:.3f})"


if __name__ == "__main__":
    main()
