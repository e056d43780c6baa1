"""The only door to transformers' readers: what a folder describes, without running, fetching or trusting any of it.

transformers never sees the folder. Its configuration and tokenizer files are read here, as regular files of bounded
size, cleaned of everything that names code, other files or other places, and laid in a folder of our own, which
transformers reads. Weights come from :mod:`octavo.tensors.container`; there is no way to a pickle. What transformers
raises comes out as ContainerError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError, ModelError, OctavoError
from octavo.model_folder.companion_files import CHAT_TEMPLATE, TOKENIZER_TEXTS, VOCABULARIES
from octavo.model_folder.config_limits import build_config
from octavo.model_folder.model_config import CONFIG as CONFIG
from octavo.model_folder.quantization_entry import ENTRY, refuse_packing, without_ours
from octavo.model_folder.size_limits import Extent
from octavo.model_folder.tokenizer_growth import check_growth
from octavo.storage import folders
from octavo.storage.reading import CONFIG_BYTES, VOCABULARY_BYTES, parse_json, read_bytes, read_json, shown

if TYPE_CHECKING:
    from torch import Tensor, nn

    from octavo.model_folder.weight_files import Checkpoint

# Values in a vocabulary: a million words, and the pairs that they are merged of.
_VOCABULARY_VALUES = 8_000_000
# Keys that name code, files, kernels or models elsewhere; transformers would import, read or fetch them.
_ELSEWHERE = {
    "auto_map", "custom_pipelines", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "_experts_implementation_internal", "use_kernels",
    "use_pretrained_backbone", "backbone_kwargs", "name_or_path", "_name_or_path", "_commit_hash", "init_inputs",
    "fast_tokenizer_files", "gguf_file", "from_slow", "trust_remote_code", "configuration_files",
}  # fmt: skip
_SAFE = {"trust_remote_code": False, "local_files_only": True}
_FLOATS = ("float32", "float16", "bfloat16", "float64")


def load_config(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return transformers' configuration of a folder's ``config.json``, and the values that it was made of.

    Numbers that make it large are refused; code that the file names is not looked at. Raises ModelError where
    there is no such file or transformers is missing, ContainerError naming the field for everything else.
    """
    file = folder / CONFIG
    if not file.exists():
        raise ModelError(f"{folder}: not the folder of a model that transformers knows: it has no {CONFIG}")
    values = read_json(file, finite=False)
    if not isinstance(values.get("model_type"), str):
        raise ContainerError(
            f"{file}: model_type is {shown(values.get('model_type'))}; accepted is a text, such as 'bert'"
        )
    cleaned = without_ours(_cleaned(values))
    _check_dtypes(cleaned, file)
    transformers = _transformers(folder)

    def make(values: dict[str, Any]) -> Any:
        (own / CONFIG).write_text(json.dumps(values), encoding="utf-8")
        return transformers.AutoConfig.from_pretrained(own, **_SAFE)

    with folders.scratch() as own, foreign(file, values):
        _import_config(transformers, values["model_type"])  # the steps of importing are not the file's
        config = build_config(file, cleaned, make)
        config.name_or_path = str(folder)
    return config, values


def load_tokenizer(folder: Path, config: Any) -> Any:
    """Return the tokenizer of a folder. Raises ContainerError for one that transformers does not know, OSErrors."""
    transformers = _transformers(folder)
    with folders.scratch() as own:
        for name in TOKENIZER_TEXTS:
            if (folder / name).exists():
                values = _cleaned(read_json(folder / name, finite=False))
                given = {key: value for key, value in values.items() if not key.endswith("_file")}
                (own / name).write_text(json.dumps(given), encoding="utf-8")
        for name in VOCABULARIES:
            if (folder / name).exists():
                data = read_bytes(folder / name, VOCABULARY_BYTES)
                if name.endswith(".json"):
                    _check_vocabulary(data, folder / name)
                (own / name).write_bytes(data)
        if (folder / CHAT_TEMPLATE).exists():
            (own / CHAT_TEMPLATE).write_bytes(read_bytes(folder / CHAT_TEMPLATE, CONFIG_BYTES))
        with foreign(folder, what="tokenizer"):
            return transformers.AutoTokenizer.from_pretrained(own, config=config, **_SAFE)


