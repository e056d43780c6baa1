"""How texts are grouped into batches and padded changes no code and no scale, and hidden positions count nowhere."""

import warnings

import octavo
import pytest
import torch
from octavo.data.batches import Batches
from octavo.quant import correct_bias_model, smooth_model
from octavo.search import measure_sensitivity
from octavo.train.unpadded_samples import unpadded
from torch import nn

RECIPES = [
    "int4:g16@gptq; type:Embedding keep",
    "int8:channel; input=int8@minmax",
    "int4:g16@gptq; input=int8@mse; type:Embedding keep",
]
LENGTHS = (5, 9, 3, 9, 7, 5, 1, 9)
HIDDEN = 31  # the id at hidden positions: anything but what a text holds there


def texts(seed=0, lengths=LENGTHS):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 30, (length,), generator=generator) for length in lengths]


def padded(rows, side, more):
    """Rows of one length, and their mask."""
    width = max(map(len, rows)) + more
    ids, mask = torch.full((len(rows), width), HIDDEN), torch.zeros(len(rows), width, dtype=torch.int64)
    for row, text in enumerate(rows):
        places = slice(width - len(text), width) if side == "left" else slice(0, len(text))
        ids[row, places], mask[row, places] = text, 1
    return ids, mask


def encoded(rows, side="right", more=0):
    ids, mask = padded(rows, side, more)
    return {"input_ids": ids, "attention_mask": mask}


def translated(rows, side="right", more=0):
    answers, seen = padded([text.flip(0)[: max(len(text) - 2, 1)] for text in rows], side, 2 * more)
    return encoded(rows, side, more) | {"decoder_input_ids": answers, "decoder_attention_mask": seen}


class Own(nn.Module):
    """Attention over the positions that a mask shows."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(32, 16), nn.Linear(16, 48), nn.Linear(16, 32)

    def forward(self, ids, attention_mask):
        q, k, v = self.mix(self.embed(ids)).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(attention_mask[:, None] == 0, -1e9)
        return self.out(scores.softmax(-1) @ v)


def of_transformers(name, **sizes):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}Model")(config).eval()


def model_of(kind):
    torch.manual_seed(0)
    if kind == "own":
        return Own(), lambda *given: tuple(encoded(*given).values())
    if kind == "Bert":
        sizes = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "vocab_size": 32,
        }
        return of_transformers("Bert", **sizes), encoded
    if kind == "GPT2":
        return of_transformers("GPT2", n_embd=32, n_layer=2, n_head=2, vocab_size=32, n_positions=32), encoded
    return of_transformers("T5", d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2, vocab_size=32), translated  # fmt: skip


KINDS = ["own", "Bert", "GPT2", "T5"]


def grouped(rows, make, size, side, more):
    return [make(rows[start : start + size], side, more) for start in range(0, len(rows), size)]


def equal(one, two):
    one, two = one.state_dict(), two.state_dict()
    assert one.keys() == two.keys()
    different = [name for name in one if not torch.equal(one[name], two[name])]
    assert not different, different


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", KINDS)
def test_grouping_and_padding_change_no_code_and_no_scale(kind, recipe):
    model, make = model_of(kind)
    rows = texts()
    alone = octavo.quantize_model(model, recipe, calibration=grouped(rows, make, 1, "right", 0), progress=False)
    for size, side, more in ((8, "right", 0), (3, "left", 4), (5, "right", 9)):
        given = grouped(rows, make, size, side, more)
        equal(octavo.quantize_model(model, recipe, calibration=given, progress=False), alone)


@pytest.mark.parametrize("recipe", RECIPES)
def test_pictures_are_grouped_as_it_likes(recipe):
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "image_size": 16,
        "patch_size": 8,
    }
    torch.manual_seed(0)
    model, pictures = of_transformers("ViT", **sizes), torch.randn(9, 3, 16, 16)
    made = [
        octavo.quantize_model(
            model,
            recipe.removesuffix("; type:Embedding keep"),
            calibration=[{"pixel_values": part} for part in pictures.split(size)],
            progress=False,
        )
        for size in (1, 2, 4, 9)
    ]
    for other in made[1:]:
        equal(made[0], other)


def test_as_many_samples_as_were_asked_for_are_used_however_they_come():
    model, vectors = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(40, 8)
    made = [
        octavo.quantize_model(
            model, "int4:g8@gptq; input=int8@mse", calibration=vectors.split(size), samples=17, progress=False
        )
        for size in (1, 7, 16, 40)
    ]
    for other in made[1:]:
        equal(made[0], other)
    assert sum(map(len, unpadded(model, Batches(vectors.split(16), 17)))) == 17


@pytest.mark.parametrize("kind", KINDS)
def test_scores_corrections_and_agreement_do_not_depend_on_grouping(kind):
    rows = texts()
    found = []
    for size, side, more in ((1, "right", 0), (8, "left", 2), (3, "right", 5)):
        model, make = model_of(kind)
        given = grouped(rows, make, size, side, more)
        told = [
            measure_sensitivity(model, given, ["int3:channel", "nf4"], method=method, progress=False).loss.tolist()
            for method in ("divergence", "fisher")
        ]
        smooth_model(model, given, progress=False)
        rounded = octavo.quantize_model(model, "int3:channel", progress=False)
        corrected = correct_bias_model(rounded, model, given, progress=False)
        told += [{name: delta.tolist() for name, delta in corrected.added.items()}]
        told.append(octavo.evaluate(rounded, given, against=model).value)
        found.append(str(told))
    assert found[0] == found[1] == found[2]


def test_positions_that_a_mask_hides_inside_a_text_count_nowhere():
    model, _ = model_of("own")
    ids, mask = torch.randint(0, 30, (6, 9)), torch.ones(6, 9, dtype=torch.int64)
    mask[:, 3:5] = 0
    made = []
    for other in (1, 30):
        ids = torch.where(mask == 0, torch.full_like(ids, other), ids)
        made.append(
            octavo.quantize_model(
                model, "int4:g16@gptq; input=int8@minmax; embed keep", calibration=[(ids, mask)], progress=False
            )
        )
    first, second = (one.state_dict() for one in made)
    for name in first:
        if name.startswith("mix"):  # behind it attention of hidden positions, which none reads, differs
            assert torch.equal(first[name], second[name]), name


class SequenceFirst(nn.Module):
    """The first dimension is no sample."""

    def __init__(self):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0)

    def forward(self, x):
        return self.body(x)


class Fixed(nn.Module):
    """Positions of one number alone, which a mask hides or shows."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(32, 4), nn.Linear(24, 3)

    def forward(self, ids, attention_mask):
        return self.out((self.embed(ids) * attention_mask[..., None]).flatten(1))


