"""Folders that somebody else wrote: nothing of them runs, nothing outside is copied, nothing in them takes the machine."""

import base64
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import octavo
import pytest
import torch
from octavo import ContainerError, ModelError, OctavoError
from octavo.cli import pack
from octavo.model_folder.companion_files import companions, copy_companions
from octavo.model_folder.infer_structure import skeleton
from octavo.model_folder.pack_folder import OpenFolder
from octavo.model_folder.size_limits import Extent
from octavo.model_folder.skeleton import build as build_module
from octavo.model_folder.weight_files import PACKED_NAME, Checkpoint
from torch import nn

transformers = pytest.importorskip("transformers")

MEMORY, SECONDS = 200 << 20, 20  # beside twice the files
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123))]


class Evil:
    def __reduce__(self):
        return os.mkdir, ("EXECUTED",)


def encoder(folder):
    """A BERT of transformers with its tokenizer."""
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    return folder


def saved(folder):
    """The same BERT, packed, as save_model writes it, beside its tokenizer."""
    encoder(folder)
    model = transformers.BertModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    octavo.save_model(octavo.pack_model(octavo.quantize_model(model, "mxint8", progress=False)), folder)
    return folder


def compress(folder):
    from octavo.compress.text_compression import text_job

    job = text_job(str(folder))
    return job.evaluate(job.model)


def pack_model(folder):
    """The model that octavo pack writes; where it has none it falls back to tensors."""
    return OpenFolder.open(Checkpoint.open(folder)).pack(octavo.Recipe.parse("mxint8")).model


def recipe(folder):
    """What octavo recipe --model explains; where there is no model it falls back to tensors."""
    return octavo.Recipe.parse("mxint8").explain(skeleton(folder))


def classify(folder):
    from octavo.lab.classifiers import kinds

    (folder / kinds.INFO).write_text(json.dumps({"octavo": 1, "kind": "minilm"}))
    return kinds.load(folder)


# Every way from a folder of transformers to a model: what makes a valid one, and what reads it.
DOORS = {"load_model": (saved, octavo.load_model), "plain": (encoder, octavo.load_model), "pack": (encoder, pack_model), "recipe": (encoder, recipe), "compress": (encoder, compress), "classifier": (encoder, classify)}  # fmt: skip


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """Each kind of folder, made once."""
    top = tmp_path_factory.mktemp("valid")
    return {make: make(top / make.__name__) for make in (saved, encoder)}


@pytest.fixture(params=DOORS)
def door(request, valid, tmp_path, monkeypatch):
    """A folder and its reader, in a working directory where a mark would be left."""
    make, read = DOORS[request.param]
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(valid[make], tmp_path / "folder")), read


def rewrite(folder, file="config.json", **changes):
    values = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))


def spent(read, *args):
    """Bytes and seconds that a call takes, and its error."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    try:
        read(*args)
        error = None
    except (OctavoError, OSError) as raised:
        error = raised
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10, time.perf_counter() - begin, error


def test_a_valid_folder_is_read(door):
    folder, read = door
    assert read(folder) is not None


# --- nothing runs -------------------------------------------------------------------------------------------------------


CODE = "import os\nos.mkdir('EXECUTED')\n"
MAPS = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoModelForSequenceClassification": "evil.Evil", "AutoTokenizer": ["evil.Evil", "evil.Evil"]}  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_code_of_a_folder_is_never_run_nor_asked_about(door, known, monkeypatch):
    folder, read = door
    for name in ("evil.py", "modeling_evil.py", "configuration_evil.py", "__init__.py"):
        (folder / name).write_text(CODE)
    rewrite(folder, auto_map=MAPS, **({} if known else {"model_type": "evil"}))
    rewrite(folder, "tokenizer_config.json", auto_map=MAPS)
    asked = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    _, seconds, error = spent(read, folder)
    assert not asked
    assert not Path("EXECUTED").exists()
    assert seconds < 10
    assert (error is None) == known
    if not known:
        assert isinstance(error, ContainerError) and "evil" in str(error)


def test_a_yes_on_standard_input_changes_nothing(tmp_path):
    folder = saved(tmp_path / "folder")
    rewrite(folder, auto_map=MAPS, model_type="evil")
    (folder / "evil.py").write_text(CODE)
    code = """
import sys, octavo
from pathlib import Path
from octavo.model_folder.infer_structure import skeleton
for read in (octavo.load_model, skeleton):
    try:
        read(Path(sys.argv[1]))
    except octavo.ContainerError as error:
        print("refused", error)
