"""octavo unpack gives back the state dict that was packed: names, shapes, orientation, dtypes, tied weights."""

import subprocess
import sys
from pathlib import Path

import octavo
import pytest
import torch
from helpers.models import packed, transformer
from helpers.processes import octavo_command
from octavo.model_folder import unpack_weights
from octavo.model_folder.structure import KEY
from octavo.model_folder.unpack_weights import unpack, unpacked
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn.conv_transposed import matrix_of, weight_of
from octavo.tensors import container
from torch import nn

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")
FORMAT = "mxint8"


# --- models -------------------------------------------------------------------------------------------------------------


FOREIGN = {
    "bert": lambda: transformer("BertModel", layers=1),
    "bert-tied": lambda: transformer("BertForMaskedLM", layers=1),
    "gpt2": lambda: transformer("GPT2Model", layers=1, bos_token_id=None, eos_token_id=None),
    "gpt2-tied": lambda: transformer("GPT2LMHeadModel", layers=1, bos_token_id=None, eos_token_id=None),
    "llama": lambda: transformer("LlamaForCausalLM", layers=1),
    "mixtral": lambda: transformer(
        "MixtralModel", layers=1, num_local_experts=2, num_experts_per_tok=1, num_key_value_heads=2
    ),
    "t5": lambda: transformer("T5ForConditionalGeneration", layers=1),
    "vit": lambda: transformer("ViTModel", layers=1),
    "mamba": lambda: transformers.MambaModel(
        transformers.MambaConfig(hidden_size=32, num_hidden_layers=1, state_size=4, vocab_size=50)
    ),
}