def extent_of(source: Checkpoint | None, folder: Path, values: Mapping[str, Any]) -> Extent:
    """Return what a model of ``folder`` may allocate; ``source`` is where its weights lie, None if there are none."""
    what = str(folder / CONFIG)
    return Extent(what, values) if source is None else Extent.of(source.entries(), what, values)


def fill(architecture: Any, config: Any, tensors: Mapping[str, Tensor], folder: Path) -> tuple[nn.Module, list[str]]:
    """Return a model of transformers with float32 weights, and the names that ``tensors`` lacks, which are drawn anew.

    Raises ContainerError for tensors of another shape or kind than the model's, and for a configuration that asks for
    another library's quantization.
    """
    import torch

    refuse_packing(folder, getattr(config, ENTRY, None))
    transformers = _transformers(folder)
    with quiet(transformers.utils.logging), foreign(folder, what="model"):
        weights = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        model, info = architecture.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=torch.float32,
            output_loading_info=True,
            use_safetensors=True,
            **_SAFE,
        )
    parameters = {_last_two(name) for name, _ in model.named_parameters()}
    for name, tensor in weights.items():
        if not tensor.is_floating_point() and _last_two(name) in parameters:
            raise ContainerError(f"{folder}: {name} has dtype {tensor.dtype}; accepted for a weight are floats")
    return model, sorted(info["missing_keys"])


def _last_two(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")[-2:])


@contextmanager
def foreign(place: Path, values: Mapping[str, Any] | None = None, *, what: str = "") -> Iterator[None]:
    """Turn whatever transformers, or a library below it, raises into ContainerError that names file and field.

    ``values``: of the configuration, whose fields are looked for in the message. Errors of our own and of the system
    pass.
    """
    try:
        yield
    except (OctavoError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # panics of its Rust parts are no Exceptions
        if isinstance(error, OSError) and error.errno is not None:
            raise
        told = " ".join(str(error).split())
        field = getattr(error, "field", None) or _field(told, values or {})
        named = f": {field}" if isinstance(field, str) and field else f": {what}" if what else ""
        told = told if len(told) <= 300 else f"{told[:297]}..."
        raise ContainerError(f"{place}{named}: transformers refuses it: {type(error).__name__}: {told}") from None


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Silence transformers' reports and progress bars, and restore them."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _transformers(folder: Path) -> Any:
    try:
        import transformers
    except ImportError:
        raise ModelError(
            f"{folder}: this needs transformers; install the extra 'demo': pip install \"octavo[demo]\""
        ) from None
    return transformers


def _import_config(transformers: Any, kind: str) -> None:
    if kind in transformers.CONFIG_MAPPING:
        transformers.CONFIG_MAPPING[kind]


def _cleaned(value: Any) -> Any:
    """Return values without the keys that name code or places, at every depth."""
    if isinstance(value, Mapping):
        return {key: _cleaned(item) for key, item in value.items() if key not in _ELSEWHERE}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _check_dtypes(values: Any, file: Path) -> None:
    """Refuse dtypes that are none: transformers takes any attribute of torch."""
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if key in ("dtype", "torch_dtype") and value is not None and value not in _FLOATS:
            raise ContainerError(f"{file}: {key} is {shown(value)}; accepted are {', '.join(_FLOATS)}")
        _check_dtypes(value, file)


def _check_vocabulary(data: bytes, file: Path) -> None:
    """Refuse what is no JSON object, and a tokenizer in which texts grow without end."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ContainerError(f"{file}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    check_growth(parse_json(text, str(file), finite=False, most=_VOCABULARY_VALUES), file)


def _field(message: str, values: Mapping[str, Any]) -> str | None:
    words = set(re.findall(r"\w+", message))
    return next((key for key in values if key in words), None)


def known(folder: Path, find: Callable[[Any], Any], what: str) -> Any:
    """Return a class of transformers that ``find`` takes from the module. Raises ContainerError where it has none."""
    transformers = _transformers(folder)
    with foreign(folder, what=what):
        return find(transformers)
