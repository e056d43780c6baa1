"""PackedTensor: bytes are those of the specification, rows are cut without decoding, numpy goes in and comes out."""

import copy
import math
import pickle

import ml_dtypes
import numpy as np
import octavo
import pytest
import torch
from helpers import oracle
from helpers.codecs import takes
from helpers.oracle import EXAMPLES
from helpers.quick import spread
from helpers.values import DTYPES, assert_same_bits, random_tensor
from octavo import DTypeError, Format, PackedTensor, ShapeError, late_binding


def tensor(shape=(6, 50), kind="normal", dtype="float32", seed=0):
    return random_tensor(np.random.default_rng(seed), shape, kind, dtype)


# ---------------------------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_codes_are_the_bit_stream_of_the_specification(text):
    spec = oracle.parse(text)
    for shape, axis in (((5, 67), -1), ((9, 7), 0), ((2, 3, 11), 1), ((13,), 0)):
        packed = octavo.encode(tensor(shape), text, axis=axis)
        wanted = oracle.encode(tensor(shape).numpy(), text, axis=axis)
        unpacked = packed.unpack()
        assert unpacked.dtype == torch.int32 and tuple(unpacked.shape) == wanted.codes.shape
        codes = unpacked.numpy().astype(np.int64) & (2**spec.width - 1)
        np.testing.assert_array_equal(codes, wanted.codes)
        np.testing.assert_array_equal(packed.codes.numpy(), oracle.pack_bits(wanted.codes, spec.width))
        zeros = packed.unpack_zeros()
        assert (zeros is None) == (wanted.zeros is None)
        if zeros is not None:
            np.testing.assert_array_equal(zeros.numpy(), wanted.zeros)
            np.testing.assert_array_equal(packed.zeros.numpy(), oracle.pack_bits(wanted.zeros, spec.width))


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_scales_have_one_entry_for_each_group(text):
    spec, fmt = oracle.parse(text), Format(text)
    packed = octavo.encode(tensor((2, 6, 50)), text)
    wanted = {
        "none": (0,),
        "tensor": (1,),
        "channel": (2, 6, 1),
        "block": (2, 6, -(-50 // spec.block) if spec.block else 0),
    }[spec.scope]
    assert tuple(packed.scales.shape) == wanted + ((spec.levels,) if spec.levels > 1 else ())
    assert packed.scales.dtype == {None: torch.uint8, "float32": torch.float32, "float16": torch.float16,
                                   "int8": torch.int8, "e8m0": torch.uint8, "e4m3": torch.uint8}[fmt.scale_type]  # fmt: skip
    assert packed.nbytes == fmt.nbytes((2, 6, 50)) and packed.bits_per_element == packed.nbytes * 8 / 600


def test_repr_tells_everything():
    packed = octavo.encode(tensor((4, 33), dtype="bfloat16"), "mxfp4", axis=0, scale="ceil")
    assert repr(packed) == (
        "PackedTensor('mxfp4', shape=(4, 33), dtype=bfloat16, axis=0, scale='ceil', nbytes=99, bits_per_element=6)"
    )
    assert "scale" not in repr(octavo.encode(tensor(), "int8"))


def test_shape_dtype_and_device_are_the_logical_ones():
    packed = octavo.encode(tensor((4, 33), dtype="float16"), "int4:g32", axis=-2)
    assert (packed.shape, packed.ndim, packed.numel(), len(packed)) == ((4, 33), 2, 132, 4)
    assert (packed.dtype, packed.axis, packed.scale) == (torch.float16, 0, "floor")
    assert packed.device == torch.device("cpu") and packed.format == Format("int4:g32")
    with pytest.raises(TypeError, match="0-d"):
        len(octavo.encode(torch.tensor(1.0), "int8"))


# -------------------------------------------------------------------------------------------------------- rows, equality


@pytest.mark.parametrize("text", spread([t for t in EXAMPLES if oracle.parse(t).scope in ("none", "block", "channel")]))
def test_rows_of_a_packed_tensor_are_the_packed_rows(text):
    for shape, axis in (((6, 50), -1), ((6, 3, 21), 1), ((6, 4, 9), -1)):
        x = tensor(shape)
        packed = octavo.encode(x, text, axis=axis)
        for rows in (slice(1, 4), slice(None), slice(4, None), slice(0, 6, 2), slice(2, 2), 3, -1):
            part = packed[rows]
            chosen = x[rows] if isinstance(rows, slice) else x[rows][None]
            assert_same_bits(octavo.decode(part), octavo.decode(packed)[rows].reshape(chosen.shape))
            if oracle.parse(text).family != "nvfp4":  # its tensor scale is that of the whole tensor
                assert part == octavo.encode(chosen, text, axis=axis)
            assert part.nbytes == Format(text).nbytes(tuple(chosen.shape), axis)


@pytest.mark.parametrize("text", spread([t for t in EXAMPLES if oracle.parse(t).scope == "tensor"]))
def test_rows_keep_a_scale_of_the_tensor(text):
    packed = octavo.encode(tensor(), text)
    assert_same_bits(octavo.decode(packed[2:5]), octavo.decode(packed)[2:5])
    assert torch.equal(packed[2:5].scales, packed.scales)


def test_rows_outside_or_not_stored_apart_are_refused():
    packed = octavo.encode(tensor(), "mxint8")
    for row in (6, -7):
        with pytest.raises(IndexError, match=r"outside 0\.\.5"):
            packed[row]
    for wrong in ("a", 1.5, (0, 1), None, torch.tensor([True])):
        with pytest.raises(DTypeError, match="int or a slice"):
            packed[wrong]
    for along_rows in (octavo.encode(tensor(), "mxint8", axis=0), octavo.encode(torch.tensor(1.0), "int8")):
        with pytest.raises(ShapeError, match="dimension 0"):
            along_rows[0]
    with pytest.raises(ValueError, match="step"):
        packed[::-1]


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_equal_means_every_byte(text):
    packed = octavo.encode(tensor(), text)
    assert packed == octavo.encode(tensor(), text)
    assert packed != packed.to(dtype=torch.float16)
    assert packed != octavo.encode(tensor((50, 6)), text) and packed != octavo.encode(tensor(), text, axis=0)
    assert packed != "packed" and packed is not None
    with pytest.raises(TypeError):
        hash(packed)
    for i, part in enumerate(packed.parts):
        if part.numel():
            parts = [p.clone() for p in packed.parts]
            parts[i].view(-1).view(torch.uint8)[-1] ^= 1
            assert packed != PackedTensor(packed.format, *parts, shape=packed.shape, dtype=packed.dtype)


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_pickled_and_copied_tensors_are_equal(text):
    for x, axis in ((tensor(dtype="bfloat16"), 0), (tensor((2, 3, 40)), 1), (torch.empty(3, 0), -1)):
        packed = octavo.encode(x, text, axis=axis, scale=oracle.rules(text)[-1])
        for same in (pickle.loads(pickle.dumps(packed)), copy.copy(packed), copy.deepcopy(packed)):
            assert same == packed and repr(same) == repr(packed)
            assert_same_bits(octavo.decode(same), octavo.decode(packed))


# ---------------------------------------------------------------------------------------------------------- conversions


@pytest.mark.parametrize("text", spread(EXAMPLES))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_to_changes_the_logical_dtype_alone(text, dtype):
    packed = octavo.encode(tensor(kind="wide"), text)
    other = packed.to(dtype=DTYPES[dtype])
    assert other.dtype == DTYPES[dtype] and other.shape == packed.shape and torch.equal(other.codes, packed.codes)
    encoded = oracle.encode(tensor(kind="wide").numpy(), text)
    encoded.dtype = dtype
    wanted = torch.from_numpy(oracle.decode(encoded, text)).to(DTYPES[dtype])
    assert_same_bits(octavo.decode(other), wanted)
    assert_same_bits(octavo.decode(packed, dtype=DTYPES[dtype]), wanted)
    assert_same_bits(packed.decode(DTYPES[dtype]), wanted)
    assert packed.to() == packed and packed.to(device="cpu") == packed


def test_a_packed_tensor_on_meta_has_no_data_to_read():
    packed = octavo.encode(tensor(), "mxint8").to(device="meta")
    assert packed.device.type == "meta" and "mxint8" in repr(packed)
    assert packed.decode().is_meta and packed.decode().shape == packed.shape
    with pytest.raises(ShapeError, match="meta"):
        packed.unpack()


def test_parts_that_do_not_fit_the_format_are_refused():
    packed = octavo.encode(tensor(), "uint4:g32")
    good = dict(zip(("codes", "scales", "zeros", "levels"), packed.parts, strict=True))
    wrong = {
        "codes": [packed.codes[:, 1:], packed.codes.to(torch.int32), packed.codes[0]],
        "scales": [packed.scales.float(), packed.scales[1:]],
        "zeros": [packed.zeros[:0], packed.zeros.view(torch.int8)],
        "levels": [torch.ones(1)],
    }
    for name, parts in wrong.items():
        for part in parts:
            with pytest.raises(ShapeError, match=name):
                PackedTensor(Format("uint4:g32"), **{**good, name: part}, shape=(6, 50), dtype=torch.float32)
    with pytest.raises(DTypeError, match="float64"):
        PackedTensor(Format("uint4:g32"), **good, shape=(6, 50), dtype=torch.float64)
    with pytest.raises(ShapeError, match="outside"):
        PackedTensor(Format("uint4:g32"), **good, shape=(6, 50), dtype=torch.float32, axis=2)


# ---------------------------------------------------------------------------------------------------------------- numpy

ARRAYS = {
    "float32": lambda x: x,
    "float16": lambda x: x.astype(np.float16),
    "bfloat16": lambda x: x.astype(ml_dtypes.bfloat16),
    "big-endian": lambda x: x.astype(">f4"),
    "big-endian float16": lambda x: x.astype(">f2"),
    "read-only": lambda x: frozen(x),
    "read-only bfloat16": lambda x: frozen(x.astype(ml_dtypes.bfloat16)),
    "Fortran order": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.float32, offset=1, count=x.size).reshape(x.shape),
    "empty": lambda x: x[:0],
    "0-d": lambda x: np.array(x[0, 0]),
    "bfloat16 0-d": lambda x: np.array(x[0, 0]).astype(ml_dtypes.bfloat16),
}


def frozen(x):
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("text", ["int8", "e4m3", "fixed8.4", "mxint8", "int4:channel"])
@pytest.mark.parametrize("name", list(ARRAYS))
def test_numpy_arrays_of_every_kind_are_read(name, text):
    array = ARRAYS[name](tensor(seed=3).numpy())
    if not takes(text, array.shape):
        with pytest.raises(ShapeError):
            octavo.quantize(array, text)
        return
    kept = array.copy()
    plain = torch.from_numpy(array.astype(np.float32)).to(DTYPES[np.dtype(array.dtype.newbyteorder("=")).name])
    q = octavo.quantize(array, text)
    assert type(q) is np.ndarray and q.shape == array.shape and q.dtype == array.dtype.newbyteorder("=")
    assert q.flags.writeable
    assert_same_bits(torch.from_numpy(q.astype(np.float32)), octavo.quantize(plain, text).float())
    assert octavo.encode(array, text) == octavo.encode(plain, text)
    np.testing.assert_array_equal(array, kept)


def test_other_arrays_are_refused():
    for array in (np.ones(3), np.ones(3, np.int8), np.ones(3, bool), np.array(["a"]), np.ones(3, np.complex64),
                  np.array([object()]), np.ones(3, ml_dtypes.float8_e4m3fn), np.zeros(2, [("x", "f4")])):  # fmt: skip
        with pytest.raises(DTypeError, match="accepted are float32, float16, bfloat16"):
            octavo.quantize(array, "mxint8")


def test_packed_tensors_become_arrays():
    for dtype, logical in DTYPES.items():
        packed = octavo.encode(tensor(dtype=dtype), "mxfp8e4m3")
        wanted = octavo.decode(packed).float().numpy()
        array = packed.numpy()
        assert array.dtype == (np.float32 if logical == torch.bfloat16 else np.dtype(dtype))
        np.testing.assert_array_equal(array.astype(np.float32), wanted)
        np.testing.assert_array_equal(np.asarray(packed, dtype=np.float64), wanted)
        np.testing.assert_array_equal(np.array(packed).astype(np.float32), wanted)


def test_memory_of_arrays_is_shared_only_to_read():
    """A fresh result never aliases its input, whatever kind of array that was."""
    x = tensor().numpy()
    q = octavo.quantize(x, "fp32")
    assert not np.shares_memory(q, x)
    np.testing.assert_array_equal(q, x)
    assert math.isfinite(float(q.sum()))


def test_rows_of_parts_whose_storage_was_shrunk_are_refused():
    for part in ("codes", "scales"):
        packed = octavo.encode(torch.randn(8, 64), "int4:channel")
        getattr(packed, part).untyped_storage().resize_(0)
        with pytest.raises(octavo.ShapeError, match="storage was resized"):
            packed[2:3]


def test_a_packed_tensor_decodes_inside_a_compiled_function():
    """Also where nothing has loaded the function that decodes: ``decode`` is asked for by name."""
    packed, x = octavo.encode(torch.randn(8, 64), "mxint8"), torch.randn(2, 64)
    late_binding._loaded.pop("decode", None)
    compiled = torch.compile(lambda x: x @ packed.decode().t(), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), x @ octavo.decode(packed).t())
