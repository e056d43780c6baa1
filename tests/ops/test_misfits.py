"""What does not fit is refused with a typed error: parts, operands of raw ops, memory that overlaps, shapes."""

import copy
import inspect
import pickle

import octavo
import pytest
import torch
from helpers.values import normal
from octavo import DTypeError, FormatError, ShapeError, _core
from octavo.ops import codec_cuda as ops_cuda
from octavo.ops import gemm, linear, linear_cuda, sparse
from octavo.ops.codec import pack_zeros
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import part_specs

OPS = torch.ops.octavo
FORMATS = ("mxint8", "int4:g32", "uint4:g32", "nvfp4", "int8:channel", "fixed8:channel", "e4m3", "int8")


def every_op():
    """All registered operations of formats: ``dir(torch.ops.octavo)`` has those that were used."""
    assert gemm and linear and sparse
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("octavo::")}
    assert len(names) > 15
    return [getattr(OPS, name.removeprefix("octavo::")) for name in sorted(names)]


# ----------------------------------------------------------------------------------------------------------- PackedTensor


def test_a_packed_tensor_cannot_be_changed():
    packed = octavo.encode(normal(4, 32), "mxint8")
    for name in ("format", "shape", "dtype", "scale", "axis", "codes", "scales", "zeros", "levels", "other"):
        with pytest.raises(AttributeError, match="build a new PackedTensor"):
            setattr(packed, name, torch.empty(1))
        with pytest.raises(AttributeError, match="build a new PackedTensor"):
            delattr(packed, name)
    for again in (copy.copy(packed), copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert again == packed


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("change", ["resize_", "set_", "storage", "longer"])
def test_parts_resized_in_place_are_refused(text, change):
    """The parts are tensors of torch's, which anyone may resize: every reader looks again."""
    changes = {
        "resize_": lambda part: part.resize_(1),
        "set_": lambda part: part.set_(torch.zeros(1, dtype=part.dtype)),
        "storage": lambda part: part.untyped_storage().resize_(1),
        "longer": lambda part: part.resize_(1000, 1000),
    }
    for name in ("codes", "scales", "zeros", "levels"):
        packed = octavo.encode(normal(4, 64), text)
        part = getattr(packed, name)
        if part.numel() <= 1:
            continue
        changes[change](part)
        readers = [
            packed.decode,
            lambda: octavo.decode(packed, out=torch.empty(4, 64)),  # noqa: B023
            lambda: linear.packed_linear(torch.ones(2, 64), packed),  # noqa: B023
            lambda: linear.packed_linear(torch.ones(2, 64, requires_grad=True), packed),  # noqa: B023
            lambda: linear.packed_embedding(torch.tensor([1]), packed),  # noqa: B023
            lambda: octavo.encode(torch.ones(4, 64), text, out=packed),  # noqa: B023
        ]
        readers += {"codes": [packed.unpack], "zeros": [packed.unpack_zeros]}.get(name, [])
        for reader in readers:
            with pytest.raises((ShapeError, DTypeError)):
                reader()


def test_tensors_beyond_their_storage_are_not_written_to_files(tmp_path):
    """Bytes of other objects would land in the file, or the process would end."""
    packed, plain = octavo.encode(normal(4, 32), "mxint8"), torch.zeros(1 << 12, 1 << 12).t()
    for storage in (packed.codes.untyped_storage(), plain.untyped_storage()):
        storage.resize_(4)
    octavo.save({"a": torch.ones(3)}, tmp_path / "file.safetensors")
    for tensor in (packed, plain):
        with pytest.raises(ShapeError, match="storage was resized"):
            octavo.save({"a": torch.ones(3), "b": tensor}, tmp_path / "file.safetensors")
    assert list(octavo.load(tmp_path / "file.safetensors")) == ["a"]
    with pytest.raises(ShapeError, match="storage was resized"):
        assert packed != octavo.encode(normal(4, 32), "mxint8")


@pytest.mark.filterwarnings("ignore")  # of torch, which will drop quantized and nested tensors
def test_parts_of_other_kinds_are_refused():
    packed = octavo.encode(normal(4, 32), "int8:channel")
    codes, scales, zeros, levels = packed.parts
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Own(torch.Tensor):
        pass

    fake = FakeTensorMode().from_tensor(scales)
    wrong = [
        scales.to_sparse(), scales.clone().requires_grad_(), scales.as_subclass(Own), fake, scales.to(torch.complex64),
        torch.complex(scales, scales).conj().imag, torch.quantize_per_tensor(scales, 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([scales]), scales.numpy(), None, scales.double(), scales[:2],
    ]  # fmt: skip
    for part in wrong:
        with pytest.raises((ShapeError, DTypeError), match=r"scales (are|have|require)"):
            octavo.PackedTensor(packed.format, codes, part, zeros, levels, shape=(4, 32), dtype=torch.float32)
    with pytest.raises(DTypeError, match="accepted is a Format"):
        octavo.PackedTensor("int8:channel", *packed.parts, shape=(4, 32), dtype=torch.float32)


def test_what_is_encoded_with_learned_scales_has_no_gradient():
    x = normal(4, 64).requires_grad_()
    for text in ("int8:channel", "int4:g32", "fixed8:channel"):
        scales = octavo.encode(x, text).scales
        learned = torch.nn.Parameter(scales.float())
        for packed in (octavo.encode(x, text, scales=learned), octavo.encode(x, text)):
            assert not any(part.requires_grad for part in packed.parts)
            assert octavo.PackedTensor(packed.format, *packed.parts, shape=(4, 64), dtype=torch.float32) == packed


# ----------------------------------------------------------------------------------------------------------------- memory


def test_memory_that_overlaps_is_refused():
    buffer = torch.zeros(4096, dtype=torch.uint8)
    packed = octavo.encode(normal(4, 32), "mxint8")
    codes = buffer[:128].view(4, 32)
    codes.copy_(packed.codes)
    held = octavo.PackedTensor(packed.format, codes, *packed.parts[1:], shape=(4, 32), dtype=torch.float32)
    for start in (0, 4, 124):
        with pytest.raises(ShapeError, match="overlaps codes"):
            octavo.decode(held, out=buffer[start : start + 512].view(torch.float32).view(4, 32))
        x = buffer[start : start + 512].view(torch.float32).view(4, 32)
        with pytest.raises(ShapeError, match="overlaps x"):
            octavo.encode(x, "mxint8", out=held)
    assert held == packed
    out = torch.ones(4, 1)
    with pytest.raises(ShapeError, match="overlaps scales"):
        octavo.quantize(normal(4, 1), "int8:channel", scales=out, out=out)
    with pytest.raises(ShapeError, match="scales overlaps codes"):
        OPS.encode_out(
            normal(4, 32), "int8:channel", codes_out=buffer[:128].view(4, 32), zeros_out=packed.zeros,
            scales_out=buffer[112:128].view(torch.float32).view(4, 1), levels_out=packed.levels,
        )  # fmt: skip


def test_scales_may_be_encoded_with_where_they_lie():
    """Scales given from the packed tensor that is written are read first."""
    x = normal(4, 64)
    for text in ("int4:g32", "mxint8", "nvfp4"):
        packed = octavo.encode(x, text)
        given = {"levels": packed.levels} if packed.levels.numel() else {}
        wanted = octavo.encode(x * 0.5, text, scales=packed.scales, **given)
        assert octavo.encode(x * 0.5, text, scales=packed.scales, **given, out=packed) == wanted


def test_a_gradient_of_another_shape_dtype_or_device_is_refused():
    x = normal(64, 64)
    for grad in (normal(1), normal(64, 63), normal(64, 64, 1), normal(4096), torch.empty(0)):
        with pytest.raises(ShapeError, match="grad has shape"):
            OPS.quantize_backward(grad, x, "mxint8")
    for dtype in (torch.float64, torch.complex64, torch.int32):
        with pytest.raises(DTypeError, match="grad has dtype"):
            OPS.quantize_backward(torch.ones(64, 64, dtype=dtype), x, "mxint8")
    with pytest.raises(FormatError, match="needs scales"):
        OPS.quantize_backward(x, x, "int8:channel", learn=True)


def test_none_in_the_place_of_a_tensor_is_named():
    """torch lets it through; every op of the package says which operand it is."""
    values = {"str": "mxint8", "SymInt": 4, "SymInt[]": [4, 4], "ScalarType": torch.float32, "int": 0, "bool": False}
    for op in every_op():
        arguments = op.default._schema.arguments
        tensors = [argument.name for argument in arguments if str(argument.type) == "Tensor"]
        for missing in tensors:
            call = {}
            for argument in arguments:
                kind = str(argument.type)
                if kind == "Tensor":
                    call[argument.name] = None if argument.name == missing else torch.ones(4, 4)
                elif not argument.has_default_value():
                    call[argument.name] = None if kind.startswith("Optional") else values.get(kind, 0)
            with pytest.raises((octavo.OctavoError, RuntimeError)):
                op.default(**call)


# ------------------------------------------------------------------------------------------------------------------ fakes


def meta_calls():
    """Calls that are refused, each with an operand or option that does not fit."""
    x, wide = normal(4, 64), normal(4, 96)
    specs = part_specs(core("int8:channel"), (8, 64), -1)
    parts = [torch.zeros(shape, dtype=dtype) for _, dtype, shape in specs]
    scales = torch.ones(4, 1)
    w = (*parts, None, "int8:channel", 8, 64)
    yield "quantize", (x.double(), "mxint8"), {}
    yield "quantize", (x, "mxint8", 5), {}
    yield "quantize", (x, "int8", -1, "ceil"), {}
    yield "quantize", (x, "mxint8", -1, "none"), {}
    yield "quantize", (x, "mxint8", -1, "floor", None, None, None, "soft"), {}
    yield "quantize", (x, "int8:channel", -1, "floor", scales[:3]), {}
    yield "quantize_plain", (x, "e4m3", -1, "floor", scales), {}
    yield "quantize_plain", (x, "uint8:channel", -1, "floor", scales), {}
    yield "quantize_plain", (x, "mxint8", -1, "floor", torch.ones(4, 2)), {}
    yield "quantize_plain", (x, "nothing"), {}
    yield "quantize_plain", (torch.ones(()), "mxint8"), {}
    yield "quantize_out", (x, "mxint8"), {"out": wide}
    yield "quantize_out", (x, "mxint8"), {"out": x.half()}
    yield "quantize_out", (x, "mxint8"), {"out": normal(64, 4).t()}
    yield "quantize_backward", (wide, x, "mxint8"), {}
    yield "quantize_backward", (x.double(), x, "mxint8"), {}
    yield "quantize_backward", (x, x, "int8:channel", -1, "floor", None, None, None, True), {}
    yield "quantize_backward", (x, x, "binary:channel", -1, "floor", scales, None, None, True), {}
    yield "encode", (x, "mxint8", -1, "floor", None, None, None, "maybe"), {}
    yield "encode", (x, "int8", -1, "floor", None, None, None, "nan"), {}
    yield "decode", (*parts, "int8:channel", [8, 65], -1, torch.float32), {}
    yield "decode", (*parts, "int8:channel", [8, -64], -1, torch.float32), {}
    yield "decode", (*parts, "int8:channel", [8, 64], 4, torch.float32), {}
    yield "decode", (*parts, "int8:channel", [8, 64], -1, torch.float64), {}
    yield "decode", (parts[0].short(), *parts[1:], "int8:channel", [8, 64], -1, torch.float32), {}
    yield "decode_out", (*parts, "int8:channel", [8, 64], -1), {"out": x}
    for name in ("packed_linear", "packed_linear_plain"):
        yield name, (wide, *w), {}
        yield name, (x.double(), *w), {}
        yield name, (torch.ones(()), *w), {}
        yield name, (x, *w[:4], torch.ones(7), *w[5:]), {}
        yield name, (x, *w[:4], torch.ones(8, dtype=torch.int32), *w[5:]), {}
        yield name, (x, parts[0][:, :32], *w[1:]), {}
        yield name, (x, parts[0].char(), *w[1:]), {}
        yield name, (x, *w[:6], -8, 64), {}
    more = (None, None, None, *w[5:], "int8:g32", "floor")
    for name in ("rounded_linear", "rounded_linear_plain"):
        yield name, (wide, *w[:5], *more), {}
        yield name, (x.double(), *w[:5], *more), {}
        yield name, (x, *w[:4], torch.ones(7), *more), {}
        yield name, (x, parts[0][:, :32], *w[1:5], *more), {}
        yield name, (x, *w[:5], *more[:-2], "int9q", "floor"), {}
        yield name, (x, *w[:5], *more[:-1], "nearest"), {}
        yield name, (x, *w[:5], torch.ones(3), *more[1:]), {}
    yield "packed_linear_backward", (normal(4, 7), *parts, "int8:channel", 8, 64), {}
    yield "packed_linear_backward", (normal(4, 8).double(), *parts, "int8:channel", 8, 64), {}
    for name in ("integer_linear", "integer_linear_plain"):
        yield name, (x, *parts[:2], None, None, "int8:channel", "mxint8", 8, 64), {}
        yield name, (x, *parts[:2], None, torch.ones(3), "int8:channel", "int8:channel", 8, 64), {}
        yield name, (x, *parts[:2], None, torch.ones(4).half(), "int8:channel", "int8:channel", 8, 64), {}
        yield name, (wide, *parts[:2], None, None, "int8:channel", "int8:channel", 8, 64), {}
    yield "packed_embedding", (torch.ones(3), *parts, "int8:channel", 8, 64, torch.float32), {}
    yield "packed_embedding", (torch.ones(3).int(), *parts, "int8:channel", 8, 64, torch.int8), {}
    yield "packed_embedding", (torch.ones(3).int(), *parts, "int8:channel", 9, 64, torch.float32), {}
    a = torch.ones(3, 8, dtype=torch.int8)
    yield "int8_gemm", (a, a[:, :7], None, None, None, torch.int32), {}
    yield "int8_gemm", (a, a.int(), None, None, None, torch.int32), {}
    yield "int8_gemm", (a, a, torch.ones(2), None, None, torch.float32), {}


@pytest.mark.parametrize(("name", "args", "kwargs"), list(meta_calls()))
def test_meta_tensors_are_refused_as_those_with_values_are(name, args, kwargs):
    op = getattr(OPS, name).default
    with pytest.raises(octavo.OctavoError) as real:
        op(*args, **kwargs)

    def meta(value):
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    with pytest.raises(real.type):
        op(*map(meta, args), **{key: meta(value) for key, value in kwargs.items()})


class Kernels:
    """The core without a GPU: formats and checks are real, kernels of CUDA do nothing."""

    def __getattr__(self, name):
        if not name.startswith("_cuda"):
            return getattr(_core, name)
        return lambda *args: (0, False) if name == "_cuda_scratch" else 0


@pytest.mark.parametrize(("name", "args", "kwargs"), list(meta_calls()))
def test_cuda_ops_check_operands_as_those_of_the_cpu_do(name, args, kwargs, monkeypatch):
    """Their checks are Python, which runs here on tensors of the CPU; no kernel is reached."""
    for module in (ops_cuda, linear_cuda, gemm):
        monkeypatch.setattr(module, "_core", Kernels())
        monkeypatch.setattr(module, "place", lambda device: (0, 0))
    kernels = {**ops_cuda.OPS, **linear_cuda.OPS, "int8_gemm": gemm._int8_gemm_cuda}
    kernels["packed_linear_backward"] = linear._packed_linear_backward
    with pytest.raises(octavo.OctavoError) as real:
        getattr(OPS, name).default(*args, **kwargs)
    options = real.type is FormatError and name.startswith(("quantize", "encode"))
    if options and "learn=True" not in str(real.value) and "ste" not in str(real.value):
        return  # rules of scales and of values that are not finite are the core's to check
    with pytest.raises(real.type):
        kernels[name](*args, **kwargs)


def test_operands_on_two_devices_are_refused():
    x, parts = normal(4, 64), octavo.encode(normal(8, 64), "int8:channel").parts
    calls = (
        lambda: OPS.quantize(x, "int8:channel", -1, "floor", torch.ones(4, 1, device="meta")),
        lambda: OPS.quantize_backward(x.to("meta"), x, "mxint8"),
        lambda: OPS.quantize_out(x, "mxint8", out=x.to("meta")),
        lambda: OPS.decode(parts[0], parts[1].to("meta"), *parts[2:], "int8:channel", [8, 64], -1, torch.float32),
        lambda: OPS.packed_linear(x, parts[0].to("meta"), *parts[1:], None, "int8:channel", 8, 64),
        lambda: OPS.packed_linear_plain(x.to("meta"), *parts, None, "int8:channel", 8, 64),
        lambda: OPS.packed_embedding(torch.ones(1).int().to("meta"), *parts, "int8:channel", 8, 64, torch.float32),
    )
    for call in calls:
        with pytest.raises((DTypeError, ShapeError), match="meta"):
            call()


# ----------------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    "shape", [(-1, 4), (-(2**63), 4), (2**63, 4), (2**64, 4), ((1,), (2, 3)), (1.5, 4), ("4", 4), 7]
)
def test_negative_huge_and_ragged_shapes_are_typed_errors(shape):
    packed, fmt = octavo.encode(normal(4, 32), "int8"), octavo.Format("int8")
    for call in (
        lambda: octavo.PackedTensor(fmt, *packed.parts, shape=shape, dtype=torch.float32),
        lambda: fmt.nbytes(shape),
    ):
        with pytest.raises(octavo.OctavoError):
            call()
    if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape):
        with pytest.raises(octavo.OctavoError):
            pack_zeros("uint4:g32", torch.zeros(4, dtype=torch.int32), shape, -1)
        if max(shape) < 2**63:
            with pytest.raises(octavo.OctavoError):
                OPS.decode(*packed.parts, "int8", list(shape), -1, torch.float32)


