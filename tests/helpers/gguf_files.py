"""GGUF files written for tests, from the layout alone: any field can be made wrong."""

import struct

NUMBERS = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"),
    "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d"),
}  # fmt: skip


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    """The bytes of a value: its type and content; of a list, an array of ``kind``."""
    if isinstance(content, list):
        number = 8 if kind == "str" else NUMBERS[kind][0]
        return struct.pack("<IIQ", 9, number, len(content)) + b"".join(value(kind, item)[4:] for item in content)
    if kind == "str":
        return struct.pack("<I", 8) + text(content)
    number, code = NUMBERS[kind]
    return struct.pack(f"<I{code}", number, content)


def gguf(metadata=(), tensors=(), *, version=3, alignment=32):
    """The bytes of a file. ``metadata``: (key, kind, content). ``tensors``: (name, type, shape as torch has it, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, kind, content in metadata:
        head += text(key) + value(kind, content)
    data = b""
    for name, kind, shape, content in tensors:
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<q", size) for size in reversed(shape)) + struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % alignment)
    return head + bytes(-len(head) % alignment) + data
