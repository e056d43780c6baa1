"""Whoever writes a model writes one kind of folder, and whoever reads one reads it, or says what does."""

import json
import shutil

import octavo
import pytest
import torch
from helpers.files import contents
from helpers.processes import octavo_command
from octavo.data import CharTokenizer
from octavo.data.words import WordTokenizer
from octavo.lab.classifiers import Classifier, ClassifierConfig, kinds
from octavo.lab.polynomials import compression, export, static
from octavo.lab.polynomials.data import Splits, Stream
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build
from octavo.model_folder.model_config import SHAPE
from octavo.tensors import container
from torch import nn

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", *"abcdefghijklmnopqrstuvwxyz"]
LINES = ["(x-2)*(x+1)=x**2-x-2"] * 4
PACKED, PLAIN = "model.octavo.safetensors", "model.safetensors"


def words(*arguments):
    """The output of a command, whose lines are as long as the terminal is wide, in one line."""
    return " ".join(octavo_command(*arguments).split())


# --- writers ------------------------------------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mix = nn.Linear(32, 32), nn.Conv2d(4, 8, 3)


def own(folder):
    torch.manual_seed(0)
    octavo.save_model(octavo.pack_model(octavo.quantize_model(Own(), "mxint8", progress=False)), folder)


def encoder(folder):
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**small, vocab_size=len(WORDS))).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)


def saved_encoder(folder):
    encoder(folder)
    model = transformers.BertModel.from_pretrained(folder)
    (folder / PLAIN).unlink()
    octavo.save_model(octavo.pack_model(octavo.quantize_model(model, "mxint8", progress=False)), folder)


def packed_encoder(folder):
    encoder(folder.parent / "of")
    octavo_command("pack", folder.parent / "of", "-o", folder)


def compressed_encoder(folder):
    encoder(folder.parent / "of")
    octavo_command("compress", "--model", folder.parent / "of", "--formats", "mxint8", "--budget", "11", "-o", folder)


def former_packed_encoder(folder):
    """As octavo pack of 0.1 wrote it: tensors, and no word about layers."""
    encoder(folder)
    tensors = container.load(folder / PLAIN)
    (folder / PLAIN).unlink()
    packed = {name: octavo.encode(x, "mxint8") if x.ndim == 2 else x for name, x in tensors.items()}
    container.save(packed, folder / PACKED, metadata={"format": "pt"})


def seq2seq():
    torch.manual_seed(0)
    return build(Seq2SeqConfig(embedding=8, encoder=6, hidden=12, heads=3, layers=1, feedforward=20)).eval()


def trained(folder):
    """As octavo lab train polynomials writes it."""
    model = seq2seq()
    integer = static.quantize_static(model, static.calibrate(model, [torch.randint(3, 31, (4, 9))]))
    export.export_model(model, CharTokenizer.polynomials(), folder, integer=integer, metadata={"lines": 1})


def compressed(folder):
    export.export_model(seq2seq(), CharTokenizer.polynomials(), folder.parent / "of", format=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "splits", lambda *_: Splits(Stream(0), LINES, LINES))
        patch.setattr(compression, "CALIBRATED", 4)
        source = folder.parent / "of"
        octavo_command("compress", "--model", source, "--recipe", "mxint8", "--lines", "4", "-o", folder)


def packed_seq2seq(folder):
    export.export_model(seq2seq(), CharTokenizer.polynomials(), folder.parent / "of", format=None)
    octavo_command("pack", folder.parent / "of", "-o", folder)


def former_trained(folder):
    trained(folder)
    values = json.loads((folder / "config.json").read_text()) | {"octavo": 1}
    (folder / values.pop("variants")["integer"]).rename(folder / "integer.safetensors")
    (folder / "config.json").write_text(json.dumps(values))
    container.save(container.load(folder / PACKED), folder / PLAIN)
    (folder / PACKED).unlink()


