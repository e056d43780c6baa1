"""Rules of files: the index of shards, tensors in two files, digests, and the layout and metadata of GGUF files."""

from __future__ import annotations

import re
from collections import Counter

from octavo.errors import ContainerError
from octavo.interchange.check.findings import Findings, JsonEdit, Place, rule
from octavo.interchange.check.stored_layers import Model
from octavo.model_folder.weight_files import DIGESTS
from octavo.tensors import container

INDEX = rule(
    "index-disagrees", "error",
    "the index names a file or tensor that is not there, another file than the tensor is in, or leaves a tensor out",
    "readers stop at load, or fill the tensor with random numbers",
    "write the index from the files; --fix does it where all files are there",
)  # fmt: skip
INDEX_SIZE = rule(
    "index-size", "warning",
    "the index states another total size than the tensors have",
    "readers plan memory by it",
    "write the size of the tensors; --fix does it",
)  # fmt: skip
TWICE = rule(
    "tensor-twice", "error",
    "a tensor is in two files",
    "which of the two is read depends on the order of the files",
    "remove one of them",
)  # fmt: skip
DIGEST = rule(
    "digest", "error",
    "a tensor of an octavo file has other bytes than its digest says",
    "octavo refuses the file; other readers compute with the damaged tensor",
    "download or pack the file again",
)  # fmt: skip
GGUF_LAYOUT = rule(
    "gguf-layout", "error",
    "tensors of a GGUF file do not follow each other in order, each at the next multiple of the alignment",
    "llama.cpp refuses the file",
    "write the file again with gguf-py or llama.cpp",
)  # fmt: skip
GGUF_KEYS = rule(
    "gguf-metadata", "error",
    "metadata of a GGUF file are missing, or contradict its tensors",
    "llama.cpp refuses the file, or reads fewer layers or tokens than it has",
    "convert the model again, or set the key with gguf_set_metadata.py",
)  # fmt: skip
GGUF_TYPE = rule(
    "gguf-type", "warning",
    "most weights have another type than the file's name or general.file_type says",
    "size, speed and accuracy are those of the other type",
    "rename the file, or quantise it to a type whose blocks divide the columns",
)  # fmt: skip

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0",
    38: "MXFP4", 39: "NVFP4",
}  # fmt: skip
_IN_NAME = re.compile(r"(?:^|[-._])(Q[458]_[01]|BF16|F16|F32|MXFP4|NVFP4|TQ[12]_0|IQ4_NL)(?=[-._]|$)", re.IGNORECASE)
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")


def check_files(model: Model, findings: Findings) -> None:
    """Check how tensors lie in the files of a checkpoint."""
    source = model.source
    if source.gguf is not None:
        _check_gguf(model, findings)
        return
    for name, (first, second) in source.twice.items():
        findings.add(TWICE, name, f"in {first.name} and {second.name}", file=second.name)
    _check_index(model, findings)
    for file, metadata in source.metadata.items():
        if DIGESTS in metadata:
            try:
                container.verify(file)
            except ContainerError as error:
                findings.add(DIGEST, file.name, str(error).removeprefix(f"{file}: "), file=file.name)