class Own(nn.Module):
    """One of each: convolutions with groups and rectangular kernels, a transposed one, an LSTM, experts, a tied head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.line = nn.Conv1d(32, 64, 3, groups=2, padding=1)
        self.picture = nn.Conv2d(8, 16, (3, 5), bias=False)
        self.point = nn.Conv2d(16, 16, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2)
        self.memory = nn.LSTM(32, 16, num_layers=2, bidirectional=True)
        self.experts = nn.Parameter(torch.randn(3, 16, 32))
        self.turned = transformers.pytorch_utils.Conv1D(32, 32)
        self.blocks = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32))
        self.again = self.blocks
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.arange(7))


MODELS = {**FOREIGN, "own": Own}


def made(kind, dtype=torch.float32):
    torch.manual_seed(0)
    model = MODELS[kind]()
    for parameter in model.parameters():  # zeros and ones say nothing about places
        nn.init.normal_(parameter)
    return model.to(dtype).eval()


def expected(model):
    """The state dict with weights rounded as their layers hold them, whose contraction runs along different axes."""
    state, done = {name: value.detach().clone() for name, value in model.state_dict().items()}, set()
    for path, layer in model.named_modules(remove_duplicate=False):
        name = f"{path}.weight"
        if isinstance(layer, nn.Linear | nn.Embedding):
            state[name] = octavo.quantize(layer.weight.detach(), FORMAT)
        elif isinstance(layer, nn.Conv1d | nn.Conv2d):
            state[name] = octavo.quantize(layer.weight.detach().flatten(1), FORMAT).view(layer.weight.shape)
        elif isinstance(layer, nn.ConvTranspose2d):
            rows = octavo.quantize(matrix_of(layer.weight.detach(), layer.groups), FORMAT)
            state[name] = weight_of(rows, layer.groups, layer.kernel_size)
        elif isinstance(layer, Own):  # a table that the model itself reads
            state["experts"] = octavo.quantize(layer.experts.detach(), FORMAT)
            continue
        elif isinstance(layer, transformers.pytorch_utils.Conv1D):
            state[name] = octavo.quantize(layer.weight.detach(), FORMAT, axis=0)
        elif path.endswith(".experts") or isinstance(layer, nn.LSTM):  # [experts, out, in]; matrices of gates
            state |= {
                f"{path}.{own}": octavo.quantize(value.detach(), FORMAT)
                for own, value in layer.named_parameters()
                if value.ndim > 1
            }
        else:
            continue
        done.add(name)
    assert done
    return state


def assert_same(found, wanted, names=None):
    assert found.keys() == (names or wanted.keys())
    for name, value in found.items():
        assert value.shape == wanted[name].shape and value.dtype == wanted[name].dtype, name
        assert torch.equal(value, wanted[name]), name


# --- laws ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_comes_back_as_its_state_dict(tmp_path, kind, dtype):
    model = made(kind, dtype)
    wanted = expected(model)
    octavo.save_model(packed(model, FORMAT), tmp_path / "small")
    octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    found = container.load(tmp_path / "plain" / "model.safetensors")
    assert_same(found, wanted)
    made(kind, dtype).load_state_dict(found, strict=True)
    octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "half", "--dtype", "float16")
    halves = container.load(tmp_path / "half" / "model.safetensors")
    assert all(
        halves[name].dtype == torch.float16
        for name in wanted
        if not torch.equal(wanted[name], model.state_dict()[name])
    )


@pytest.mark.parametrize("kind", FOREIGN)
def test_transformers_loads_what_is_unpacked(tmp_path, kind):
    model = made(kind)
    wanted = expected(model)
    octavo.save_model(packed(model, FORMAT), tmp_path / "small")
    octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    again, told = type(model).from_pretrained(tmp_path / "plain", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    assert_same(again.state_dict(), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_octavo_pack_and_unpack_keep_names_shapes_and_dtypes(tmp_path, kind, dtype):
    model = made(kind, dtype)
    (tmp_path / "model").mkdir()
    if kind in FOREIGN:
        model.save_pretrained(tmp_path / "model")
    else:
        tensors = {name: value.clone() for name, value in model.state_dict().items()}
        container.save(tensors, tmp_path / "model" / "model.safetensors")
    before = container.load(tmp_path / "model" / "model.safetensors")
    if kind in ("vit", "mixtral"):  # transformers writes other names than its model has; both are read
        before = model.state_dict()
    octavo_command("pack", tmp_path / "model", "-o", tmp_path / "small", "--recipe", f"**={FORMAT}")
    octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    after = container.load(tmp_path / "plain" / "model.safetensors")
    assert before.keys() <= after.keys()
    for name, value in before.items():
        assert after[name].shape == value.shape and after[name].dtype == value.dtype, name
        assert (after[name].float() - value.float()).abs().max() <= 2**-6 * value.float().abs().max(), name


def test_a_bias_in_steps_comes_back_in_floats(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 4)).eval()
    recipe = "int8:channel input=int8@minmax bias=int32; last:Linear int8:tensor input=int8@minmax bias=int32"
    small = packed(model, recipe, calibration=[torch.randn(64, 32)])
    assert small[0].bias.dtype == torch.int32
    octavo.save_model(small, tmp_path / "small")
    octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    found = container.load(tmp_path / "plain" / "model.safetensors")
    assert found.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert found[name].dtype == torch.float32 and torch.allclose(found[name], value, atol=0.01), name


def test_files_that_do_not_tell_orientation_are_looked_at_through_their_model(tmp_path):
    """As 0.1 wrote them."""
    model = made("gpt2")
    octavo.save_model(packed(model, FORMAT), tmp_path / "small")
    file = tmp_path / "small" / "model.octavo.safetensors"
    tensors, metadata = container.load(file), container.metadata(file)
    assert '"transposed": true' in metadata[KEY]
    metadata[KEY] = metadata[KEY].replace(', "transposed": true', "").replace(', "transposed": false', "")
    container.save(tensors, file, metadata=metadata)
    octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    assert_same(container.load(tmp_path / "plain" / "model.safetensors"), expected(model))


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_simulated_layers_are_refused_before_anything_is_written(tmp_path, command):
    octavo.save_model(octavo.quantize_model(FOREIGN["gpt2"](), "weight=mxint8 input=mxint8"), tmp_path / "m")
    told = octavo_command(command, tmp_path / "m", "-o", tmp_path / "out", code=2)
    assert "simulated layer" in told and "octavo.pack_model" in told and not (tmp_path / "out").exists()


def test_a_model_without_quantized_layers_is_packed_and_unpacked(tmp_path):
    octavo.save_model(FOREIGN["gpt2"](), tmp_path / "m")
    octavo_command("unpack", tmp_path / "m", "-o", tmp_path / "plain")
    assert type(octavo.load_model(tmp_path / "plain")) is transformers.GPT2Model
    octavo_command("pack", tmp_path / "m", "-o", tmp_path / "small")
    assert isinstance(octavo.load_model(tmp_path / "small"), transformers.GPT2Model)


def test_a_description_of_other_tensors_is_refused(tmp_path):
    octavo.save_model(packed(made("own"), FORMAT), tmp_path / "small")
    file = tmp_path / "small" / "model.octavo.safetensors"
    tensors, metadata = container.load(file), container.metadata(file)
    for before, after in [('"kernel_size": [3, 5]', '"kernel_size": [7, 5]'), ('": "embed.weight"', '": "nowhere"')]:
        assert before in metadata[KEY]
        container.save(tensors, file, metadata={KEY: metadata[KEY].replace(before, after)})
        octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "plain", code=2)
        assert not (tmp_path / "plain").exists()


def test_a_folder_that_is_missing_is_told_by_the_name_given(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        octavo.save({"a": torch.ones(2)}, tmp_path / "none" / "f.safetensors")
    assert caught.value.filename == str(tmp_path / "none" / "f.safetensors") and ".tmp" not in str(caught.value)


# --- memory -------------------------------------------------------------------------------------------------------------


def test_what_is_made_tensor_by_tensor_is_what_is_made_at_once(tmp_path):
    """The bytes of the file, turned, tied and in several dimensions; and the bytes that are told as done."""
    for kind in ("own", "gpt2-tied"):
        octavo.save_model(packed(made(kind), FORMAT), tmp_path / kind)
        for dtype in (None, torch.bfloat16):
            told = []
            later = unpacked(
                Checkpoint.open(tmp_path / kind), dtype, progress=lambda name, nbytes, told=told: told.append(name)
            )
            assert not told
            at_once = unpack(Checkpoint.open(tmp_path / kind), dtype)
            assert container.dumps(later) == container.dumps(at_once)
            assert len(told) == len(set(told)) <= len(later)
            for name, tensor in at_once.items():
                assert (later[name].dtype, tuple(later[name].shape)) == (tensor.dtype, tuple(tensor.shape))


def test_a_weight_of_many_pieces_is_turned(monkeypatch, tmp_path):
    monkeypatch.setattr(unpack_weights, "_PIECE", 100)
    model = nn.Sequential(transformers.pytorch_utils.Conv1D(7, 64), transformers.pytorch_utils.Conv1D(300, 7)).eval()
    octavo.save_model(packed(model, FORMAT), tmp_path / "m")
    found = unpack(Checkpoint.open(tmp_path / "m"))
    assert_same(found, expected(model))


UNPACKS = """
import sys, threading, time
from pathlib import Path
import torch
from octavo.model_folder.unpack_weights import unpacked
from octavo.model_folder.weight_files import Checkpoint, write