"""
    ran = subprocess.run([sys.executable, "-c", code, folder], input=b"y\n" * 9, capture_output=True, cwd=tmp_path)
    assert ran.stdout.count(b"refused") == 2 and ran.stdout.count(b"evil") >= 2
    assert not (tmp_path / "EXECUTED").exists()


def test_pickles_are_never_opened(door, monkeypatch):
    folder, read = door
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin", "optimizer.pt", "scheduler.pt", "vocab.pkl"):
        (folder / name).write_bytes(pickle.dumps(Evil()))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder.parent)}))
    opened = []
    sys.addaudithook(
        lambda event, args: opened.append(args[0]) if event == "open" and Path.cwd() == folder.parent else None
    )
    read(folder)
    for weights in [file for file in folder.iterdir() if file.suffix == ".safetensors"]:
        weights.unlink()
    if read is not recipe:  # which reads no weights
        with pytest.raises(OctavoError, match="safetensors"):
            read(folder)
    assert not Path("EXECUTED").exists()
    assert not [name for name in opened if str(name).endswith((".bin", ".pt", ".pkl"))]


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"attn_implementation": "evil/kernel", "_attn_implementation_internal": "evil/kernel"}),
        ("config.json", {"use_kernels": True, "_name_or_path": "evil/model", "name_or_path": "evil/model"}),
        ("tokenizer_config.json", {"vocab_file": "/proc/self/environ", "tokenizer_file": "/proc/self/environ"}),
        ("tokenizer_config.json", {"init_inputs": ["/proc/self/environ"], "fast_tokenizer_files": ["../x.json"]}),
    ],
)
def test_words_that_lead_elsewhere_are_passed_over(door, file, changes):
    folder, read = door
    rewrite(folder, file, **changes)
    assert read(folder) is not None


def test_packing_of_another_library_is_refused_by_name(tmp_path):
    folder = encoder(tmp_path / "folder")
    rewrite(folder, quantization_config={"quant_method": "fbgemm_fp8"})
    with pytest.raises(ContainerError, match="quantization_config"):
        compress(folder)


# --- nothing takes the machine ------------------------------------------------------------------------------------------

HUGE = [
    ("max_position_embeddings", 200_000_000), ("num_hidden_layers", 10**9), ("num_hidden_layers", 50_000),
    ("vocab_size", 2**40), ("type_vocab_size", 2**31), ("hidden_size", 2**20), ("intermediate_size", 10**9),
    ("num_labels", 10**9), ("num_attention_heads", 10**9),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), HUGE)
def test_sizes_beyond_the_tensors_are_refused_before_they_cost(door, field, value):
    folder, read = door
    rewrite(folder, **{field: value, "id2label": ...})
    took, seconds, error = spent(read, folder)
    assert isinstance(error, ContainerError), error
    assert "config.json" in str(error)
    if field not in ("num_attention_heads", "hidden_size"):
        assert field in str(error)
    assert took < MEMORY
    assert seconds < SECONDS


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5", "mamba", "distilbert", "bert"])
def test_defaults_of_a_configuration_are_held_against_the_tensors_too(tmp_path, kind):
    folder = saved(tmp_path / "folder")
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    for read in (octavo.load_model, recipe):
        took, seconds, error = spent(read, folder)
        assert isinstance(error, ContainerError)
        assert took < MEMORY and seconds < SECONDS


class Tables(nn.Module):
    """A model that computes a table of its own from a size that no weight has."""

    def __init__(self, make):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("table", make(), persistent=False)


TABLES = [
    lambda: torch.arange(10**9),
    lambda: torch.zeros(1, 2 * 10**8),
    lambda: torch.outer(torch.arange(10_000.0), torch.arange(10_000.0)),
    lambda: torch.ones(20_000, 20_000, dtype=torch.bool, device="cpu").tril(),
    lambda: torch.arange(4.0).repeat(10**8),
    lambda: torch.ones(4).new_zeros((10**5, 10**5)),
    lambda: torch.linspace(0, 1, 10**9),
    lambda: torch.eye(30_000),
]


@pytest.mark.parametrize("make", TABLES)
def test_tables_that_a_model_computes_are_bounded(make):
    extent = Extent("config.json", {"positions": 10**9}, tables=1 << 24)
    took, seconds, error = spent(build_module, lambda: Tables(make), extent)
    assert isinstance(error, ContainerError) and "table" in str(error)
    assert took < MEMORY and seconds < SECONDS
    kept = build_module(lambda: Tables(lambda: torch.arange(10_000.0).view(100, 100).tril()), extent)
    assert kept.table.shape == (100, 100) and not kept.table.is_meta


def test_building_counts_in_this_thread_alone_and_leaves_nothing_behind():
    with pytest.raises(ContainerError, match="layers"):
        build_module(lambda: nn.Sequential(*(nn.Linear(2, 2) for _ in range(99))), Extent("config.json", modules=50))
    assert len(nn.Sequential(*(nn.Linear(2, 2) for _ in range(99)))) == 99
    assert build_module(lambda: nn.Linear(2, 2), Extent("config.json")).weight.is_meta


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": "x"}, "hidden_size"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
        ({"num_hidden_layers": [1]}, "num_hidden_layers"),
        ({"is_decoder": "yes"}, "is_decoder"),
        ({"dtype": "manual_seed"}, "dtype"),
        ({"dtype": {"a": 1}}, "dtype"),
        ({"torch_dtype": 5}, "torch_dtype"),
        ({"model_type": None}, "model_type"),
        ({"model_type": ["bert"]}, "model_type"),
        ({"hidden_act": "no such thing"}, "config.json"),
        ({"hidden_size": -5}, "config.json"),
        ({"num_attention_heads": 0}, "config.json"),
        ({"id2label": 5}, "config.json"),
        ({"pad_token_id": 10**9}, "config.json"),
    ],
)
def test_configurations_that_are_wrong_are_typed_errors_naming_the_field(door, changes, field):
    folder, read = door
    rewrite(folder, **changes)
    with pytest.raises(ContainerError, match=field) as error:
        read(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", "deep", "text"])
def test_files_that_are_none_are_refused_at_once(door, name, kind):
    folder, read = door
    if read in (octavo.load_model, recipe, pack_model) and name != "config.json":
        return  # it reads no tokenizer
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "device":
        (folder / name).symlink_to("/dev/zero")
    elif kind == "sparse":
        with open(folder / name, "wb") as opened:
            opened.truncate(3 << 30)
    else:
        (folder / name).write_text("[" * 10**6 if kind == "deep" else "no json")
    took, seconds, error = spent(read, folder)
    assert isinstance(error, ContainerError) and name in str(error)
    assert took < MEMORY and seconds < SECONDS


LONG = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 20}
GROWING = [
    {"normalizer": {"type": "Sequence", "normalizers": [LONG] * 9}},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [LONG, LONG]}, LONG]}},
    {"normalizer": {"type": "Prepend", "prepend": "x" * 10**5}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(8) + b"x" * 10**5).decode()}},
    {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 10**5,
                        "pair": [], "special_tokens": {}}},
]  # fmt: skip


@pytest.mark.parametrize("change", GROWING, ids=lambda change: str(change)[:40])
def test_tokenizers_in_which_texts_grow_are_refused(tmp_path, valid, change):
    folder = shutil.copytree(valid[encoder], tmp_path / "folder")
    rewrite(folder, "tokenizer.json", **change)
    took, seconds, error = spent(compress, folder)
    assert isinstance(error, ContainerError) and "tokenizer.json" in str(error)
    assert took < MEMORY and seconds < SECONDS


def test_an_index_of_gigabytes_is_not_read(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with open(tmp_path / "model.safetensors.index.json", "r+b") as opened:
        opened.truncate(3 << 30)
    took, _, error = spent(Checkpoint.open, tmp_path)
    assert isinstance(error, ContainerError) and "bytes" in str(error)
    assert took < 50 << 20


@pytest.mark.parametrize(
    "index",
    [{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"a": 1}}, {"weight_map": {"a": "../x.safetensors"}},
     {"weight_map": {"a": "x\0.safetensors"}}, {"weight_map": {"a": ["x"]}}, {"weight_map": None}, [], "x", 5],
    ids=str,
)  # fmt: skip
def test_an_index_of_other_types_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ContainerError, match=r"not an index|is not the name|accepted"):
        Checkpoint.open(tmp_path)


# --- every tensor has the dtype of its place ----------------------------------------------------------------------------


class Places(nn.Module):
    """Weights, a half weight, an index, a mask and a complex buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.small = nn.Parameter(torch.zeros(4, dtype=torch.float16))
        self.register_buffer("index", torch.arange(4))
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool))
        self.register_buffer("roots", torch.ones(4, dtype=torch.complex64))