@pytest.mark.parametrize("ragged", [[[1], [2, 3]], [[1.0, 2.0]], (), "x", [None], {"a": 1}])
def test_ragged_lists_are_typed_errors(ragged):
    x = normal(4, 32)
    for call in (
        lambda: octavo.quantize(ragged, "mxint8"),
        lambda: octavo.encode(ragged, "mxint8"),
        lambda: octavo.decode(ragged),
        lambda: octavo.quantize(x, "int8:channel", scales=ragged),
        lambda: octavo.encode(x, "int8:channel", scales=ragged),
        lambda: octavo.encode(x, "mxint8", out=ragged),
        lambda: octavo.quantize(x, "mxint8", out=ragged),
        lambda: linear.packed_linear(ragged, octavo.encode(x, "mxint8")),
        lambda: gemm.int8_gemm(ragged, ragged),
    ):
        with pytest.raises(octavo.OctavoError):
            call()


def test_negative_sizes_of_a_product_are_typed_errors():
    for sizes in ((-1, 8, 8), (1, -8, 8), (1, 8, -8), (2**64, 8, 8)):
        with pytest.raises(octavo.OctavoError):
            linear.kernel("mxint8", *sizes, torch.float32)
    with pytest.raises(octavo.OctavoError):
        octavo.Format("mxint8").bits_per_element(-1)


def test_every_op_is_swept():
    """A new op comes with its place in ``guarded.py``."""
    from attacks import guarded

    source = inspect.getsource(guarded.Calls)
    for op in every_op():
        assert f'"{op.__name__}"' in source, op
