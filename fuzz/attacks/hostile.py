"""Files that try to harm a reader of containers, each with the message that refuses it; README.md groups them.

``python fuzz/attacks/hostile.py FOLDER`` writes them out, to try them on other readers.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Attack:
    """A file's bytes, and a part of the message that must refuse it; None where the file is odd but valid."""

    name: str
    make: Callable[[], bytes]
    message: str | None


def container(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Length, header and data; a header that is no text or bytes is printed as JSON."""
    if not isinstance(header, str | bytes):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(dtype: str = "U8", shape: object = (4,), offsets: object = (0, 4), **more: object) -> dict:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


PACKING = {"format": "mxint8", "scale": "floor", "shape": [2, 32], "dtype": "float32", "axis": 1}


def packed(
    *,
    packing: object = PACKING,
    version: str | None = "1",
    codes: tuple | None = ("I8", [2, 32], 64),
    scales: tuple | None = ("F8_E8M0", [2, 1], 2),
    more: dict[str, tuple] | None = None,
    metadata: dict | None = None,
    text: str | None = None,
) -> bytes:
    """A file with the packed tensor ``w``; each argument replaces one thing that would be right."""
    meta = {} if version is None else {"octavo.version": version}
    if packing is not None:
        meta["octavo.tensor.w"] = json.dumps(packing) if text is None else text
    meta |= metadata or {}
    header: dict[str, object] = {"__metadata__": meta}
    at = 0
    for name, part in {"w.codes": codes, "w.scales": scales, **(more or {})}.items():
        if part is not None:
            dtype, shape, nbytes = part
            header[name] = tensor(dtype, shape, (at, at + nbytes))
            at += nbytes
    return container(header, bytes(at))


def described(**change: object) -> bytes:
    """The packed file with other words in its description."""
    return packed(packing=PACKING | change)


def described_empty() -> bytes:
    """No element, and a dimension of a trillion: nothing may loop over its rows."""
    packing = PACKING | {"format": "int8:tensor", "shape": [2**40, 0]}
    return packed(packing=packing, codes=("I8", [2**40, 0], 0), scales=("F32", [1], 4))


SPARSE = PACKING | {"format": "int8:tensor", "shape": [16, 6], "nonzero": 5}


def sparse(*, packing: object = SPARSE, codes: tuple | None = ("U8", [5], 5), version: str = "2", **change) -> bytes:
    """A file with the tensor ``w`` of sparse codes, whose bitmap has no bit; each argument replaces one thing."""
    given = {"w.bitmap": ("U64", [1, 2], 16), "w.scales": ("F32", [1], 4), "w.codes": codes} | change.pop("parts", {})
    return packed(packing=packing, version=version, codes=None, scales=None, more=given, **change)


def one(info: object, data: bytes = bytes(4)) -> bytes:
    """A plain file with the tensor ``w``."""
    return container({"w": info}, data)


def two(a: tuple[int, int], b: tuple[int, int], data: bytes = bytes(8)) -> bytes:
    """A plain file with the tensors ``a`` and ``b`` at these offsets."""
    return container({"a": tensor(shape=[a[1] - a[0]], offsets=a), "b": tensor(shape=[b[1] - b[0]], offsets=b)}, data)


def many_tensors() -> bytes:
    """One tensor more than accepted, all of them empty."""
    info = json.dumps(tensor(shape=[0], offsets=[0, 0]), separators=(",", ":"))
    return container("{" + ",".join(f'"{i}":{info}' for i in range(2**20 + 1)) + "}")


INFO = json.dumps(tensor())
DEEP = 1_000_000

ATTACKS = [
    # the frame
    Attack("empty", lambda: b"", "0 bytes; a safetensors file has at least 8"),
    Attack("seven_bytes", lambda: bytes(7), "7 bytes; a safetensors file has at least 8"),
    Attack("zero_length_header", lambda: bytes(8), "does not begin with '{'"),
    Attack("header_longer_than_file", lambda: container("{}", length=3), "header of 3 bytes in a file with 2 bytes"),
    Attack("header_of_2_to_the_64", lambda: container("{}", length=2**64 - 1), "header of 18446744073709551615 bytes"),
    Attack("header_that_wraps", lambda: container("{}", length=2**64 - 8), "accepted are up to 100000000"),
    Attack("header_of_a_gigabyte", lambda: container("{}", length=10**9), "accepted are up to 100000000"),
    Attack("header_just_below_the_limit", lambda: container("{}", length=99_999_999), "truncated"),
    Attack(
        "pickle",
        lambda: b"\x80\x04\x95\x0f\x00\x00\x00\x00\x00\x00\x00" + bytes(64),
        "a pickle; expected is a safetensors file",
    ),
    Attack("zip_of_torch_save", lambda: b"PK\x03\x04" + bytes(64), "a zip archive; expected is a safetensors file"),
    # JSON
    Attack("not_utf8", lambda: container(b'{"\xff\xfe": 1}'), "header is not UTF-8"),
    Attack("spaces_first", lambda: container("  {}"), "does not begin with '{'"),
    Attack("an_array", lambda: container("[]"), "does not begin with '{'"),
    Attack("open_brace", lambda: container("{"), "EOF while parsing"),
    Attack("two_objects", lambda: container("{}{}"), "trailing characters"),
    Attack("trailing_nul", lambda: container("{}\0\0"), "trailing characters"),
    Attack("deep_header", lambda: container('{"w":' + "[" * DEEP), "w: invalid type: sequence, expected an object"),
    Attack("deep_object", lambda: container('{"w":' + '{"a":' * DEEP), "w: unknown key 'a'"),
    Attack("deep_shape", lambda: container('{"w":{"shape":' + "[" * DEEP), "w: invalid type: sequence, expected u64"),
    Attack("deep_ninth_dimension", lambda: container('{"w":{"shape":[1,1,1,1,1,1,1,1,' + "[" * DEEP), "w: EOF"),
    Attack("deep_metadata", lambda: container('{"__metadata__":{"a":' + "[" * DEEP), "expected a string"),
    Attack("long_shape", lambda: one(tensor(shape=[1] * DEEP)), "w: more than 8 dimensions"),
    Attack("duplicate_name", lambda: container(f'{{"w":{INFO},"w":{INFO}}}', bytes(4)), "w: appears twice"),
    Attack(
        "duplicate_escaped_name", lambda: container(f'{{"w":{INFO},"\\u0077":{INFO}}}', bytes(4)), "w: appears twice"
    ),
    Attack(
        "duplicate_metadata", lambda: container('{"__metadata__":{},"__metadata__":{}}'), "__metadata__: appears twice"
    ),
    Attack("duplicate_metadata_key", lambda: container('{"__metadata__":{"a":"1","a":"2"}}'), "key 'a' appears twice"),
    Attack("duplicate_dtype", lambda: container('{"w":{"dtype":"U8","dtype":"F64"}}'), "w: key 'dtype' appears twice"),
    Attack("metadata_of_numbers", lambda: container({"__metadata__": {"a": 1}}), "expected a string"),
    Attack("metadata_null", lambda: container({"__metadata__": None}), "expected an object of strings"),
    Attack(
        "lone_surrogate", lambda: container(f'{{"\\ud800":{INFO}}}', bytes(4)), "header: unexpected end of hex escape"
    ),
    Attack(
        "long_name", lambda: container({"n" * 1025: tensor()}, bytes(4)), "name of 1025 bytes; accepted are up to 1024"
    ),
    Attack("million_tensors", many_tensors, "more than 1048576 tensors"),
    # one tensor
    Attack(
        "tensor_as_array", lambda: one(["U8", [4], [0, 4]]), "w: invalid type: sequence, expected an object with dtype"
    ),
    Attack("unknown_key", lambda: one(tensor(compression="zip")), "w: unknown key 'compression'"),
    Attack(
        "no_dtype", lambda: container('{"w":{"shape":[4],"data_offsets":[0,4]}}', bytes(4)), "missing field `dtype`"
    ),
    Attack(
        "no_offsets", lambda: container('{"w":{"dtype":"U8","shape":[4]}}', bytes(4)), "missing field `data_offsets`"
    ),
    Attack("unknown_dtype", lambda: one(tensor("F128")), "w: unknown variant `F128`, expected one of"),
    Attack("negative_dimension", lambda: one(tensor(shape=[-4])), "w: invalid value: integer `-4`, expected u64"),
    Attack("fractional_dimension", lambda: one(tensor(shape=[4.0])), "w: invalid type: floating point `4.0`"),
    Attack("dimension_over_64_bits", lambda: one(tensor(shape=[2**64])), "w: invalid type: floating point"),
    Attack(
        "huge_dimension", lambda: one(tensor(shape=[2**63, 0], offsets=[0, 0]), b""), "dimension of 9223372036854775808"
    ),
    Attack("shape_that_wraps_to_4", lambda: one(tensor("F32", shape=[2**31, 2**31, 4])), "w: shape"),
    Attack("bits_that_wrap", lambda: one(tensor("F64", shape=[2**30, 2**30, 2**2])), "overflows"),
    Attack("half_a_byte", lambda: one(tensor("F4", shape=[7])), "does not fill whole bytes"),
    Attack("more_elements_than_bytes", lambda: one(tensor(shape=[5])), "is 5 bytes, data_offsets are [0, 4]"),
    Attack("fewer_elements_than_bytes", lambda: one(tensor("U16", shape=[1])), "is 2 bytes, data_offsets are [0, 4]"),
    Attack("scalar_of_four_bytes", lambda: one(tensor(shape=[])), "is 1 bytes, data_offsets are [0, 4]"),
    # offsets
    Attack("reversed_offsets", lambda: one(tensor(offsets=[4, 0])), "data_offsets are [4, 0]"),
    Attack("three_offsets", lambda: one(tensor(offsets=[0, 4, 8])), "w: trailing characters"),
    Attack("negative_offset", lambda: one(tensor(offsets=[-4, 0])), "integer `-4`"),
    Attack("offset_of_2_to_the_64", lambda: one(tensor(offsets=[2**64 - 4, 2**64 - 1])), "data_offsets are"),
    Attack("hole_at_the_start", lambda: one(tensor(offsets=[4, 8]), bytes(8)), "leaves a gap after the header"),
    Attack("hole_between", lambda: two((0, 4), (5, 8)), "b: data_offsets [5, 8] leaves a gap after a, which ends at 4"),
    Attack("overlap", lambda: two((0, 5), (4, 8)), "b: data_offsets [4, 8] overlaps a, which ends at 5"),
    Attack("same_bytes_twice", lambda: two((0, 8), (0, 8)), "b: data_offsets [0, 8] overlaps a, which ends at 8"),
    Attack("empty_tensor_inside_another", lambda: two((0, 8), (3, 3)), "b: data_offsets [3, 3] overlaps a"),
    Attack("bytes_left_over", lambda: one(tensor(), bytes(5)), "take 4 bytes, the file has 5 bytes of data"),
    Attack("bytes_missing", lambda: one(tensor(), bytes(3)), "take 4 bytes, the file has 3 bytes of data: truncated"),
    Attack("data_without_tensors", lambda: container({}, bytes(9)), "take 0 bytes, the file has 9 bytes of data"),
    # octavo.*
    Attack(
        "newer_version",
        lambda: packed(version="3"),
        "octavo.version is '3'; this version of octavo reads '1' and '2'; a newer",
    ),
    Attack("no_number_as_version", lambda: packed(version="1.0\n"), r"octavo.version is '1.0\n'; this version"),
    Attack("no_version", lambda: packed(version=None), "metadata key 'octavo.tensor.w' without octavo.version"),
    Attack("unknown_octavo_key", lambda: packed(metadata={"octavo.run": "x"}), "unknown metadata key 'octavo.run'"),
    Attack("description_is_no_json", lambda: packed(text="{'format'}"), "w: description: key must be a string"),
    Attack(
        "description_is_an_array",
        lambda: packed(text='["mxint8"]'),
        "w: description '[\\\"mxint8\\\"]' is not an object",
    ),
    Attack("description_too_long", lambda: packed(text="{" + " " * 512), "is not an object of up to 512 bytes"),
    Attack("deep_description", lambda: packed(text='{"shape":' + "[" * 500), "w: description: invalid type: sequence"),
    Attack("description_with_unknown_key", lambda: described(device="cuda"), "w: description: unknown field `device`"),
    Attack("description_twice", lambda: packed(text='{"format":"int8","format":"nf4"}'), "duplicate field `format`"),
    Attack(
        "description_without_axis", lambda: packed(text='{"format":"int8"}'), "w: description: missing field `scale`"
    ),
    Attack("unknown_format", lambda: described(format="mxint88"), "w: format 'mxint88': width 88 is outside 2..16"),
    Attack("format_of_a_kilobyte", lambda: described(format="e" * 300), "w: unknown format 'eeee"),
    Attack("format_is_a_number", lambda: described(format=8), "w: description: invalid type: integer `8`"),
    Attack("unknown_scale_rule", lambda: described(scale="best"), "w: unknown scale rule 'best'; accepted are floor"),
    Attack(
        "unknown_logical_dtype", lambda: described(dtype="float8"), "w: unknown dtype 'float8'; accepted are float32"
    ),
    Attack("axis_outside", lambda: described(axis=2), "w: axis 2 is outside shape [2, 32]"),
    Attack("axis_negative", lambda: described(axis=-1), "w: description: invalid value: integer `-1`"),
    Attack("axis_over_63_bits", lambda: described(axis=2**64 - 1), "w: axis"),
    Attack(
        "logical_shape_overflows", lambda: described(shape=[2**40, 2**40]), "w: shape [1099511627776, 1099511627776]"
    ),
    Attack("logical_dimension_too_large", lambda: described(shape=[0, 2**41]), "accepted are up to 1099511627776"),
    Attack("logical_rank", lambda: described(shape=[1] * 9), "w: description: more than 8 dimensions"),
    Attack("logical_scalar_of_blocks", lambda: described(shape=[], axis=0), "w: 'mxint8' needs at least 1 dimension"),
    Attack(
        "logical_shape_larger",
        lambda: described(shape=[4, 32]),
        "w: 'mxint8' of shape [4, 32] along axis 1 has codes I8",
    ),
    Attack("logical_shape_smaller", lambda: described(shape=[1, 32]), "has codes I8 [1, 32], the file has I8 [2, 32]"),
    Attack("axis_of_another_layout", lambda: described(axis=0), "has codes I8 [32, 2], the file has I8 [2, 32]"),
    Attack(
        "format_of_another_width", lambda: described(format="mxint4"), "has codes U8 [2, 16], the file has I8 [2, 32]"
    ),
    Attack("codes_flattened", lambda: packed(codes=("I8", [64], 64)), "the file has I8 [64]"),
    Attack("codes_under_another_dtype", lambda: packed(codes=("U8", [2, 32], 64)), "the file has U8 [2, 32]"),
    Attack(
        "scales_under_another_dtype",
        lambda: packed(scales=("U8", [2, 1], 2)),
        "has scales F8_E8M0 [2, 1], the file has U8",
    ),
    Attack("too_few_scales", lambda: packed(scales=("F8_E8M0", [1, 1], 1)), "the file has F8_E8M0 [1, 1]"),
    Attack("no_codes", lambda: packed(codes=None), "w: 'mxint8' has codes, the file has none"),
    Attack("no_scales", lambda: packed(scales=None), "w: 'mxint8' has scales, the file has none"),
    Attack(
        "zeros_left_over",
        lambda: packed(more={"w.zeros": ("U8", [1], 1)}),
        "w: 'mxint8' has no zeros, the file has zeros",
    ),
    Attack("levels_left_over", lambda: packed(more={"w.levels": ("F32", [1], 4)}), "w: 'mxint8' has no levels"),
    Attack("packed_and_plain", lambda: packed(more={"w": ("U8", [1], 1)}), "w: is stored both packed and plain"),
    Attack("parts_of_nobody", lambda: packed(packing=None), None),
    # sparse codes
    Attack(
        "sparse_in_version_1", lambda: sparse(version="1"), "w: has 'nonzero', sparse codes, in a file of version 1"
    ),
    Attack(
        "sparse_count_is_negative", lambda: sparse(packing=SPARSE | {"nonzero": -1}), "w: description: invalid value"
    ),
    Attack("sparse_count_is_null", lambda: sparse(packing=SPARSE | {"nonzero": None}), "w: description: invalid type"),
    Attack(
        "sparse_count_beyond_the_elements",
        lambda: sparse(packing=SPARSE | {"nonzero": 2**63}),
        "w: 9223372036854775808 codes that are not 0 in 96 elements",
    ),
    Attack(
        "sparse_count_above_the_codes", lambda: sparse(packing=SPARSE | {"nonzero": 6}), "has codes U8 [6], the file"
    ),
    Attack(
        "sparse_format_without_zero", lambda: sparse(packing=SPARSE | {"format": "nf4"}), "w: sparse codes of 'nf4'"
    ),
    Attack("sparse_zero_points", lambda: sparse(packing=SPARSE | {"format": "uint8"}), "w: sparse codes of 'uint8'"),
    Attack(
        "sparse_without_bitmap", lambda: sparse(parts={"w.bitmap": None}), "w: 'int8' has bitmap, the file has none"
    ),
    Attack(
        "sparse_bitmap_of_another_shape",
        lambda: sparse(parts={"w.bitmap": ("U64", [2, 1], 16)}),
        "has bitmap U64 [1, 2], the file has U64 [2, 1]",
    ),
    Attack(
        "sparse_empty_but_tall",
        lambda: sparse(
            packing=SPARSE | {"shape": [2**40, 0], "nonzero": 0},
            codes=("U8", [0], 0),
            parts={"w.bitmap": ("U64", [0, 0], 0)},
        ),
        None,
    ),
    # odd, and valid
    Attack("empty_container", lambda: container({}), None),
    Attack("unaligned_data", lambda: container('{"w":' + json.dumps(tensor("F32", [1])) + " }", bytes(4)), None),
    Attack("boolean_of_two", lambda: one(tensor("BOOL"), bytes([0, 1, 2, 255])), None),
    Attack("name_with_control_characters", lambda: container({"\x1b[2J\n": tensor()}, bytes(4)), None),
    Attack("empty_but_wide", lambda: described_empty(), None),
]


def files() -> Iterator[tuple[Attack, bytes]]:
    """Every attack with its bytes."""
    for attack in ATTACKS:
        yield attack, attack.make()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for attack, data in files():
        (folder / f"{attack.name}.safetensors").write_bytes(data)
