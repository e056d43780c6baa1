"""Packed folders in a process that has only the plug-in: the same outputs, generation and pipelines."""

import json
import subprocess
import sys
from pathlib import Path

import octavo
import pytest
import torch
from helpers.architectures import build, generated, outputs, same

transformers = pytest.importorskip("transformers", minversion="5.24")
tokenizers = pytest.importorskip("tokenizers")

import octavo.transformers  # noqa: E402 - transformers may be missing
from octavo.transformers import OctavoConfig  # noqa: E402

TESTS = Path(__file__).resolve().parents[1]
QUICK = ("Llama", "Bert", "ViT")
MORE = (
    "Gemma3", "OPT", "Falcon", "GptOss", "Mamba", "XLNet", "Bart", "Whisper", "CLIP", "Blip2", "GPT2", "Mixtral", "Qwen2",
    "Qwen3", "Phi", "GPTNeoX", "Bloom", "DeepseekV3", "JetMoe", "RWKV", "Jamba", "ModernBert", "DebertaV2", "Electra", "T5",
    "SwitchTransformers", "Marian", "ConvNext", "Wav2Vec2",
)  # fmt: skip
RECIPE = "int4:g32"
TASKS = {
    "ForCausalLM": "text-generation", "LMHeadModel": "text-generation", "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
}  # fmt: skip
WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", *(f"w{number}" for number in range(56))]

CHILD = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
import octavo, octavo.transformers, torch, transformers
from pathlib import Path
from helpers.architectures import ARCHITECTURES, generated, outputs
from PIL import Image
warnings.simplefilter("ignore", octavo.UnusedLayerWarning)
for name, kind, task in json.loads(sys.argv[2]):
    folder = Path(sys.argv[3]) / name
    model = getattr(transformers, kind).from_pretrained(folder)
    inputs = ARCHITECTURES[name][1]
    tensors = {f"output{number}": value.contiguous() for number, value in enumerate(outputs(model, inputs))}
    if (ids := generated(model, inputs)) is not None:
        tensors["generated"] = ids
    octavo.save(tensors, folder / "outputs.safetensors")
    if task:
        # Some kinds of models insist on a tokenizer class that knows none of these words.
        words = {} if "Image" in kind else {"tokenizer": transformers.PreTrainedTokenizerFast.from_pretrained(folder)}
        pipe = transformers.pipeline(task, model=str(folder), **words)
        assert any(isinstance(module, octavo.nn.PackedLayer) for module in pipe.model.modules()), name
        if task == "image-classification":
            found = pipe(Image.new("RGB", (32, 32), "red"))
        else:
            options = {"max_new_tokens": 3, "do_sample": False} if task == "text-generation" else {}
            found = pipe("w1 w2 [MASK] w3" if task == "fill-mask" else "w1 w2 w3", **options)
        assert found and list(found[0]), (name, found)
"""


def tokenizer():
    """A tokenizer of 61 words, as many as the small models have ids."""
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, mask_token="[MASK]", **special)


def write(name, folder):
    """Write the packed model of an architecture; return its class, its pipeline, and what it gives."""
    model, inputs = build(name)
    model.save_pretrained(folder / "float" / name)
    kind = type(model).__name__
    task = next((task for end, task in TASKS.items() if kind.endswith(end)), None)
    if task == "image-classification":
        size = {"height": 32, "width": 32}
        processor = transformers.ViTImageProcessor(size=size)
        processor.save_pretrained(folder / "float" / name)
    elif task is not None:
        tokenizer().save_pretrained(folder / "float" / name)
    packed = getattr(transformers, kind).from_pretrained(
        folder / "float" / name, quantization_config=OctavoConfig(RECIPE)
    )
    packed.save_pretrained(folder / name)
    if task not in (None, "image-classification"):
        files = (folder / "float" / name, folder / name)
        ids = [transformers.AutoTokenizer.from_pretrained(file)("w0 w55")["input_ids"] for file in files]
        assert ids[0] == ids[1]
    expected = outputs(packed, inputs)
    return (name, kind, task), expected, generated(packed, inputs)


@pytest.mark.filterwarnings("ignore::octavo.UnusedLayerWarning")
@pytest.mark.parametrize("names", [QUICK, pytest.param(MORE, marks=pytest.mark.slow)], ids=["quick", "more"])
def test_a_fresh_process_gives_the_same_outputs_texts_and_pipelines(names, tmp_path):
    pytest.importorskip("PIL")
    written = [write(name, tmp_path) for name in names]
    rows = json.dumps([row for row, _, _ in written])
    command = [sys.executable, "-c", CHILD, str(TESTS), rows, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    for (name, _, _), expected, texts in written:
        found = octavo.load(tmp_path / name / "outputs.safetensors")
        assert all(same(found[f"output{number}"], value) for number, value in enumerate(expected)), name
        assert (texts is None) == ("generated" not in found), name
        assert texts is None or torch.equal(found["generated"], texts), name