def own_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

def unpack(folder, target):
    source = Checkpoint.open(folder)
    write(source, Path(target), "model.safetensors", unpacked(source), force=False)

def watch():
    while not over:
        seen.append(own_bytes())
        time.sleep(0.002)

torch.set_num_threads(1)
unpack(sys.argv[1], sys.argv[2])  # what Python loads on first use
seen, over = [own_bytes()], False
watcher = threading.Thread(target=watch)
watcher.start()
unpack(sys.argv[3], sys.argv[4])
over = True
watcher.join()
print(max(seen) - seen[0])
"""
LARGEST, SLACK = 16 << 20, 12 << 20  # one weight decoded; pieces that are turned, and what the allocator keeps


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("layer", [nn.Linear, transformers.pytorch_utils.Conv1D])
def test_unpacking_takes_the_memory_of_one_tensor(tmp_path, layer):
    sizes = {"small": 64, "large": 2048}
    for name, size in sizes.items():
        model = nn.Sequential(*(layer(size, size) for _ in range(6)))
        octavo.save_model(packed(model, FORMAT), tmp_path / name)
    given = [tmp_path / part for part in ("small", "x", "large", "y")]
    done = subprocess.run([sys.executable, "-c", UNPACKS, *given], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "y" / "model.safetensors").stat().st_size > 6 * LARGEST
    assert int(done.stdout.splitlines()[-1]) <= LARGEST + SLACK


def test_a_plain_file_says_nothing_of_a_recipe(tmp_path):
    """Files of tensors and folders of models: what was decoded has no formats."""
    container.save({"a.weight": torch.randn(32, 32)}, tmp_path / "m.safetensors")
    octavo_command("pack", tmp_path / "m.safetensors", "-o", tmp_path / "x.safetensors")
    assert container.metadata(tmp_path / "x.safetensors")["recipe"] == "mxint8"
    octavo_command("unpack", tmp_path / "x.safetensors", "-o", tmp_path / "y.safetensors")
    assert container.metadata(tmp_path / "y.safetensors") == {"format": "pt"}