def _check_index(model: Model, findings: Findings) -> None:
    source = model.source
    if source.index is None:
        return
    file, table = source.index
    stored = {raw.name: raw.file.name for raw in source.tensors.values()}
    # Packed tensors of ours are named whole, and stored as parts.
    for name, entry in source.packed.items():
        stored[name] = entry.file.name
        for part in ("codes", "scales", "zeros", "levels", "bitmap"):
            stored.pop(f"{name}.{part}", None)
    lost = set(source.missing)
    missing = [name for name in table if name not in stored and table[name] not in lost]
    moved = [name for name in table if name in stored and stored[name] != table[name] and name not in source.twice]
    unlisted = [name for name in stored if name not in table]
    exact = not source.missing and not missing and not source.twice
    edits = (JsonEdit(file, ("weight_map",), dict(sorted(stored.items()))),) if exact else ()
    counts = Counter(table.values())
    for name in source.missing:
        count = counts[name]
        findings.add(
            INDEX, name, f"the file is not there; {count} tensors are listed in it", file=file.name, count=count
        )
    for names, text in (
        (missing, "no file has it"),
        (moved, "it is in another file than the index says"),
        (unlisted, "the index leaves it out"),
    ):
        if names:
            findings.add(
                INDEX, names[0], f"{text}; {len(names)} such tensors", file=file.name, count=len(names), edits=edits
            )
    stated, size = source.index_bytes, source.nbytes
    if isinstance(stated, int) and not isinstance(stated, bool) and stated != size and exact:
        findings.add(
            INDEX_SIZE,
            "total_size",
            f"it states {stated}, the tensors have {size}",
            file=file.name,
            edits=(JsonEdit(file, ("metadata", "total_size"), size),),
        )


def _check_gguf(model: Model, findings: Findings) -> None:
    file = model.source.gguf
    assert file is not None
    expected = None
    for tensor in file.tensors.values():
        if expected is not None and tensor.offset != expected:
            findings.add(
                GGUF_LAYOUT,
                tensor.name,
                f"it begins at byte {tensor.offset}; the one before ends at {expected}",
                file=file.path.name,
                places=[Place(tensor.offset)],
            )
            break
        expected = tensor.offset + tensor.nbytes + -tensor.nbytes % file.alignment
    if file.metadata.get("split.count", 1) != 1:
        return  # the metadata are those of all files together
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        if any(_BLOCK.match(name) for name in file.tensors):
            findings.add(GGUF_KEYS, "general.architecture", "it is missing", file=file.path.name)
        return
    blocks = {int(match[1]) for name in file.tensors if (match := _BLOCK.match(name))}
    stated = file.metadata.get(f"{architecture}.block_count")
    if blocks and isinstance(stated, int) and max(blocks) + 1 != stated:
        findings.add(
            GGUF_KEYS,
            f"{architecture}.block_count",
            f"it states {stated}; there are blocks 0 to {max(blocks)}",
            file=file.path.name,
        )
    elif blocks and len(blocks) != max(blocks) + 1:
        lost = next(one for one in range(max(blocks)) if one not in blocks)
        findings.add(
            GGUF_KEYS,
            f"blk.{lost}",
            f"the block has no tensors; there are blocks up to {max(blocks)}",
            file=file.path.name,
        )
    tokens, embedding = file.metadata.get("tokenizer.ggml.tokens"), file.tensors.get("token_embd.weight")
    if (
        isinstance(tokens, list)
        and embedding is not None
        and len(embedding.shape) == 2
        and len(tokens) != embedding.shape[0]
    ):
        findings.add(
            GGUF_KEYS,
            "tokenizer.ggml.tokens",
            f"{len(tokens)} tokens, {embedding.shape[0]} rows of token_embd",
            file=file.path.name,
        )
    _check_type(model, findings)


def _check_type(model: Model, findings: Findings) -> None:
    file = model.source.gguf
    assert file is not None
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        if len(tensor.shape) >= 2 and "embd" not in tensor.name and not tensor.name.startswith("output"):
            sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.elements
    if not sizes:
        return
    most = max(sizes, key=lambda one: sizes[one])
    share = sizes[most] / sum(sizes.values())
    number = file.metadata.get("general.file_type")
    stated = _FILE_TYPES.get(number) if isinstance(number, int) else None
    named = _IN_NAME.findall(file.path.name)[-1:]
    for text, where in ((stated, "general.file_type"), (named[0].upper() if named else None, "the name")):
        if text is not None and text != most:
            findings.add(
                GGUF_TYPE,
                where,
                f"it says {text}; {share:.0%} of the weights of blocks are {most}",
                file=file.path.name,
            )
