"""``octavo convert``: writes a model as a file or folder of another package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import pack
from octavo.cli._app import ForceOption, JsonOption, read_recipe
from octavo.errors import FormatError

if TYPE_CHECKING:
    from octavo.interchange.conversion_report import ConversionReport

OURS = "octavo"


def run(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A model folder of Hugging Face, of GPTQ or another package, of octavo; a GGUF file; minilm, smollm2.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write.")],
    to: Annotated[
        str, typer.Option("--to", metavar="KIND", help="gguf, compressed-tensors, onnx-matmulnbits or octavo.")
    ],
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RULES|FILE", help="Pack float weights first; octavo pack --help tells the rules."),
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Write as floats what the kind has no type for, with equal values.")
    ] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a model as a file of another package, or as a model folder.

    Codes and scales are stored in the order of the target; nothing is rounded again. The output lists every tensor with
    its type there, and says which are exact. Tensors are written one at a time. The output appears whole or not at all.

    \b
    Kinds:
      gguf      a file of llama.cpp: models of LlamaForCausalLM, GPT2LMHeadModel and BertModel, with tokenizer and
                chat template. It holds intW:gN up to 8 bits, also with full, uintW:gN up to 7, or up to 5 with
                offset, mxintW, bfpW/32, fixedW, ternary, mxfp4, nvfp4, K-quants that were read, and floats
      compressed-tensors
                a folder that transformers and vLLM open. It holds int, uint, mxint, bfp, ternary and fixed up to 8
                bits, mxfp4, mxfp6e2m3, mxfp8e4m3, nvfp4, e4m3 and floats, of Linear layers
      onnx-matmulnbits
                an ONNX file of weights: for each packed linear layer codes, scales and zero points of a MatMulNBits of
                ONNX Runtime, and all other tensors as they are. It holds intW and uintW up to 8 bits, mxintW, bfpW,
                fixedW, ternary and binary, by groups of 16 and more, rows or tensors
      octavo    a model folder: what octavo pack writes

    A recipe packs the weights of a float folder first. Without one, weights keep their formats and dtypes. Tensors of a
    GGUF file that becomes one again are copied block by block, those too that no format holds.

    A tensor that the kind cannot hold with the same values is an error before anything is written: columns that no
    block divides, scales that are no float16, formats that it lacks. --decode writes such tensors as F16, BF16 or F32,
    whichever is the smallest that has the same values.

    \b
    Examples:
      octavo convert smollm2/ smollm2.gguf --to gguf --recipe int8:g32
      octavo convert small/ small.gguf --to gguf
      octavo convert smollm2/ smollm2-w4a16/ --to compressed-tensors --recipe 'type:Linear int4:g32; lm_head=keep'
      octavo convert model.gguf model/ --to octavo
      octavo convert llama/ llama.onnx --to onnx-matmulnbits --recipe 'type:Linear int4:g32'
      octavo convert bert/ bert.gguf --to gguf --recipe 'mxfp4; embeddings.**=int8:g32' --json
    """
    if to == OURS:
        if decode:
            raise FormatError("--decode is of other kinds; octavo unpack decodes a model folder")
        pack.run(path, out, recipe, force=force, json=json)
        return
    from octavo.display.progress import progress
    from octavo.interchange.convert import KINDS, convert

    if to not in KINDS:
        raise FormatError(f"unknown kind {to!r}; accepted are {', '.join([*KINDS, OURS])}")
    rules = None if recipe is None else read_recipe(recipe)
    report = convert(path, out, to, recipe=rules, decode=decode, overwrite=force, bar=progress)
    if json:
        _print_json(path, report)
    else:
        _print(path, report)


def _print(path: Path, report: ConversionReport) -> None:
    from octavo.display.console import console, print_table, table
    from octavo.display.numbers import shape_text, size

    stdout = console()
    rows = table("tensor", "from", "type", ">shape", ">bytes", ">bits", "exact")
    for tensor in report.tensors:
        rows.add_row(
            tensor.name,
            tensor.origin,
            tensor.type,
            shape_text(tensor.shape),
            f"{tensor.nbytes:,}",
            f"{tensor.bits_per_element:.4g}",
            ", ".join([*(["yes"] if tensor.exact else ["no"]), *([tensor.note] if tensor.note else [])]),
        )
    print_table(stdout, rows)
    stdout.print()
    exact = sum(tensor.exact for tensor in report.tensors)
    stdout.print(f"{exact} of {len(report.tensors)} tensors are exact")
    for note in report.notes:
        stdout.print(note)
    stdout.print(f"written: {size(report.nbytes)}: {report.path}")


def _print_json(path: Path, report: ConversionReport) -> None:
    from octavo.display.console import print_json

    print_json({"path": str(path), **report.as_dict()})
