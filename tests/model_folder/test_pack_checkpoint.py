import json

import numpy as np
import pytest
import torch
from octavo import Format, FormatError, NonFiniteError, PackedTensor, Recipe, encode, quantize
from octavo.errors import ContainerError, ShapeError
from octavo.model_folder.pack_checkpoint import (
    Errors,
    best_format,
    compare_formats,
    measure,
    pack_tensors,
    plan,
    unpack_tensors,
)
from octavo.model_folder.weight_files import Checkpoint
from octavo.recipe.tensor_decisions import select
from octavo.tensors import container
from octavo.tensors.formats import parse_formats

FLOAT64 = 1e-12  # relative: float64 sums in another order


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(3)
    made = {
        "embed.weight": torch.randn(50, 40, generator=generator),
        "block.0.q.weight": torch.randn(40, 40, generator=generator).to(torch.bfloat16),
        "block.0.q.bias": torch.randn(40, generator=generator),
        "block.1.conv.weight": torch.randn(4, 5, 6, generator=generator).half(),
        "scale": torch.tensor(2.0),
        "position_ids": torch.arange(50)[None],
        "wide": torch.randn(3, 3, generator=generator).double(),
    }
    return made


# --- selecting ------------------------------------------------------------------------------------------------------


def test_the_default_selection_is_2d_floats(tensors):
    assert select(tensors) == ["embed.weight", "block.0.q.weight"]


def test_a_glob_takes_weights_and_a_full_name_anything_of_floats(tensors):
    assert select(tensors, "block.**") == ["block.0.q.weight", "block.1.conv.weight"]
    assert select(tensors, "block.0.q.bias") == ["block.0.q.bias"]


def test_a_full_name_matches_itself_whatever_it_holds():
    assert select({"layers[0].weight": torch.zeros(2, 2)}, "layers[0].weight") == ["layers[0].weight"]


@pytest.mark.parametrize(
    ("text", "formats"),
    [
        ("mxint8,mxfp4", ["mxint8", "mxfp4"]),
        (" fixed8:channel,mse , nf4,", ["fixed8:channel,mse", "nf4"]),
        ("int8:channel,int4:g32,mxint8,mxint8", ["int8:channel", "int4:g32", "mxint8"]),
    ],
)
def test_a_list_of_formats_keeps_their_options(text, formats):
    assert list(map(str, parse_formats(text))) == formats


@pytest.mark.parametrize("text", ["", ",", "mxint8,mse", "mxint8,nonsense"])
def test_a_list_with_something_else_is_refused(text):
    with pytest.raises(FormatError):
        parse_formats(text)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (3, 5, 2), (1200, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_errors_are_those_of_float64(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    q = quantize(x, "mxfp4")
    a, b = x.double().numpy().ravel(), q.double().numpy().ravel()
    errors = measure(x, q)
    assert errors.sqnr_db == pytest.approx(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()), rel=FLOAT64)
    assert errors.cosine == pytest.approx((a @ b) / np.sqrt((a @ a) * (b @ b)), rel=FLOAT64)
    assert errors.largest == np.abs(a - b).max()


def test_errors_of_parts_add_up_to_those_of_the_whole():
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(2))
    q = quantize(x, "nf4")
    whole, parts = measure(x, q), measure(x[:10], q[:10]) + measure(x[10:], q[10:])
    for field in ("signal", "noise", "power", "largest", "cosine"):
        assert getattr(parts, field) == pytest.approx(getattr(whole, field), rel=FLOAT64)


def test_errors_of_nothing_and_of_zeros():
    for errors in (Errors(), measure(torch.zeros(0, 4), torch.zeros(0, 4)), measure(torch.zeros(4), torch.zeros(4))):
        assert (errors.sqnr_db, errors.cosine, errors.largest) == (float("inf"), 1.0, 0.0)
    lost = measure(torch.zeros(4), torch.ones(4))
    assert (lost.sqnr_db, lost.cosine) == (float("-inf"), 0.0)
    with pytest.raises(ShapeError):
        measure(torch.zeros(4), torch.zeros(2, 2))


# --- packing --------------------------------------------------------------------------------------------------------


def test_packing_and_unpacking_quantizes_what_the_recipe_names(tensors):
    recipe = Recipe.parse("mxint8; block.1.**=int4:g32; block.0.q.bias=mxfp4")
    packing = pack_tensors(tensors, recipe)
    plain = unpack_tensors(packing.tensors)
    for name, spec in recipe.assign(tensors).items():
        assert isinstance(packing.tensors[name], PackedTensor) == (spec is not None)
        expected = tensors[name] if spec is None else quantize(tensors[name], spec.format)
        assert torch.equal(plain[name], expected) and plain[name].dtype == tensors[name].dtype


