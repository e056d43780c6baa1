"""Residual sum, drop-out and norm as one operation: against its definition, with the same mask."""

import ctypes
import itertools

import pytest
import torch
from octavo import DTypeError, RangeError, ShapeError, _core
from octavo.lab.language.gpt import residual_norm
from octavo.lab.language.gpt.dropout_mask import kept_numbers
from octavo.lab.language.gpt.residual_norm import plain_residual_norm, residual_dropout_norm
from torch.autograd import gradcheck
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

SEED = torch.tensor([0x1234_5678_9ABC_DEF0])
EPS = 1e-6


def operands(shape, dtypes=(torch.float32, torch.float32), has_gain=True):
    """x, branch and gain of a shape, the same at every call; the stream's dtype."""
    torch.manual_seed(0)
    x, branch = (torch.randn(shape).to(dtype) for dtype in dtypes)
    dtype = torch.promote_types(*dtypes)
    return x, branch, torch.rand(shape[-1]).to(dtype) + 0.5 if has_gain else None, dtype


def results(operation, x, branch, gain, **options):
    """Stream, normed rows and all gradients for fixed gradients of the two."""
    leaves = [part.clone().requires_grad_() for part in (x, branch, gain) if part is not None]
    made = operation(leaves[0], leaves[1], leaves[2] if gain is not None else None, eps=EPS, seed=SEED, **options)
    torch.manual_seed(1)
    slopes = [torch.randn(part.shape).to(part.dtype) for part in made]
    return [*(part.detach() for part in made), *torch.autograd.grad(made, leaves, slopes)]


def assert_near(found, wanted, tolerance):
    """Equal up to a share of the largest number, dtypes and shapes included."""
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        largest = other.abs().max().float().item() if other.numel() else 0
        assert torch.allclose(one.float(), other.float(), rtol=0, atol=tolerance * max(largest, 1e-3))


@pytest.mark.parametrize("shape", [(1, 1), (1, 768), (3, 5, 63), (2, 65), (130, 100), (7,)])
@pytest.mark.parametrize(("p", "scale"), [(0.0, 1.0), (0.1, 0.3), (0.5, torch.tensor(0.7)), (0.9999, 1.0)])
@pytest.mark.parametrize("has_gain", [False, True])
def test_the_operation_is_its_definition(shape, p, scale, has_gain):
    x, branch, gain, _ = operands(shape, has_gain=has_gain)
    branch = branch * (1 - p)  # so that what is left is of the size of x
    found, wanted = (
        results(operation, x, branch, gain, scale=scale, p=p)
        for operation in (residual_dropout_norm, plain_residual_norm)
    )
    assert torch.equal(found[3] == 0, wanted[3] == 0)
    for gradients in (found, wanted):
        gradients[3] = gradients[3] * (1 - p)  # what is left of the gradient of x
    largest = wanted[2].abs().max() * scale
    assert torch.allclose(found.pop(3), wanted.pop(3), rtol=0, atol=1e-6 * largest)
    assert_near(found, wanted, 1e-6)


@pytest.mark.parametrize(
    "dtypes",
    [(torch.bfloat16,) * 2, (torch.float16,) * 2, (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16)],
)
def test_other_dtypes_are_rounded_once(dtypes):
    x, branch, gain, dtype = operands((40, 100), dtypes)
    found = results(residual_dropout_norm, x, branch, gain, scale=0.5, p=0.25)
    wanted = results(plain_residual_norm, x.float(), branch.float(), gain.float(), scale=0.5, p=0.25)
    assert [part.dtype for part in found] == [dtype, dtype, *dtypes, dtype]
    half_step = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
    coarsest = max(half_step[kind] for kind in dtypes)
    for one, other in zip(found, wanted, strict=True):
        # The norm reads the stream after it was rounded, and so do the gradients.
        assert torch.allclose(one.float(), other, rtol=0, atol=3 * coarsest * other.abs().max())
    assert torch.allclose(found[0].float(), wanted[0], rtol=half_step[dtype], atol=1e-6)


def test_bits_depend_neither_on_level_nor_on_threads():
    x, branch, gain, _ = operands((700, 131))
    wanted = results(residual_dropout_norm, x, branch, gain, scale=0.3, p=0.2)
    level, threads = _core.simd_level(), _core.num_threads()
    try:
        for name, count in itertools.product(("scalar", "avx2", "avx512"), (1, 2)):
            if ("scalar", "avx2", "avx512").index(name) > ("scalar", "avx2", "avx512").index(level):
                continue
            _core.force_simd(name)
            _core.set_num_threads(count)
            assert all(map(torch.equal, results(residual_dropout_norm, x, branch, gain, scale=0.3, p=0.2), wanted))
    finally:
        _core.force_simd(level)
        _core.set_num_threads(threads)


