"""What is saved is loaded bit for bit; files appear complete or not at all; other readers understand them."""

import copy
import json
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import octavo
import pytest
import safetensors
import safetensors.torch
import torch
from attacks.hostile import ATTACKS
from hypothesis import given
from hypothesis import strategies as st
from octavo import ContainerError, DTypeError, PackedTensor
from octavo.tensors import container

TORCH_DTYPES = [
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2",
]  # fmt: skip
NUMPY_DTYPES = ["bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "complex64"]
OTHER_NUMPY_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz"]
PACKED_DTYPES = [torch.float32, torch.float16, torch.bfloat16]
names = st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda name: name != "__metadata__")
shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)


def stored(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of a dtype, with bytes of every kind that are valid for it."""
    dtype = getattr(torch, name)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.arange(count, dtype=torch.uint8) % (2 if dtype == torch.bool else 251)
    return raw.view(dtype).reshape(shape)


@st.composite
def packed(draw):
    shape = draw(shapes)
    fmt = draw(st.sampled_from(octavo.formats()))
    if not shape and fmt.granularity in ("block", "channel"):
        shape = (5,)
    axis = draw(st.integers(0, max(len(shape) - 1, 0)))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    rule = draw(st.sampled_from(["floor", "ceil"])) if fmt.is_block else "floor"
    return octavo.encode(x.to(draw(st.sampled_from(PACKED_DTYPES))), fmt, axis=axis, scale=rule)


plain = st.builds(stored, st.sampled_from(TORCH_DTYPES[:-1]), shapes)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(got, wanted):
    assert list(got) == sorted(wanted, key=str.encode)
    for name, tensor in got.items():
        other = wanted[name]
        if isinstance(tensor, PackedTensor):
            assert tensor == other
        else:
            assert tensor.dtype == other.dtype and tensor.shape == other.shape and raw(tensor) == raw(other)


def header_of(path: Path) -> dict:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    assert length % 8 == 0
    return json.loads(data[8 : 8 + length]) | {"start": 8 + length}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.safetensors"


# --- round trip -----------------------------------------------------------------------------------------------------


@given(tensors=st.dictionaries(names, packed() | plain, max_size=5))
def test_what_is_saved_is_loaded_bit_for_bit(tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp("round") / "x.safetensors"
    try:
        container.save(tensors, path, metadata={"täg": "1"})
    except ContainerError as error:
        assert "clashes" in str(error) or "the file has" in str(error), error
        return
    assert_same(container.load(path), tensors)
    assert_same(container.load(path, mmap=True), tensors)
    assert container.metadata(path) == {"täg": "1"}
    data = container.dumps(tensors, metadata={"täg": "1"})
    assert data == path.read_bytes()
    assert_same(container.loads(data), tensors)
    listed = container.inspect(path)
    assert [entry.name for entry in listed] == list(container.load(path))
    for entry in listed:
        tensor = tensors[entry.name]
        assert entry.nbytes == tensor.nbytes and entry.shape == tuple(tensor.shape)
        assert f"torch.{entry.dtype}" == str(tensor.dtype)
        assert (entry.kind == "packed") == isinstance(tensor, PackedTensor)
        if entry.kind == "packed":
            assert (entry.format, entry.axis, entry.scale) == (str(tensor.format), tensor.axis, tensor.scale)
            assert entry.bits_per_element == (tensor.bits_per_element if tensor.numel() else 0)


@pytest.mark.parametrize("fmt", octavo.formats(), ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_every_format_decodes_to_the_same_values_after_a_round_trip(fmt, axis, path):
    wanted = octavo.encode(torch.randn(6, 65, generator=torch.Generator().manual_seed(1)), fmt, axis=axis)
    container.save({"a.b.weight": wanted}, path)
    got = container.load(path)["a.b.weight"]
    assert got == wanted and raw(got.decode()) == raw(wanted.decode())
    assert path.stat().st_size == header_of(path)["start"] + wanted.nbytes, "bits are bytes"


@pytest.mark.parametrize("name", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (0, 2), (1,), ()])
@pytest.mark.parametrize("mmap", [False, True])
def test_every_torch_dtype_round_trips(name, shape, mmap, path):
    if name == "float4_e2m1fn_x2" and not shape:
        pytest.skip("a pair without a dimension has no shape of its elements")
    wanted = {"x": stored(name, shape)}
    container.save(wanted, path)
    assert_same(container.load(path, mmap=mmap), wanted)


@pytest.mark.parametrize("name", NUMPY_DTYPES + OTHER_NUMPY_DTYPES)
def test_every_numpy_dtype_round_trips(name):
    dtype = np.dtype(getattr(ml_dtypes, name) if name in OTHER_NUMPY_DTYPES else name)
    array = (np.arange(24 * dtype.itemsize, dtype=np.uint8) % 2).view(dtype).reshape(4, 6)
    for x in (array, array.T, array[::2, 1::2], array[0, 0:1].reshape(()), array[:0]):
        got = container.loads_one(container.dumps({"x": x}))
        assert str(got.dtype) == f"torch.{name}" and tuple(got.shape) == x.shape and raw(got) == x.tobytes()


def test_odd_tensors_are_stored_as_what_they_show():
    x = torch.arange(12.0).reshape(3, 4)
    odd = {
        "transposed": x.t(),
        "strided": x[:, ::2],
        "expanded": x[:1].expand(5, 4),
        "offset": x.view(-1)[1:],
        "parameter": torch.nn.Parameter(x),
        "conjugate": torch.complex(x, x).conj(),
        "negative": torch.complex(x, x).conj().imag,
    }
    got = container.loads(container.dumps(odd))
    for name, tensor in odd.items():
        assert torch.equal(got[name], tensor.detach()) and not got[name].requires_grad
    big_endian = np.arange(5, dtype=">i4")
    assert container.loads_one(container.dumps({"x": big_endian})).tolist() == [0, 1, 2, 3, 4]
    frozen = np.arange(5)
    frozen.flags.writeable = False
    assert container.loads_one(container.dumps({"x": frozen})).tolist() == [0, 1, 2, 3, 4]


def test_tied_tensors_are_stored_once_per_name(path):
    x = torch.randn(10, 10)
    container.save({"embedding": x, "head": x}, path)
    assert path.stat().st_size == header_of(path)["start"] + 2 * x.nbytes
    assert_same(container.load(path), {"embedding": x, "head": x})


def test_equal_content_gives_equal_bytes():
    tensors = {
        "b": torch.ones(3),
        "a": octavo.encode(torch.ones(3, 40), "nvfp4"),
        "c": torch.ones(1, dtype=torch.int64),
    }
    tags = {"z": "1", "y": "2"}
    reversed_ = dict(reversed(tensors.items()))
    assert container.dumps(tensors, metadata=tags) == container.dumps(reversed_, metadata=dict(reversed(tags.items())))


def test_parts_are_aligned_to_their_elements(path):
    tensors = {f"t{i}": stored(name, (i % 5, 3)) for i, name in enumerate(TORCH_DTYPES[:-1])}
    tensors["p"] = octavo.encode(torch.randn(3, 7), "int3:g32")
    container.save(tensors, path)
    header = header_of(path)
    assert header.pop("start") % 8 == 0
    sizes = {entry.name: getattr(torch, entry.dtype).itemsize for entry in container.inspect(path)}
    sizes |= {"p.codes": 1, "p.scales": 2}
    for name, info in header.items():
        assert name == "__metadata__" or info["data_offsets"][0] % sizes[name] == 0


def test_packed_tensors_pickle_through_their_bytes():
    for fmt in octavo.formats():
        wanted = octavo.encode(torch.randn(4, 33), fmt)
        assert pickle.loads(pickle.dumps(wanted)) == wanted
        assert copy.deepcopy({"w": wanted})["w"] == wanted


def test_names_choose_what_is_read(path):
    container.save({"a": torch.ones(2), "b": octavo.encode(torch.ones(2), "int8"), "c": torch.ones(2)}, path)
    assert list(container.load(path, names=["b", "a"])) == ["a", "b"]
    assert container.load(path, names=[]) == {}
    with pytest.raises(ContainerError, match="no tensor 'x' in the file"):
        container.load(path, names=["a", "x"])
    with pytest.raises(DTypeError, match="names is the string 'abc'"):
        container.load(path, names="abc")
    with pytest.raises(ContainerError, match="3 tensors; expected one"):
        container.loads_one(path.read_bytes())


# --- other readers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "dtype"),
    [
        ("e4m3", "F8_E4M3"), ("e5m2", "F8_E5M2"), ("e3m2", "F6_E3M2"), ("e2m3", "F6_E2M3"), ("e2m1", "F4"),
        ("mxfp8e4m3", "F8_E4M3"), ("mxfp8e5m2", "F8_E5M2"), ("mxfp6e3m2", "F6_E3M2"), ("mxfp6e2m3", "F6_E2M3"),
        ("mxfp4", "F4"), ("nvfp4", "F4"), ("int8:channel", "I8"), ("mxint8", "I8"), ("fixed8.4", "I8"),
        ("fixed8", "I8"), ("uint8", "U8"), ("fp32", "F32"), ("fp16", "F16"), ("bf16", "BF16"), ("e4m3:finite", "U8"),
        ("e4m3b11", "U8"), ("mxint6", "U8"), ("int4:g32", "U8"), ("e3m4", "U8"), ("log8", "U8"), ("bfp8/16", "U8"),
        ("int16", "U8"),
    ],
)  # fmt: skip
def test_codes_have_the_dtype_that_other_readers_know(fmt, dtype, path):
    container.save({"w": octavo.encode(torch.randn(3, 64), fmt)}, path)
    with safetensors.safe_open(path, "pt") as other:
        assert other.metadata()["octavo.version"] == "1"
        codes = other.get_slice("w.codes")
        assert codes.get_dtype() == dtype
        width = octavo.Format(fmt).width
        assert codes.get_shape() == ([3, 64] if dtype != "U8" or width == 8 else [3, 64 * width // 8])


def test_rows_that_end_inside_a_byte_are_stored_as_bytes(path):
    container.save({"w": octavo.encode(torch.randn(2, 7), "mxfp4")}, path)
    assert header_of(path)["w.codes"] == {"dtype": "U8", "shape": [2, 4], "data_offsets": [0, 8]}


def scaled(values: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    return values.float() * scales.float().repeat_interleave(block, -1)[..., : values.shape[-1]]


def test_values_follow_from_the_stored_dtypes_alone(path):
    """Another program needs no knowledge of Octavo: elements times scales, as their dtypes say, are the values."""
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(3))
    fmts = [
        "e4m3",
        "e5m2",
        "fp16",
        "bf16",
        "fp32",
        "mxfp8e4m3",
        "mxfp8e5m2",
        "mxint8",
        "mxfp4",
        "nvfp4",
        "int8:channel",
    ]
    container.save({fmt: octavo.encode(x, fmt) for fmt in fmts}, path)
    tensors = safetensors.torch.load_file(path)
    for fmt in fmts:
        codes, scales = tensors[f"{fmt}.codes"], tensors.get(f"{fmt}.scales")
        if codes.dtype == torch.float4_e2m1fn_x2:  # element 0 in the low nibble, as torch documents its pairs
            pairs = codes.view(torch.uint8).numpy()
            nibbles = np.stack([pairs & 15, pairs >> 4], -1).reshape(4, 96)
            codes = torch.from_numpy(nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32))
        if fmt == "mxint8":
            codes = codes.float() / 64
        if scales is None:
            values = codes.float()
        else:
            values = scaled(codes, scales, {"nvfp4": 16, "int8:channel": 96}.get(fmt, 32))
            values = values * tensors["nvfp4.levels"] if fmt == "nvfp4" else values
        wanted = octavo.quantize(x, fmt)
        if fmt == "nvfp4":  # two products round twice; our decoder rounds once
            torch.testing.assert_close(values, wanted, rtol=2**-23, atol=0)
        else:
            assert torch.equal(values, wanted), fmt


def test_six_bit_codes_lie_in_one_stream_of_bits(path):
    """torch has no six-bit dtype; the order of bits is FORMATS.md's: element i in bits 6i .. 6i+5 of its row."""
    packed = octavo.encode(torch.randn(2, 32), "mxfp6e3m2")
    container.save({"w": packed}, path)
    header = header_of(path)
    begin, end = header["w.codes"]["data_offsets"]
    row = int.from_bytes(path.read_bytes()[header["start"] + begin : header["start"] + end][24:48], "little")
    assert [row >> 6 * i & 63 for i in range(32)] == (packed.unpack()[1] & 63).tolist()


def test_files_of_other_writers_are_read(path):
    tensors = {name: stored(name, (2, 3)) for name in TORCH_DTYPES if not name.startswith("float4")}
    tensors["w.codes"] = torch.ones(2)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    assert_same(container.load(path), tensors)
    assert_same(container.load(path, mmap=True), tensors)
    assert container.metadata(path) == {"format": "pt"}


def test_a_dtype_that_torch_lacks_can_be_listed_and_left_out(path):
    header = {"a": {"dtype": "F6_E3M2", "shape": [4], "data_offsets": [0, 3]}}
    header["b"] = {"dtype": "U8", "shape": [1], "data_offsets": [3, 4]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert container.inspect(path)[0] == container.TensorEntry("a", "plain", None, (4,), "F6_E3M2", 3, 6.0)
    with pytest.raises(DTypeError, match="a has dtype F6_E3M2, which this torch has not; leave it out with names="):
        container.load(path)
    assert container.load(path, names=["b"])["b"].tolist() == [0]


# --- files ----------------------------------------------------------------------------------------------------------


class Failing(torch.Tensor):
    """A tensor that cannot be brought to the CPU."""

    def cpu(self, *args, **kwargs):
        raise RuntimeError("device lost")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path):
    path.write_bytes(b"old")
    good = torch.zeros(1 << 20)
    with pytest.raises(RuntimeError, match="device lost"):
        container.save({"a": good, "b": torch.zeros(3).as_subclass(Failing)}, path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
        with pytest.raises(OSError, match=r"x\.safetensors"):
            container.save({"a": good}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert [at.name for at in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"


def test_an_existing_file_is_replaced_only_if_asked(path):
    container.save({"a": torch.zeros(1)}, path, overwrite=False)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"x\.safetensors"):
        container.save({"a": torch.ones(1)}, path, overwrite=False)
    assert path.read_bytes() == before
    path.chmod(0o640)
    container.save({"a": torch.ones(1)}, path)
    assert container.load(path)["a"].item() == 1
    assert path.stat().st_mode & 0o777 == 0o640, "a file that is replaced keeps its mode"


def test_new_files_have_the_mode_of_the_umask(path):
    old = os.umask(0o027)
    try:
        container.save({}, path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def test_paths_that_are_no_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        container.load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="absent"):
        container.save({}, tmp_path / "absent" / "x")
    with pytest.raises(OSError, match="directory"):
        container.load(tmp_path)
    with pytest.raises(OSError, match="directory"):
        container.save({}, tmp_path)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for special in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ContainerError, match="is not a regular file"):
            container.inspect(special)


def test_a_mapping_is_private_and_outlives_the_file(path):
    container.save({"a": torch.zeros(1000), "p": octavo.encode(torch.ones(4, 32), "mxint8")}, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of memory that cannot be written
        mapped = container.load(path, mmap=True)
    mapped["a"].fill_(7)
    assert container.load(path)["a"].eq(0).all()
    container.save({}, path)
    path.unlink()
    assert mapped["a"].eq(7).all() and mapped["p"].decode().eq(1).all()


# --- refusals -------------------------------------------------------------------------------------------------------


def int8() -> PackedTensor:
    return octavo.encode(torch.ones(4), "int8")


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({"w": int8(), "w.codes": torch.ones(1)}, ContainerError, "w: clashes with another tensor, both are stored as"),
        ({"w.scales": torch.ones(1), "w": int8()}, ContainerError, "both are stored as 'w.scales'"),
        ({"w": int8(), "w.zeros": torch.ones(1)}, ContainerError, "w: 'int8' has no zeros, the file has zeros"),
        ({"__metadata__": torch.ones(1)}, ContainerError, "__metadata__: is a name that safetensors reserves"),
        ({"n" * 2000: torch.ones(1)}, ContainerError, "name of 2000 bytes; accepted are up to 1024"),
        ({"w": torch.ones([1] * 9)}, ContainerError, "w: more than 8 dimensions"),
        ({"w": torch.ones(1, dtype=torch.complex128)}, DTypeError, "w has dtype complex128, which safetensors has not"),
        ({"w": torch.eye(2).to_sparse()}, DTypeError, "w: a torch.sparse_coo tensor on cpu; accepted are dense ones"),
        ({"w": torch.ones(1, device="meta")}, DTypeError, "w: a torch.strided tensor on meta"),
        ({"w": np.array(["a"])}, DTypeError, "w has dtype str32"),
        ({"w": [1.0, 2.0]}, DTypeError, "w is a list; accepted are torch tensors, numpy arrays and PackedTensors"),
        ({1: torch.ones(1)}, DTypeError, "1 is a int; names of tensors are strings"),
        ([("w", torch.ones(1))], DTypeError, "tensors is a list; accepted is a mapping from name to tensor"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused_before_anything_is_written(tensors, error, message, path):
    with pytest.raises(error) as caught:
        container.save(tensors, path)
    assert message in str(caught.value)
    assert list(path.parent.iterdir()) == []


def test_metadata_is_strings_under_keys_of_the_users_own(path):
    with pytest.raises(
        ContainerError, match=r"metadata key 'octavo.version': keys that begin with 'octavo.' are reserved"
    ):
        container.save({}, path, metadata={"octavo.version": "9"})
    with pytest.raises(DTypeError, match="metadata 'a': 1 is not a string for a string"):
        container.save({}, path, metadata={"a": 1})


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_hostile_files_are_refused_with_the_reason(attack, path):
    path.write_bytes(attack.make())
    if attack.message is None:
        for tensor in container.load(path).values():
            assert isinstance(tensor, torch.Tensor) or tensor.decode().shape == tensor.shape
        return
    for read in (container.inspect, container.load, lambda path: container.load(path, mmap=True)):
        with pytest.raises(ContainerError) as caught:
            read(path)
        text = str(caught.value)
        assert attack.message in text and text.startswith(str(path)) and len(text) < len(str(path)) + 400
    with pytest.raises(ContainerError) as caught:
        container.loads(path.read_bytes())
    assert attack.message in str(caught.value)


def test_hostile_files_are_refused_without_memory(tmp_path):
    """Every attack together, under a limit of address space that an allocation on their word would exceed."""
    code = """
import resource, sys
from attacks.hostile import files
from octavo.tensors import container
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
for attack, data in files():
    path = f"{sys.argv[1]}/x"
    with open(path, "wb") as file:
        file.write(data)
    try:
        container.inspect(path)
        assert attack.message is None, attack.name
    except container.ContainerError as error:
        assert attack.message in str(error), attack.name
assert "torch" not in sys.modules and "numpy" not in sys.modules, "inspect answers without torch"
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_booleans_are_zero_or_one_whatever_the_file_says():
    data = next(attack for attack in ATTACKS if attack.name == "boolean_of_two").make()
    assert raw(container.loads(data)["w"]) == bytes([0, 1, 1, 1])


def test_deferred_tensors_are_made_one_at_a_time_in_the_bytes_of_tensors(tmp_path):
    tensors = {
        "b": torch.randn(3, 5),
        "a": torch.arange(6).to(torch.bfloat16),
        "c": torch.tensor(1),
        "d": torch.empty(0, 3),
    }
    addresses = []

    def later(tensor):
        def fill(out):
            assert out.is_contiguous() and out.dtype == tensor.dtype and out.shape == tensor.shape
            addresses.append(out.data_ptr())
            out.copy_(tensor)

        return container.Deferred(tensor.dtype, tuple(tensor.shape), fill)

    deferred = {name: later(tensor) for name, tensor in tensors.items()}
    container.save({**deferred, "c": tensors["c"]}, tmp_path / "f.safetensors")
    assert len(addresses) == 3 and len({*addresses} - {0}) == 1  # one piece of memory; an empty tensor has none
    assert (tmp_path / "f.safetensors").read_bytes() == container.dumps(tensors)
    assert all(torch.equal(deferred[name].tensor(), tensor) for name, tensor in tensors.items())
    deferred["b"] = container.Deferred(torch.float32, (2,), lambda out: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        container.save(deferred, tmp_path / "g.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["f.safetensors"]


def test_packed_tensors_are_made_when_they_are_written(tmp_path):
    packed = octavo.encode(torch.randn(8, 64), "uint4:g32")
    calls = []
    deferred = container.DeferredPacked.of(packed, lambda: calls.append(1) or packed)
    assert (deferred.shape, deferred.dtype, deferred.nbytes) == (packed.shape, packed.dtype, packed.nbytes)
    tensors = {"a": torch.ones(3), "w": deferred}
    container.save(tensors, tmp_path / "x")
    container.save({**tensors, "w": packed}, tmp_path / "y")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes() and calls == [1]
    other = container.DeferredPacked.of(packed, lambda: octavo.encode(torch.randn(8, 64), "int4:g32"))
    with pytest.raises(ContainerError, match=r"w: .*int4:g32.* is not what was announced"):
        container.save({"w": other}, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