def test_the_plan_is_what_packing_does(tensors):
    recipe = Recipe.parse("mxint8; block.1.**=int4:g32; embed.weight=fp16; block.0.q.weight=uint4:g32")
    packing = pack_tensors(tensors, recipe)
    for planned, done in zip(plan(tensors, recipe), packing.reports, strict=True):
        assert (planned.name, planned.format, planned.nbytes) == (done.name, done.format, done.nbytes)
        assert done.nbytes == packing.tensors[done.name].nbytes
        assert done.nbytes_before == tensors[done.name].nbytes


def test_native_formats_store_plain_tensors_that_saturate():
    tensors = {"a": torch.tensor([[1e6, -1.0], [2.0**-30, 0.1]])}
    after = pack_tensors(tensors, Recipe.parse("fp16")).tensors["a"]
    assert after.dtype == torch.float16
    assert after[0, 0] == torch.finfo(torch.float16).max


def test_a_rule_chooses_how_block_scales_are_found(tensors):
    packing = pack_tensors(tensors, Recipe.parse("mxfp4@mse; embed.weight=mxfp4@ceil"))
    assert packing.tensors["block.0.q.weight"] == encode(tensors["block.0.q.weight"], "mxfp4", scale="mse")
    assert packing.tensors["embed.weight"] == encode(tensors["embed.weight"], "mxfp4", scale="ceil")
    with pytest.raises(FormatError, match="accepted are floor, ceil, mse"):
        compare_formats(tensors, [Format("mxfp4")], scale="round")


def test_nan_is_refused_with_the_name_of_its_tensor(tensors):
    tensors["embed.weight"][1, 2] = torch.nan
    for refuse in (
        lambda: pack_tensors(tensors, Recipe.parse("mxint8")),
        lambda: compare_formats(tensors, [Format("mxint8")]),
    ):
        with pytest.raises(NonFiniteError, match=r"^embed\.weight: "):
            refuse()


def test_progress_counts_every_byte(tensors):
    seen = []
    pack_tensors(tensors, Recipe.parse("mxint8"), progress=lambda name, nbytes: seen.append((name, nbytes)))
    assert seen == [(name, tensor.nbytes) for name, tensor in tensors.items()]


# --- comparing ------------------------------------------------------------------------------------------------------


def test_comparing_counts_bits_as_bytes_and_sums_errors(tensors):
    for entry in compare_formats(tensors, parse_formats("mxint8,nvfp4,uint4:g32,binary,e4m3")):
        names = select(tensors)
        packed = [encode(tensors[name], entry.format) for name in names]
        assert entry.nbytes == sum(p.nbytes for p in packed)
        assert entry.bits_per_element == 8 * entry.nbytes / sum(tensors[name].numel() for name in names)
        total = sum((measure(tensors[n], p.decode()) for n, p in zip(names, packed, strict=True)), Errors())
        assert entry.errors == total


def test_the_best_format_has_the_highest_sqnr_within_the_budget(tensors):
    compared = compare_formats(tensors, parse_formats("mxint8,mxfp6e2m3,mxint4,nf4,fp32"))
    for budget in (4.4, 6.5, 8.5, 40):
        chosen = best_format(compared, budget)
        fitting = [entry for entry in compared if entry.bits_per_element <= budget]
        assert chosen in fitting
        assert chosen.errors.sqnr_db == max(entry.errors.sqnr_db for entry in fitting)
    with pytest.raises(
        FormatError, match=r"no format fits a budget of 2 bits per weight; the smallest, '(mxint4|nf4)'"
    ):
        best_format(compared, 2)


# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_sharded_model_reads_as_one(tensors, tmp_path):
    names = list(tensors)
    container.save({name: tensors[name] for name in names[:3]}, tmp_path / "a.safetensors", metadata={"format": "pt"})
    container.save({name: tensors[name] for name in names[3:]}, tmp_path / "b.safetensors")
    index = {"weight_map": {name: "ab"[names.index(name) > 2] + ".safetensors" for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    source = Checkpoint.open(tmp_path)
    read = source.tensors()
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in names)
    assert {entry.name for entry in source.entries()} == set(names)
    assert source.metadata() == {"format": "pt"}
    container.save(tensors, tmp_path / "b.safetensors")
    with pytest.raises(ContainerError, match="in another shard"):
        source.tensors()