def undigested(file):
    """Metadata of a file whose tensors a test exchanges, as 0.1 wrote it: digests would tell first."""
    metadata = octavo.tensors.container.metadata(file)
    metadata.pop("digests", None)
    return metadata


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = [*FLOATS, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", list(Places().state_dict()))
def test_a_tensor_takes_a_place_of_its_dtype_alone(tmp_path, name, dtype):
    folder = tmp_path / "folder"
    octavo.save_model(Places(), folder)
    tensors, metadata = octavo.load(folder / PACKED_NAME), undigested(folder / PACKED_NAME)
    wanted = tensors[name].dtype
    tensors[name] = torch.ones(tensors[name].shape, dtype=dtype)
    octavo.save(tensors, folder / PACKED_NAME, metadata=metadata, overwrite=True)
    if dtype == wanted or (dtype in FLOATS and wanted in FLOATS):
        assert octavo.load_model(folder, Places).state_dict()[name].dtype == dtype
    else:
        with pytest.raises(ContainerError, match=f"{name}: dtype {dtype}"):
            octavo.load_model(folder, Places)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex64], ids=str)
def test_parts_of_quantized_layers_have_their_dtypes(tmp_path, dtype):
    folder = tmp_path / "folder"
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    recipe = "int8:channel input=int8@minmax"
    model = octavo.quantize_model(model, recipe, calibration=[torch.ones(2, 32)], progress=False)
    for packed in (model, octavo.pack_model(model)):
        octavo.save_model(packed, folder)
        whole, metadata = octavo.load(folder / PACKED_NAME), undigested(folder / PACKED_NAME)
        for name, value in whole.items():
            if isinstance(value, torch.Tensor):
                changed = whole | {name: torch.ones(value.shape, dtype=dtype)}
                octavo.save(changed, folder / PACKED_NAME, metadata=metadata, overwrite=True)
                with pytest.raises(ContainerError, match=name.rpartition(".")[0]):
                    octavo.load_model(folder, lambda: nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_models_of_transformers_travel_in_every_float(tmp_path, dtype):
    model = transformers.BertModel.from_pretrained(encoder(tmp_path / "bert")).to(dtype)
    octavo.save_model(model, tmp_path / "saved")
    assert {tensor.dtype for tensor in octavo.load_model(tmp_path / "saved").parameters()} == {dtype}


# --- nothing outside is copied ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/proc/self/environ", "../secret.txt", "/etc/hostname", "sub/../../secret.txt"])
def test_links_that_leave_the_folder_are_refused_with_their_target(tmp_path, target):
    folder = encoder(tmp_path / "folder")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "sub").mkdir()
    (folder / "env.json").symlink_to(target)
    with pytest.raises(ContainerError) as error:
        pack.run(folder, tmp_path / "out", "mxint8")
    assert "env.json" in str(error.value) and target in str(error.value)
    assert not (tmp_path / "out").exists()