@pytest.mark.parametrize(
    ("model", "batches"),
    [
        (SequenceFirst().eval(), [torch.randn(5, 3, 16)]),
        (Fixed(), [(torch.randint(0, 32, (4, 6)), torch.tensor([[1] * 4 + [0] * 2] * 4))]),
        (nn.Linear(3, 2), [{"input": torch.randn(4, 3)}, {"input": torch.randn(2, 4, 3)}]),
    ],
)
def test_batches_that_are_no_samples_side_by_side_stay_as_they_are(model, batches):
    given = Batches(batches)
    if isinstance(model, nn.Linear):
        assert sum(len(batch["input"]) for batch in unpadded(model, given)) == 6
    else:
        assert unpadded(model, given) is given
        octavo.quantize_model(model, "int8:channel; input=int8@minmax", calibration=batches, progress=False)


def test_a_layer_that_saw_nothing_but_zeros_is_named():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    for recipe in ("int8:channel; input=int8@minmax", "int4:g8@gptq"):
        with pytest.warns(octavo.CalibrationWarning, match=r"^2: input: nothing but zeros.*'.*2.*keep'") as told:
            octavo.quantize_model(model, recipe, calibration=[torch.randn(5, 8)], progress=False)
        (warning,) = [one.message for one in told if isinstance(one.message, octavo.CalibrationWarning)]
        assert warning.layers == ("2",)
        rule = str(warning).rpartition(": '")[2].removesuffix("'")
        with warnings.catch_warnings():
            warnings.simplefilter("error", octavo.CalibrationWarning)
            octavo.quantize_model(model, f"{recipe}; {rule}", calibration=[torch.randn(5, 8)], progress=False)


def test_a_weight_of_which_nothing_is_left_is_named():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight.mul_(0.01)
    with pytest.warns(octavo.CalibrationWarning, match=r"^1 of the Sequential is 0 in 'fixed4.2'"):
        octavo.quantize_model(model, "fixed4.2", progress=False)
    with torch.no_grad():
        for layer in model:
            layer.weight.mul_(0.001)
    with pytest.warns(octavo.CalibrationWarning, match="^every quantized weight of the Sequential"):
        octavo.quantize_model(model, "fixed4.2", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", octavo.CalibrationWarning)
        for recipe in ("int4:g8", "fixed4", "mxint4", "nf4", "int4:g8@hqq"):
            octavo.quantize_model(model, recipe, progress=False)
        model[1].weight.data.zero_()  # it was 0 before
        octavo.quantize_model(model, "1=fixed4.2", progress=False)
