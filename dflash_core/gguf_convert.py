"""A Llama model in a GGUF file, written anew in the format that `from_pretrained` loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

READ = "Reading the weights"
CONVERT = "Converting the weights"
WRITE = "Writing the converted weights"

# fmt: off
LLAMA_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
# fmt: on


def convert_llama(gguf: Path, directory: Path, at: Callable[[str, float], None]) -> None:
    """Write the Llama model in a GGUF file as config, float32 safetensors and tokenizer files.

    The file is read once, with the `gguf` library: a third of the time of loading it as a model, which Transformers
    would refuse to save anyway, because it was quantised. `at` is told the step and the share of it that is done.
    """
    at(READ, 0.0)
    import numpy as np  # the heavy libraries are needed only here: a finished cache is found without them
    from gguf import GGUFReader, TokenType, dequantize
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

    at(READ, 0.5)
    reader = GGUFReader(gguf)

    def field(key: str) -> Any:
        return reader.fields[key].contents()

    heads = {"attn_q": field("llama.attention.head_count"), "attn_k": field("llama.attention.head_count_kv")}
    special = {f"{name}_token_id": field(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    special["pad_token_id"] = field("tokenizer.ggml.padding_token_id")
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        vocab_size=field("llama.vocab_size"),
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"],
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        tie_word_embeddings=True,
        **special,
    )
    config.save_pretrained(directory)
    GenerationConfig(**special).save_pretrained(directory)

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    # What the file calls "smollm": digits are set apart first, then GPT-2's words.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types = zip(tokens, field("tokenizer.ggml.token_type"), strict=True)
    backend.add_special_tokens([AddedToken(each, normalized=False) for each, kind in types if kind == TokenType.CONTROL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=config.max_position_embeddings,
        chat_template=field("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        unk_token=tokens[field("tokenizer.ggml.unknown_token_id")],
        **{name.removesuffix("_id"): tokens[index] for name, index in special.items()},
    )
    tokenizer.save_pretrained(directory)

    tensors = {}
    for done, tensor in enumerate(reader.tensors):
        at(CONVERT, done / len(reader.tensors))
        *block, part, kind = tensor.name.split(".")  # such as blk.0.attn_q.weight, or output_norm.weight
        weight = dequantize(tensor.data, tensor.tensor_type)
        if part in heads:  # GGUF keeps the two rows of a rotary pair together; Transformers, half a head apart
            weight = weight.reshape(heads[part], -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        prefix = f"model.layers.{block[1]}." if block else ""
        tensors[f"{prefix}{LLAMA_NAMES[part]}.{kind}"] = np.ascontiguousarray(weight, dtype=np.float32)

    at(WRITE, 0.0)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    # safetensors makes its files private; a cache may be shared.
    (directory / "model.safetensors").chmod((directory / "config.json").stat().st_mode)
