"""Scales of our own formats: the linter finds exactly those that are not finite, and says where they are."""

import octavo
import pytest
import torch
from octavo.interchange.check.run_check import check_path
from octavo.tensors.packed_tensor import PackedTensor, part_specs

HALVES = {"q2_k": (16, 18), "q3_k": (12,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (16,)}
SCALED = [*(one for one in octavo.formats() if one.scale_type not in (None, "int8")), *map(octavo.Format, HALVES)]
ROWS, COLUMNS = 4, 512
NOT_FINITE = {
    "e8m0": b"\xff",
    "e4m3": b"\x7f",
    "float32": b"\x00\x00\xc0\x7f",
    "float16": b"\x00\x7c",
    "nested": b"\x00\xfe",
}


def packed(format):
    """Return weights of a format; K-quants, which nothing encodes, have random bytes, 255 among them."""
    generator = torch.Generator().manual_seed(5)
    if format.scale_type != "nested":
        return octavo.encode(torch.randn(ROWS, COLUMNS, generator=generator), format)
    specs = part_specs(format.core, (ROWS, COLUMNS), -1)
    parts = [torch.randint(0, 256, shape, generator=generator).to(dtype) for _, dtype, shape in specs]
    parts[1].fill_(255)
    for at in HALVES[str(format)]:
        parts[1][..., at + 1] = 0x3B
    return PackedTensor(format, *parts, shape=(ROWS, COLUMNS), dtype=torch.float32)


@pytest.mark.parametrize("format", SCALED, ids=str)
def test_a_scale_that_is_not_finite_is_found_where_it_is(format, tmp_path):
    weight, file = packed(format), tmp_path / "model.safetensors"
    assert weight.decode().isfinite().all()
    octavo.save({"a.weight": weight}, file)
    assert not list(check_path(file).findings)

    wrong = NOT_FINITE[format.scale_type]
    shape, a_scale = weight.scales.shape, weight.scales.element_size()
    many = len(shape) == 3 or (format.granularity == "tensor" and len(shape) == 2)
    step = a_scale * (shape[-1] if many else 1)
    rows = 1 if format.granularity == "tensor" else ROWS
    groups = weight.scales.numel() * a_scale // step // rows
    row, block = rows - 1, groups - 1
    at = HALVES[str(format)][-1] if format.scale_type == "nested" else step - len(wrong)
    start = (row * groups + block) * step + at
    weight.scales.view(torch.uint8).view(-1)[start : start + len(wrong)] = torch.tensor(list(wrong), dtype=torch.uint8)
    assert not weight.decode().isfinite().all()
    octavo.save({"a.weight": weight}, file)
    (finding,) = check_path(file).findings
    (place,) = finding.places
    assert (finding.rule.id, finding.count, place.row, place.block) == ("scale-nan", 1, row, block)
    assert file.read_bytes()[place.offset : place.offset + len(wrong)] == wrong


def test_the_scale_of_a_tensor_is_checked(tmp_path):
    weight, file = octavo.encode(torch.randn(4, 64), "nvfp4"), tmp_path / "model.safetensors"
    weight.levels.fill_(float("inf"))
    octavo.save({"a.weight": weight}, file)
    assert "scale-nan" in {one.rule.id for one in check_path(file).findings}