def test_the_mask_keeps_its_share_and_the_mean():
    kept = kept_numbers(SEED, 400, 300, 0.3)
    assert abs(kept.float().mean().item() - 0.7) < 4 * (0.3 * 0.7 / kept.numel()) ** 0.5
    ones = torch.ones(400, 300)
    stream, _ = residual_dropout_norm(torch.zeros(400, 300), ones, None, scale=1.0, p=0.3, eps=EPS, seed=SEED)
    assert torch.equal(stream != 0, kept)
    assert stream.mean().item() == pytest.approx(1, abs=0.01)
    others = kept_numbers(SEED + 1, 400, 300, 0.3)
    assert abs((kept == others).float().mean().item() - (0.49 + 0.09)) < 0.01


def test_the_seed_comes_from_the_generator_of_torch():
    x, branch, _, _ = operands((4, 50))

    def drawn(seed):
        torch.manual_seed(seed)
        return [residual_dropout_norm(x, branch, None, scale=1.0, p=0.5, eps=EPS)[0] for _ in range(2)]

    first, again, other = drawn(3), drawn(3), drawn(4)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(*first) and not torch.equal(first[0], other[0])


def test_gradients_are_derivatives_of_first_order():
    x, branch, gain, _ = operands((3, 70))
    shared = {"scale": 0.7, "p": 0.25, "eps": EPS, "seed": SEED}
    wide = [part.double().requires_grad_() for part in (x, branch, gain)]
    assert gradcheck(lambda *parts: plain_residual_norm(*parts, **shared), wide)  # of the definition
    single = [part.float().detach().requires_grad_() for part in wide]
    found = torch.autograd.grad(residual_dropout_norm(*single, **shared)[1].square().sum(), single)
    wanted = torch.autograd.grad(plain_residual_norm(*wide, **shared)[1].square().sum(), wide)
    assert_near(found, [part.float() for part in wanted], 2e-6)
    assert gradcheck(lambda *parts: residual_dropout_norm(*parts, **shared), wide)  # float64 is the definition
    normed = residual_dropout_norm(*single, **shared)[1]
    (slope,) = torch.autograd.grad(normed.square().sum(), single[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="gradients of first order"):
        torch.autograd.grad(slope.sum(), single[0])


def test_operands_that_are_not_contiguous_or_empty():
    x, branch, gain, _ = operands((50, 40))
    shared = {"scale": 0.7, "p": 0.25, "eps": EPS, "seed": SEED}
    found = residual_dropout_norm(x.t()[:, ::2], branch.t()[:, ::2], gain[:25], **shared)
    wanted = residual_dropout_norm(x.t()[:, ::2].contiguous(), branch.t()[:, ::2].contiguous(), gain[:25], **shared)
    assert all(map(torch.equal, found, wanted))
    none = torch.zeros(0, 40, requires_grad=True)
    stream, normed = residual_dropout_norm(none, none, gain, **shared)
    (stream.sum() + normed.sum()).backward()
    assert stream.shape == normed.shape == none.grad.shape == (0, 40)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"branch": torch.ones(3, 4)}, ShapeError, r"\(2, 4\) and \(3, 4\)"),
        ({"gain": torch.ones(5)}, ShapeError, r"gain has shape \(5,\); accepted is \(4,\)"),
        ({"p": 1.0}, RangeError, "p is 1.0"),
        ({"p": -0.1}, RangeError, "p is -0.1"),
        ({"scale": torch.ones(2)}, ShapeError, r"scale has shape \(2,\)"),
        ({"seed": torch.ones(1)}, DTypeError, "no tensor of one int64"),
        ({"gain": torch.ones(4, device="meta")}, DTypeError, "another operand on meta"),
        ({"x": torch.ones(2, 4, dtype=torch.int64)}, DTypeError, "x is torch.int64"),
    ],
)
def test_what_does_not_fit_is_refused(changes, error, text):
    given = {"x": torch.ones(2, 4), "branch": torch.ones(2, 4), "gain": None, "scale": 1.0, "p": 0.5, "seed": SEED}
    given |= changes
    with pytest.raises(error, match=text):
        residual_dropout_norm(given.pop("x"), given.pop("branch"), given.pop("gain"), eps=EPS, **given)


def test_the_operation_is_one_of_torch():
    x, branch, gain, _ = operands((4, 70))
    leaves = [part.requires_grad_() for part in (x, branch, gain)]
    op = torch.ops.octavo_lab.residual_norm.default
    for by, seed, p in ((None, SEED, 0.25), (torch.tensor(0.3), None, 0.0)):
        torch.library.opcheck(op, (*leaves, by, seed, 0.5, p, EPS))


def test_compiled_code_has_it_whole():
    x, branch, gain, _ = operands((4, 70))
    leaves = [part.requires_grad_() for part in (x, branch, gain)]

    def loss(*parts):
        stream, normed = residual_dropout_norm(*parts, scale=0.3, p=0.25, eps=EPS, seed=SEED)
        return (stream * normed).sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found, wanted = (torch.autograd.grad(code(*leaves), leaves) for code in (compiled, loss))
    assert all(map(torch.equal, found, wanted))


