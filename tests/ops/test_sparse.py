"""Products with sparse codes: within the bound of FORMATS.md section 6, and dense products where codes are expanded."""

import octavo
import pytest
import torch
from helpers.simd import SIMD_LEVELS, available_levels
from octavo import _core
from octavo.ops import sparse
from octavo.ops.linear import packed_linear
from octavo.tensors import sparse_codes

FORMATS = ["int8:g32", "mxint8", "int8:channel", "int4:g32", "mxfp4", "mxfp6e2m3", "mxfp6e3m2", "nvfp4", "mxfp8e4m3"]
TAKEN = [str(fmt) for fmt in octavo.formats() if sparse_codes.takes(fmt.core)]


def weight(n, k, zeros, text):
    generator = torch.Generator().manual_seed(n + k)
    x = torch.randn(n, k, generator=generator)
    return octavo.encode(torch.where(torch.rand(n, k, generator=generator) < zeros, 0.0, x), text)


def inputs(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(dtype)


def product(x, packed, bias=None):
    none = packed.scales, packed.zeros, packed.levels
    return sparse.multiply(x, packed.to_sparse().sparse, *none, bias, str(packed.format), *packed.shape)


def bound(x, packed, bias, exact, dtype):
    """FORMATS.md section 6, Products."""
    values, k = packed.decode().double(), packed.shape[1]
    t = torch.zeros(len(x), packed.shape[0], dtype=torch.float64)
    if bias is not None:
        t += bias.double().abs()
    for at in range(0, k, 256):
        t += x[:, at : at + 256].double().abs().amax(1, keepdim=True) * values[:, at : at + 256].abs().sum(1)
    unit = torch.finfo(dtype).eps
    return (2**-20 + k * 2**-28) * t + k * 2.0**-149 + exact.abs() * unit / 2


@pytest.mark.parametrize("level", SIMD_LEVELS)
@pytest.mark.parametrize("text", FORMATS)
def test_products_are_within_the_bound_at_every_level(text, level):
    if level not in available_levels():
        pytest.skip("not on this machine")
    packed, bias = weight(70, 1100, 0.6, text), inputs(70)
    _core.force_simd(level)
    try:
        for m, dtype in [(1, torch.float32), (3, torch.bfloat16), (4, torch.float16), (6, torch.float32)]:
            x = inputs(m, 1100, dtype=dtype)
            exact = x.double() @ packed.decode().double().t() + bias.double()
            found = product(x, packed, bias)
            assert found.dtype == dtype
            assert ((found.double() - exact).abs() <= bound(x, packed, bias, exact, dtype)).all()
    finally:
        _core.force_simd(None)


@pytest.mark.parametrize("text", TAKEN)
def test_expanded_products_are_those_of_dense_codes(text):
    for n, k, zeros in [(70, 300, 0.6), (3, 7, 0.5), (17, 64, 1.0), (5, 0, 0.0)]:
        packed = weight(n, k, zeros, text)
        for m in (0, 5, 33):
            x = inputs(m, k)
            assert torch.equal(product(x, packed, inputs(n)), packed_linear(x, packed, inputs(n)))


def test_pieces_do_not_change_the_product(monkeypatch):
    packed, x = weight(768, 512, 0.5, "int8:g32"), inputs(9, 512)  # pieces of a size: small weights go other ways
    monkeypatch.setattr(sparse_codes, "_EXPANDED", 200 * 512)
    assert len(sparse_codes.pieces(packed.format.core, 768, 512)) == 4
    assert torch.equal(product(x, packed), packed_linear(x, packed))


def test_pieces_cover_every_row_once():
    fmt = octavo.Format("int4:g32").core
    for rows, columns in [(0, 5), (5, 0), (1, 1), (4096, 4096), (8193, 4096), (100_000, 4096), (3, 10**8)]:
        found = sparse_codes.pieces(fmt, rows, columns)
        assert [first for first, _ in found] == [sum(some for _, some in found[:i]) for i in range(len(found))]
        assert sum(some for _, some in found) == rows and all(first % 64 == 0 for first, _ in found)
        assert max(some * columns // 2 for _, some in found) <= max(8 << 20, 64 * columns)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_products_do_not_depend_on_threads(threads):
    packed, x = weight(300, 1024, 0.5, "mxint8"), inputs(2, 1024)
    wanted, before = product(x, packed), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(product(x, packed), wanted)
    finally:
        torch.set_num_threads(before)


def test_gradients_are_those_of_dense_codes():
    packed, bias = weight(40, 96, 0.5, "int8:g32"), inputs(40)
    made = []
    for multiply in (product, packed_linear):
        x = inputs(3, 96).requires_grad_()
        multiply(x, packed, bias).square().sum().backward()
        made.append(x.grad)
    assert torch.equal(*made)


def test_the_kernel_is_told():
    few, many = (sparse.kernel("int8:g32", m, 512, 512, torch.float32) for m in (1, 64))
    assert many.startswith("expand + ") and (few == "sparse int8 limbs vnni" or few.startswith("expand + "))
    assert sparse.kernel("int8:g32", 1, 512, 512, torch.float32, "int8:g32", rounded=True).startswith("expand + ")


def test_ops_have_fakes_and_schemas():
    packed = weight(70, 300, 0.6, "int8:g32")
    codes = packed.to_sparse().sparse
    torch.library.opcheck(torch.ops.octavo.dense_codes.default, (*codes, "int8:g32", 70, 300, 16, 20))
    arguments = inputs(2, 300), *codes, packed.scales, packed.zeros, packed.levels, inputs(70), "int8:g32", 70, 300
    torch.library.opcheck(torch.ops.octavo.sparse_linear.default, arguments)


def test_operands_that_do_not_fit_are_refused():
    packed = weight(20, 64, 0.5, "int8:g32")
    with pytest.raises(octavo.ShapeError, match="the last dimension of x must be 64"):
        product(inputs(2, 63), packed)
    with pytest.raises(octavo.DTypeError, match="float64"):
        product(inputs(2, 64).double(), packed)
    codes = packed.to_sparse().sparse
    for name, part in [("bitmap", codes.bitmap[:1]), ("starts", codes.starts[1:]), ("codes", codes.codes.int())]:
        with pytest.raises(octavo.ShapeError, match=f"sparse 'int8:g32'.*{name} are"):
            torch.ops.octavo.dense_codes(*codes._replace(**{name: part}), "int8:g32", 20, 64, 0, 20)
    for first, count in [(-16, 16), (8, 4), (16, 5), (0, -1), (32, 0)]:
        with pytest.raises(octavo.ShapeError, match=f"{count} rows from row {first} on"):
            torch.ops.octavo.dense_codes(*codes, "int8:g32", 20, 64, first, count)


@pytest.mark.parametrize("m", [1, 40])  # of a kernel, and in pieces
def test_scales_and_biases_of_other_rows_are_refused(m):
    packed = weight(20, 64, 0.5, "int8:g32")
    with pytest.raises(octavo.ShapeError, match=r"bias has shape \(21,\), the weight has 20 rows"):
        product(inputs(m, 64), packed, inputs(21))
    sparse_codes_of, scales = packed.to_sparse().sparse, packed.scales
    for wrong in (scales[:19], scales[0, 0], torch.cat([scales, scales])):
        with pytest.raises(octavo.ShapeError, match="scales are"):
            sparse.multiply(
                inputs(m, 64), sparse_codes_of, wrong, packed.zeros, packed.levels, None, "int8:g32", 20, 64
            )