def classifier(folder):
    """As octavo lab train classifier writes it."""
    torch.manual_seed(0)
    model = Classifier(ClassifierConfig(vocabulary=8, width=32, layers=1, heads=2, feed_forward=64))
    kinds.tiny_classifier(WordTokenizer(["a", "b", "c", "d", "e", "f"]), model).save(folder, {"seed": 0})


def packed_classifier(folder):
    classifier(folder.parent / "of")
    octavo_command("pack", folder.parent / "of", "-o", folder)


def former_classifier(folder):
    classifier(folder)
    tokens, sizes = (json.loads((folder / name).read_text()) for name in ("tokenizer.json", "config.json"))
    (folder / "vocabulary.json").write_text(json.dumps({"words": tokens["words"]}))
    (folder / SHAPE).write_text(json.dumps({name: x for name, x in sizes.items() if name not in ("octavo", "kind")}))
    container.save(container.load(folder / PACKED), folder / PLAIN, metadata={"format": "pt"})
    for name in ("tokenizer.json", "config.json", PACKED):
        (folder / name).unlink()


def halved(model):
    """Return a model without half of its heads and neurons, those of the first layer but one each."""
    for number, group in enumerate(octavo.prune.groups(model, kinds=("head", "neuron"))):
        parameters = dict(model.named_parameters())
        for unit in group.units[: len(group.units) // (1 + number % 2)]:
            for piece in unit.consumers:
                parameters[piece.name].data.index_fill_(piece.dim, piece.indices, 0)
    return octavo.prune.compact_model(model)[0]


def compact_encoder(folder):
    encoder(folder)
    halved(transformers.BertModel.from_pretrained(folder).eval()).save_pretrained(folder)


def packed_compact_encoder(folder):
    compact_encoder(folder.parent / "of")
    octavo_command("pack", folder.parent / "of", "-o", folder)


def compact_seq2seq(folder):
    export.export_model(halved(seq2seq()), CharTokenizer.polynomials(), folder)


def compact_classifier(folder):
    torch.manual_seed(0)
    model = Classifier(ClassifierConfig(vocabulary=8, width=32, layers=2, heads=2, feed_forward=64)).eval()
    kinds.tiny_classifier(WordTokenizer(["a", "b", "c", "d", "e", "f"]), halved(model)).save(folder, {"seed": 0})


def packed_compact_classifier(folder):
    compact_classifier(folder.parent / "of")
    octavo_command("pack", folder.parent / "of", "-o", folder)


WRITERS = {
    make.__name__: make
    for make in (
        own, encoder, saved_encoder, packed_encoder, compressed_encoder, former_packed_encoder, trained, compressed,
        packed_seq2seq, former_trained, classifier, packed_classifier, former_classifier, compact_encoder,
        packed_compact_encoder, compact_seq2seq, compact_classifier, packed_compact_classifier,
    )
}  # fmt: skip
SEQ2SEQ = {"trained", "compressed", "packed_seq2seq", "former_trained"}
CLASSIFIERS = {
    "classifier", "packed_classifier", "former_classifier", "compact_classifier", "packed_compact_classifier",
}  # fmt: skip
ENCODERS = {
    "encoder", "saved_encoder", "packed_encoder", "compressed_encoder", "former_packed_encoder", "compact_encoder",
    "packed_compact_encoder",
}  # fmt: skip
FLOAT = {"encoder", "classifier", "former_classifier", "compact_encoder", "compact_classifier"}


# --- readers ------------------------------------------------------------------------------------------------------------


def unpack(folder, out):
    octavo_command("unpack", folder, "-o", out)
    assert all(entry.format is None for entry in octavo.inspect(out / PLAIN))
    if folder.name != "own":  # whose code no folder holds
        model = octavo.load_model(out)
        assert not any(isinstance(layer, octavo.nn.PackedLayer) for layer in model.modules())


def pack_again(folder, out):
    octavo_command("pack", folder, "-o", out, "--recipe", "mxint8")
    assert octavo.load_model(out)


def expand(folder, out):
    assert len(octavo.lab.polynomials.Engine.load(folder, threads=1).expand(["x+1"])) == 1


def embed(folder, out):
    assert octavo.TextEncoder.load(folder).embed(["the cat"]).shape == (1, 32)


def classify(folder, out):
    made, _ = kinds.load(folder)
    with torch.no_grad():
        assert made.model(torch.tensor(made.encode(["a b c"]))).shape == (1, 2)


def evaluate(folder, out):
    (out.parent / "lines.txt").write_text("x*(x+1)=x**2+x\n")
    assert "exact match" in words("eval", "polynomials", "--model", folder, "--data", out.parent / "lines.txt")


UNPACK_FIRST = "octavo unpack comes first"
# Reader: how it reads, whose folders, and what it says of each other one.
READERS = {
    "load_model": (
        lambda folder, out: octavo.load_model(folder),
        WRITERS.keys() - {"own"},
        "give load_model the model",
    ),
    "inspect": (lambda folder, out: words("inspect", folder), WRITERS.keys(), ""),
    "compare": (
        lambda folder, out: words("compare", folder, "--formats", "nf4"),
        FLOAT,
        UNPACK_FIRST,
    ),
    "unpack": (unpack, WRITERS.keys(), ""),
    "pack": (pack_again, FLOAT, UNPACK_FIRST),
    "recipe": (
        lambda folder, out: words("recipe", "mxint8", "--model", folder),
        WRITERS.keys() - {"own"},
        "config.json",
    ),
    "Engine": (
        expand,
        SEQ2SEQ,
        "octavo lab train polynomials writes|config.json: No such file|octavo.load_model runs it",
    ),
    "eval": (
        evaluate,
        SEQ2SEQ,
        "octavo lab train polynomials writes|config.json: No such file|octavo.load_model runs it",
    ),
    "TextEncoder": (embed, ENCODERS, "the native encoder runs bert|config.json"),
    "classifier": (classify, CLASSIFIERS, "octavo lab train classifier writes"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Each folder, made when it is first asked for."""
    made = {}

    def folder(writer):
        if writer not in made:
            made[writer] = tmp_path_factory.mktemp(writer) / writer
            WRITERS[writer](made[writer])
        return made[writer]

    return folder


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_reader_reads_every_folder_or_names_what_does(written, tmp_path, writer, reader):
    read, whose, told = READERS[reader]
    folder = shutil.copytree(written(writer), tmp_path / writer)
    before = contents(folder)
    if writer in whose:
        read(folder, tmp_path / "out")
    else:
        with pytest.raises((octavo.OctavoError, OSError, AssertionError)) as caught:
            read(folder, tmp_path / "out")
        assert any(text in " ".join(str(caught.value).split()) for text in told.split("|")), caught.value
        assert not (tmp_path / "out").exists()
    assert contents(folder) == before


@pytest.mark.parametrize(
    "writer",
    sorted(WRITERS.keys() - {"encoder", "compact_encoder", "own"} - {name for name in WRITERS if "former" in name}),
)
def test_every_writer_writes_the_one_form(written, writer):
    folder = written(writer)
    weights = {file.name for file in folder.glob("*.safetensors")}
    values = json.loads((folder / "config.json").read_text())
    assert weights == {PACKED, *values.get("variants", {}).values()}
    assert "model_type" in values or (values["octavo"], values["kind"] in ("seq2seq", "classifier")) == (2, True)
    assert {"format", "structure"} <= container.metadata(folder / PACKED).keys()
    packed = any(isinstance(layer, octavo.nn.PackedLayer) for layer in octavo.load_model(folder).modules())
    if "compact" in writer:
        assert "compacted: " in words("inspect", folder)
    assert packed == (writer not in ("classifier", "compact_classifier"))
