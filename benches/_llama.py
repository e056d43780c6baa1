"""Decoders of llama.cpp, called through the low-level functions of its Python package ``llama-cpp-python``."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp
from octavo.errors import SettingError

_FILE_TYPES = {
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
}
FORMATS = tuple(_FILE_TYPES)


@llama_cpp.llama_log_callback
def _silent(*_: object) -> None:
    """Takes what llama.cpp logs."""


llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))


def quantize(source: Path, place: Path, format: str, threads: int) -> Path:
    """File of the weights of ``source`` in ``format``, made by llama.cpp with its defaults if it is not there."""
    if not place.exists():
        how = llama_cpp.llama_model_quantize_default_params()
        how.ftype, how.nthread, how.allow_requantize = _FILE_TYPES[format], threads, True
        partial = place.with_suffix(".partial")
        if llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), how):
            raise SettingError(f"llama.cpp cannot write {format} of {source}")
        partial.rename(place)
    return place


def stored(file: Path) -> tuple[int, str]:
    """Bytes of the weights that a token reads, and the format of the head, which may be the embedding."""
    from gguf import GGUFReader

    tensors = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    read = sum(int(tensor.n_bytes) for tensor in tensors.values())
    if "output.weight" in tensors:
        read -= int(tensors["token_embd.weight"].n_bytes)
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    return read, head.tensor_type.name.lower()


def build() -> str:
    """Version of the package and what its library was built for."""
    info = llama_cpp.llama_print_system_info().decode().replace("CPU :", "")
    flags = [part.split(" = ")[0].strip() for part in info.split("|") if part.strip().endswith("1")]
    return f"llama-cpp-python {llama_cpp.__version__}, {' '.join(flags)}"


class Decoder:
    """A loaded file with one context."""

    def __init__(self, file: Path, positions: int, threads: int) -> None:
        """Load ``file`` for texts of up to ``positions`` ids."""
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        how = llama_cpp.llama_context_default_params()
        how.n_ctx = how.n_batch = how.n_ubatch = positions
        how.n_threads = how.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, how) if self._model else None
        if not self._context:
            raise SettingError(f"llama.cpp cannot load {file}")
        self._sampler = llama_cpp.llama_sampler_init_greedy()

    def generate_ids(self, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        """Yield the most likely ids after ``prompt``, each as soon as it is known."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        ids = (llama_cpp.llama_token * len(prompt))(*prompt)
        for _ in range(tokens):
            if llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(ids, len(ids))):
                raise SettingError("llama.cpp cannot decode")
            following = llama_cpp.llama_sampler_sample(self._sampler, self._context, -1)
            yield following
            ids = (llama_cpp.llama_token * 1)(following)