class Counted(TorchDispatchMode):
    """Counts the operators that run."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_fewer_operators_run():
    x, branch, gain, _ = operands((4, 70))

    def three(x, branch, gain):
        stream = x + 0.3 * functional.dropout(branch, 0.1)
        return stream, functional.rms_norm(stream, (70,), gain, EPS)

    def counted(operation):
        leaves = [part.clone().requires_grad_() for part in (x, branch, gain)]
        with Counted() as mode:
            made = operation(*leaves)
            torch.autograd.grad(made, leaves, made)
        return mode.count

    one = counted(lambda *parts: residual_dropout_norm(*parts, scale=0.3, p=0.1, eps=EPS))
    assert one <= 6 and counted(three) >= 3 * one


class Kernels:
    """Takes what the boundary to a device takes, and lets the processor compute it."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return getattr(_core, name)

    def _cuda_dropout_norm_parts(self, number, shape):
        return 3

    def _how(self, shape, given):
        gain, scale, seed, weight, p, eps = given
        rows, width, *codes = shape
        scale = torch_at(scale, 1, torch.float32).item() if scale else 1.0
        seed = torch_at(seed, 1, torch.int64).item() if seed else 0
        return (rows, width), codes, gain, (weight * scale, p, seed, eps)

    def _cuda_dropout_norm(self, on, shape, x, branch, given, out):
        self.calls.append(on)
        sizes, codes, gain, how = self._how(shape, given)
        _core._dropout_norm(sizes, (x, codes[0]), (branch, codes[1]), gain, how, (out[0], codes[2]), out[1], out[2])

    def _cuda_dropout_norm_backward(self, on, shape, results, given, out):
        self.calls.append(on)
        sizes, codes, gain, how = self._how(shape, given)
        sums = torch.zeros(sizes[1])
        _core._dropout_norm_backward(
            sizes, (*results[:3], codes[2]), results[3], gain, how, (out[0], codes[0]), (out[1], codes[1]),
            sums.data_ptr() if gain else 0,
        )  # fmt: skip
        assert bool(out[2]) == bool(gain)
        if gain:
            torch_at(out[2], 3 * sizes[1], torch.float32).copy_(torch.cat([sums / 2, sums / 4, sums / 4]))


def torch_at(address, count, dtype):
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


@pytest.mark.parametrize("has_gain", [False, True])
@pytest.mark.parametrize("scale", [None, torch.tensor(0.3, dtype=torch.float64)])
def test_a_device_gets_the_same_call(monkeypatch, has_gain, scale):
    """The processor stands in for the kernels, so that all of Python's part for a GPU runs."""
    stand_in = Kernels()
    monkeypatch.setattr(residual_norm, "_core", stand_in)
    monkeypatch.setattr(residual_norm, "place", lambda device: (0, 5))
    x, branch, gain, _ = operands((6, 70), (torch.float32, torch.bfloat16), has_gain)
    slopes = torch.randn(2, 6, 70)
    found, wanted = [], []
    for made, on_gpu in ((wanted, False), (found, True)):
        monkeypatch.setattr(residual_norm, "_on_gpu", lambda part, on_gpu=on_gpu: on_gpu)
        stream, normed, rates = residual_norm._forward(x, branch, gain, scale, SEED, 0.5, 0.25, EPS)
        rest = (scale, SEED, 0.5, 0.25, x.dtype, branch.dtype)
        made += [stream, normed, rates, *residual_norm._backward(slopes[0], slopes[1], stream, rates, gain, *rest)]
    assert stand_in.calls == [(0, 5)] * 2
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float32, torch.bfloat16)])
@pytest.mark.parametrize("width", [63, 768, 5000])
def test_a_gpu_has_the_mask_and_the_numbers_of_the_processor(dtypes, width):
    x, branch, gain, _ = operands((300, width), dtypes)
    wanted = results(residual_dropout_norm, x, branch, gain, scale=0.3, p=0.2)

    def there(*parts, seed, **options):
        made = residual_dropout_norm(*(part.cuda() for part in parts), seed=seed.cuda(), **options)
        return [part.cpu() for part in made]

    assert_near(results(there, x, branch, gain, scale=0.3, p=0.2), wanted, 2e-6 if dtypes[1].itemsize == 4 else 1e-2)


@pytest.mark.parametrize("name", ["of_stream", "of_normed", "rates"])
def test_the_backward_operation_reads_no_further_than_its_operands(name):
    parts = {"of_stream": torch.ones(3, 8), "of_normed": torch.ones(3, 8), "stream": torch.ones(3, 8)}
    parts |= {"rates": torch.ones(3)}
    parts[name] = parts[name][:1]
    with pytest.raises(ShapeError, match=f"{name} has shape"):
        torch.ops.octavo_lab.residual_norm_backward(
            *parts.values(), None, None, None, 1.0, 0.0, torch.float32, torch.float32
        )


def test_the_backward_operation_takes_operands_that_are_not_contiguous():
    parts = [torch.randn(8, 3).t() for _ in range(3)]
    options = (torch.rand(3, 2)[:, 0], torch.randn(16)[::2], None, SEED, 0.5, 0.25, torch.float32, torch.float32)
    backward = torch.ops.octavo_lab.residual_norm_backward
    found, wanted = backward(*parts, *options), backward(*(part.contiguous() for part in parts), *options)
    assert all(map(torch.equal, found, wanted))
