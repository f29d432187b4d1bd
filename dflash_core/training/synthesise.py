"""The target makes its own training data: `python -m dflash_core.training.synthesise --out DIRECTORY --tokens 1000000`.

User turns are sampled from the bare chat template, half of them begun with one of the openings in `starters.txt`; then the
target answers each at several temperatures. What training needs (the outputs of the tapped layers and the final hidden state at
every token) is stored as it comes. A shard depends only on the seed and its own number: the same command goes on where a
stopped one was, with the same result.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from ..blocks import require
from ..decoder import Decoder
from ..pairs import DTYPES, stop_token_ids
from ..weights import ensure_target
from .arguments import add_part, device, existing_file, model_source, output_directory, whole
from .data import Conversation, count_response_tokens, seed_of, word_runs, write_shard
from .decode_rows import Request, decode_rows

STARTERS = Path(__file__).with_name("starters.txt")
TEMPERATURES = (0.0, 0.5, 0.8, 1.0)
TURN_TEMPERATURE = 0.9
MAX_TURN_TOKENS = 64

MakeShard = Callable[[int], list[Conversation]]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    disable_progress_bar()
    source = options.target or str(ensure_target())
    try:
        seed_of(options.seed, options.part[0])
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[options.dtype], device_map={"": options.device}).eval()
        stops = stop_token_ids(model, tokenizer)
        n_layers = model.config.get_text_config().num_hidden_layers
        taps = options.taps or default_taps(n_layers, 5)
        require(all(0 <= tap < n_layers for tap in taps), f"taps {taps}: the target's layers are 0 to {n_layers - 1}")
        require(len({*taps}) == len(taps), f"taps {taps}: each layer once")
        decoder = Decoder(model)
        make: MakeShard = (
            score_given(decoder, options.given, taps, options.prompts * options.responses)
            if options.given
            else Synthesiser(decoder, tokenizer, stops, taps, options)
        )
        held_out = [line for path in options.held_out for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise SystemExit(f"synthesise: {error}") from error
    avoid = set().union(*map(word_runs, held_out))
    metadata = {"taps": taps, "target": Path(source).name, "dtype": options.dtype, "seed": options.seed}

    made, number = 0, options.part[0]
    with tqdm(total=options.tokens, unit="tok", unit_scale=True, smoothing=0.05) as bar:
        while made < options.tokens:
            path = options.out / f"shard-{options.seed:03d}-{number:05d}.safetensors"
            if not path.exists():
                conversations = make(number)
                if not conversations:
                    break  # no more was given
                kept = [c for c in conversations if not avoid & word_runs(tokenizer.decode(c.token_ids.tolist()))]
                write_shard(path, kept, **metadata)
            n_new = count_response_tokens(path)
            made += n_new
            bar.update(n_new)
            number += options.part[1]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=output_directory, required=True, help="directory of the shards; it may hold some already")
    parser.add_argument(
        "--target", type=model_source, default="", help="directory or hub id of the target; the embedded one if not given"
    )
    parser.add_argument("--tokens", type=whole(1), default=1_000_000, help="response tokens to make in all")
    parser.add_argument("--taps", type=whole(0), nargs="+", help="target layers to store (default: five over the depth)")
    parser.add_argument("--rows", type=whole(1), default=128, help="conversations decoded at once")
    parser.add_argument("--prompts", type=whole(1), default=160, help="prompts in a shard")
    parser.add_argument("--responses", type=whole(1), default=3, help="responses to a prompt, at different temperatures")
    parser.add_argument("--max-new-tokens", type=whole(1), default=256, help="cap on a response")
    parser.add_argument(
        "--held-out", type=existing_file, action="append", default=[], help="file of texts, one a line: nothing like them is kept"
    )
    parser.add_argument(
        "--given", type=existing_file, help="JSONL (.gz) with token ids of prompts and responses: store their states instead"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
    add_part(parser, "shard")
    return parser.parse_args(arguments)


def default_taps(n_layers: int, n_taps: int) -> list[int]:
    """DFlash's default: evenly from the 2nd to the 3rd last layer."""
    return sorted({round(1 + i * (n_layers - 4) / (n_taps - 1)) for i in range(n_taps)}) if n_layers > 4 else [n_layers // 2]


class Synthesiser:
    """Makes shards out of nothing but the target and the seed."""

    def __init__(self, decoder: Decoder, tokenizer: Any, stops: Sequence[int], taps: Sequence[int], options: argparse.Namespace):
        require(bool(tokenizer.chat_template), "the target's tokenizer has no chat template: its users' turns cannot be sampled")
        mark = "USERTURN"
        text = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True)
        self._before, _, self._after = text.partition(mark)
        self._starters = [line.strip() for line in STARTERS.read_text(encoding="utf-8").splitlines() if line.strip()]
        self._decoder, self._tokenizer, self._stops, self._taps, self._options = decoder, tokenizer, stops, taps, options

    def __call__(self, number: int) -> list[Conversation]:
        seed = seed_of(self._options.seed, number)
        draws = torch.Generator(self._options.device).manual_seed(seed)
        choices = torch.Generator().manual_seed(seed)
        requests = []
        for turn in self._turns(draws, choices):
            # Temperature 0 always; the rest in random order.
            order = [0, *(1 + torch.randperm(len(TEMPERATURES) - 1, generator=choices)).tolist()]
            temperatures = [TEMPERATURES[order[i % len(order)]] for i in range(self._options.responses)]
            prompt = self._encode(self._before + turn + self._after)
            requests.append(Request(prompt, temperatures, self._options.max_new_tokens))
        return self._decode(requests, draws, self._taps)

    def _turns(self, draws: torch.Generator, choices: torch.Generator) -> list[str]:
        """User turns in the target's own words; those that do not end are dropped."""
        requests = []
        for i in range(self._options.prompts * 5 // 4):
            starter = self._starters[int(torch.randint(len(self._starters), (1,), generator=choices))] if i % 2 else ""
            requests.append(Request(self._encode(self._before + starter), [TURN_TEMPERATURE], MAX_TURN_TOKENS))
        opening = len(self._encode(self._before))
        texts = [
            self._tokenizer.decode(c.token_ids[opening:-1].tolist()).strip()
            for c in self._decode(requests, draws, ())
            if int(c.token_ids[-1]) in self._stops
        ]
        return [text for text in texts if len(text.split()) >= 2][: self._options.prompts]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _decode(self, requests: list[Request], draws: torch.Generator, taps: Sequence[int]) -> list[Conversation]:
        rows = decode_rows(
            self._decoder, requests, rows=self._options.rows, stop_token_ids=self._stops, generator=draws, taps=taps
        )
        return list(rows)


def score_given(decoder: Decoder, path: Path, taps: Sequence[int], per_shard: int) -> MakeShard:
    """Shards of conversations that exist already: one pass over each gives its states."""
    lines = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
                good = min(*line["prompt"], *line["response"]) >= 0 and max(*line["prompt"], *line["response"]) < len(
                    decoder.embedding
                )
                good = good and float(line["temperature"]) >= 0
            except (KeyError, TypeError, ValueError):
                good = False
            fields = 'token ids of the target as "prompt" and "response", and "temperature"'
            require(good, f"{path}, line {number}: must be a JSON object with {fields}")
            lines.append(line)

    @torch.inference_mode()
    def make(number: int) -> list[Conversation]:
        conversations = []
        for line in lines[number * per_shard : (number + 1) * per_shard]:
            ids = torch.tensor([line["prompt"] + line["response"]], device=decoder.embedding.device)
            hidden, tapped = decoder.forward(ids, decoder.new_cache(1, ids.shape[1]), taps=taps)
            states = torch.stack([*tapped, hidden], dim=2)[0].to(torch.bfloat16).cpu()
            conversations.append(Conversation(ids[0].cpu(), len(line["prompt"]), line["temperature"], states))
        return conversations

    return make


if __name__ == "__main__":
    main()