def test_links_inside_the_folder_and_to_blobs_of_the_hub_are_followed(tmp_path):
    inside = encoder(tmp_path / "inside")
    (inside / "again.json").symlink_to("config.json")
    (inside / "pytorch_model.bin").write_bytes(b"a pickle")
    (inside / "weights.txt").symlink_to("pytorch_model.bin")
    copy_companions(inside, tmp_path / "one")
    assert (tmp_path / "one" / "again.json").read_bytes() == (inside / "config.json").read_bytes()
    assert not (tmp_path / "one" / "again.json").is_symlink()
    assert not (tmp_path / "one" / "weights.txt").exists()
    hub = tmp_path / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "0123").mkdir(parents=True)
    for name in ("config.json", "vocab.txt"):
        (hub / "blobs" / f"blob-{name}").write_bytes((inside / name).read_bytes())
        (hub / "snapshots" / "0123" / name).symlink_to(f"../../blobs/blob-{name}")
    copy_companions(hub / "snapshots" / "0123", tmp_path / "two")
    assert sorted(file.name for file in (tmp_path / "two").iterdir()) == ["config.json", "vocab.txt"]
    (hub / "blobs" / "blob-vocab.txt").unlink()
    (hub / "blobs" / "blob-vocab.txt").symlink_to("/etc/hostname")
    with pytest.raises(ContainerError, match=r"vocab\.txt"):
        copy_companions(hub / "snapshots" / "0123", tmp_path / "three")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "itself", "nowhere", "large", "many", "deep"])
def test_members_that_are_no_files_of_the_folder_are_refused(tmp_path, kind, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "notes.txt"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "large":
        with open(file, "wb") as opened:
            opened.truncate(1 << 40)
    elif kind == "many":
        monkeypatch.setattr("octavo.model_folder.companion_files.MOST_FILES", 3)
        for number in range(4):
            (folder / f"{number}.txt").write_text("x")
    elif kind == "deep":
        folder.joinpath(*"abcdefghijklmnopqrst").mkdir(parents=True)
    else:
        file.symlink_to({"device": "/dev/zero", "folder": ".", "itself": "notes.txt", "nowhere": "absent"}[kind])
    with pytest.raises(ContainerError, match=r"notes\.txt|more than"):
        companions(folder)


def test_folder_without_a_configuration_says_so(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json"):
        recipe(tmp_path)
