"""``octavo pack``: packs the weights of a file or folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli._app import ForceOption, JsonOption, OutOption, read_recipe, tell_left_behind
from octavo.cli._foreign_files import folder_of
from octavo.errors import ContainerError, FormatError, ModelError
from octavo.storage.outputs import check_output

if TYPE_CHECKING:
    from octavo.interchange.foreign_readers import Reader
    from octavo.model_folder.pack_checkpoint import TensorReport
    from octavo.model_folder.pack_folder import OpenFolder
    from octavo.model_folder.weight_files import Checkpoint
    from octavo.recipe import Recipe

    Done = tuple[list[TensorReport], Path | None]  # of a dry run there is no file

DEFAULT = "mxint8"


def run(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A safetensors or GGUF file, or a Hugging Face model folder, also of GPTQ, AWQ and other packages; "
            "minilm, smollm2.",
        ),
    ],
    out: OutOption,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RULES|FILE", help="Which tensors get which format; see above.  [default: mxint8]"),
    ] = None,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Leave out codes that are 0 where that takes fewer bytes.")
    ] = False,
    untie: Annotated[
        bool, typer.Option("--untie", help="Give a head that has the embedding's table a weight of its own.")
    ] = False,
    force: ForceOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show who would get what; write nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Pack the weights of a model.

    A folder of transformers, in one file or in shards, becomes a folder of packed layers. octavo.load_model runs
    it. octavo embed and octavo generate run it without torch. octavo unpack decodes it. Weights are read one at a time.
    Where transformers is not installed or does not know the model, its tensors are packed without the model, and the
    output says why. A safetensors file becomes a file of tensors. The output appears whole or not at all.

    Without a recipe, weights of a GGUF file or of a folder of another package, such as GPTQ, keep their codes where a
    format holds them, and others are decoded to floats; the output says which, and why. With a recipe all are
    decoded and packed anew.

    A recipe is a list of rules separated by ';', or a file NAME.toml. The last rule that matches decides:

    \b
      FORMAT        every Linear, Embedding, convolution; of a file all 2-D float weights, and batched experts
      GLOB=FORMAT   layers whose name matches; * stays between dots, ** crosses them; of a file weights of 2 and more
                    dimensions whose layer or name matches
      NAME=FORMAT   one layer; of a file one tensor or layer, 1-D ones included
      GLOB=keep     leaves what matches as it is

    Block formats take the rule of their scales: mxfp4@floor (OCP), @ceil (nothing saturates), @mse (least squared
    error). Of a file fp32, fp16 and bf16 cast and store plain tensors. What no rule matches is kept; a rule that
    matches nothing is an error. octavo recipe --help has the whole grammar, octavo recipe RULES --model FOLDER shows
    who gets what. Without a recipe, packed tensors of a folder of Octavo 0.1 keep their formats and become a model.

    --sparse stores a pruned weight as a bitmap and the codes that are not 0, where that takes fewer bytes. Of 8 bits
    that begins at about 13 % of zeros, of 4 bits at about 26 %. The table tells both sizes and the share of zeros. The
    weight decodes to the same bits; older versions of Octavo refuse the file by name. It is not always faster:
    octavo.explain names the kernel of each layer.

    A head whose weight is the table of the embedding has its format, and is stored once. --untie stores it as a tensor
    of its own, which a rule may give a format of its own. The output tells the bytes that it costs.

    --json prints every tensor with its format, bytes and error; one that stays as it is has the reason.

    Layers of Octavo's own networks are packed as octavo.pack_model packs them. Matrices of an LSTM, which is no layer
    of a recipe, stay as they are.

    \b
    Examples:
      octavo pack model.safetensors -o small.safetensors --recipe mxfp4
      octavo pack bert/ -o bert-small/ --recipe 'mxfp4@mse; embeddings.**=mxint8; pooler.**=keep'
      octavo pack model.safetensors -o small.safetensors --recipe 'fixed8:channel,mse' --dry-run
      octavo pack pruned/ -o small/ --recipe int8:g32 --sparse
      octavo pack smollm2/ -o small/ --untie --recipe 'int4:g32; lm_head=int8:g32'
    """
    from octavo.interchange.foreign_readers import reader_of
    from octavo.storage.named_models import resolved

    path = resolved(path)
    rules = None if recipe is None else read_recipe(recipe)
    reader = reader_of(path)
    if reader is not None and rules is None:
        if untie:
            raise ModelError(f"{path}: --untie needs a --recipe; carried blocks stay as they are, and so do ties")
        _convert(path, reader, out, sparse=sparse, force=force, dry_run=dry_run, json=json)
        return
    with folder_of(str(path), packed=False) as folder:
        _pack(path, Path(folder), rules, out, sparse=sparse, untie=untie, force=force, dry_run=dry_run, json=json)


def _pack(
    path: Path,
    folder: Path,
    rules: Recipe | None,
    out: Path,
    *,
    sparse: bool,
    untie: bool,
    force: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Pack a folder or a file of tensors; ``path``: what was given, the same or a GGUF file."""
    from octavo.model_folder.weight_files import PACKED_NAME, Checkpoint, check_target

    source = Checkpoint.open(folder)
    check_target(source, out, PACKED_NAME, force=force)
    if untie and not source.is_folder:
        raise ModelError(f"{path}: --untie is of the folder of a model; a file of tensors has no head")
    notes: list[str] = []
    opened = _open(source, notes, untie=untie) if source.is_folder else None
    shown = 0 if json else _show(notes)  # before the work
    if opened is None:
        done = _pack_tensors(source, rules or read_recipe(DEFAULT), out, sparse=sparse, force=force, dry_run=dry_run)
    else:
        given = rules if opened.is_packed else rules or read_recipe(DEFAULT)
        done = _pack_model(source, opened, given, out, notes, sparse=sparse, force=force, dry_run=dry_run)
    reports, file = done
    before = Checkpoint.open(path)
    if json:
        _print_json(before, reports, file, notes)
    else:
        _print(before, reports, file, notes[shown:], sparse=sparse)


def _convert(path: Path, reader: Reader, out: Path, *, sparse: bool, force: bool, dry_run: bool, json: bool) -> None:
    """Write the model of another package's file with the formats that hold its blocks."""
    from octavo.display.progress import progress
    from octavo.interchange.conversion import Conversion
    from octavo.model_folder.pack_checkpoint import TensorReport
    from octavo.model_folder.weight_files import Checkpoint

    if sparse:
        raise FormatError(f"{path}: --sparse needs a --recipe; carried codes stay as they are")
    check_output(path, out, is_folder=True, overwrite=force)
    conversion = Conversion.of(reader.open(path), packed=True, bar=progress)
    file = None if dry_run else conversion.write(out, overwrite=force, bar=progress)
    reports = []
    for name, tensor in conversion.tensors.items():
        origin = conversion.origins[name]
        shape, reason = tuple(tensor.shape), origin.reason or "plain in the file"
        dtype = str(tensor.dtype).removeprefix("torch.")
        reports.append(
            TensorReport(
                name, shape, dtype, origin.format, origin.nbytes, tensor.nbytes,
                reason=None if origin.format else reason,
            )
        )  # fmt: skip
    source = Checkpoint.open(path)
    if json:
        _print_json(source, reports, file, conversion.notes)
    else:
        _print(source, reports, file, conversion.notes, sparse=False)


def _open(source: Checkpoint, notes: list[str], *, untie: bool) -> OpenFolder | None:
    """Return the model of a folder; None where its tensors are packed, with a note that says why."""
    from octavo.model_folder.explain_folder import TENSORS_ALONE
    from octavo.model_folder.pack_folder import OpenFolder

    try:
        return OpenFolder.open(source, untie=untie)
    except (ModelError, ContainerError) as error:
        if untie:
            raise
        notes.append(f"{TENSORS_ALONE}: {error}")
        return None


def _pack_model(
    source: Checkpoint,
    opened: OpenFolder,
    rules: Recipe | None,
    out: Path,
    notes: list[str],
    *,
    sparse: bool,
    force: bool,
    dry_run: bool,
) -> Done:
    from octavo.display.progress import progress
    from octavo.interchange.conversion_report import left_out
    from octavo.model_folder.pack_folder import save_folder
    from octavo.model_folder.tied_tensors import tied_sentences, untied_sentences

    planned = opened.plan(rules)
    _refuse_nothing(source, planned, rules)
    if dry_run:
        return planned, None
    with progress("packing", opened.nbytes) as done:
        packed = opened.pack(rules, sparse=sparse, progress=done)
    file = save_folder(source, out, packed.model, force=force, untied=opened.untied is not None)
    notes += [*tied_sentences(packed.model), *untied_sentences(packed.model, opened.untied)]
    notes += left_out(packed.left_out, f"a {type(packed.model).__name__} has")
    return packed.reports, file


def _pack_tensors(source: Checkpoint, rules: Recipe, out: Path, *, sparse: bool, force: bool, dry_run: bool) -> Done:
    from octavo.display.progress import progress
    from octavo.model_folder.pack_checkpoint import pack_tensors, plan
    from octavo.model_folder.weight_files import PACKED_NAME, RECIPE, write

    tensors = source.tensors()
    planned = plan(tensors, rules)
    _refuse_nothing(source, planned, rules)
    if dry_run:
        return planned, None
    with progress("packing", sum(tensor.nbytes for tensor in tensors.values())) as done:
        packing = pack_tensors(tensors, rules, sparse=sparse, progress=done)
    file = write(source, out, PACKED_NAME, packing.tensors, force=force, metadata={RECIPE: str(rules)})
    return packing.reports, file


def _refuse_nothing(source: Checkpoint, planned: list[TensorReport], rules: Recipe | None) -> None:
    """Refuse a recipe that packs no weight, as octavo.pack_model does."""
    if not any(report.format for report in planned):
        raise FormatError(
            f"{source.path}: the recipe '{rules}' packs none of its weights; octavo recipe '{rules}' --model "
            f"{source.path} shows what each rule reaches"
        )


def _show(notes: list[str]) -> int:
    """Print notes; return their number."""
    from octavo.display.console import console

    stdout = console()
    for note in notes:
        stdout.print(note)
    return len(notes)


def _print(
    source: Checkpoint, reports: list[TensorReport], file: Path | None, notes: list[str], *, sparse: bool
) -> None:
    from octavo.display.console import console, print_table
    from octavo.display.numbers import size
    from octavo.model_folder.pack_checkpoint import bits_per_weight
    from octavo.model_folder.weight_tables import packing_table

    stdout = console()
    print_table(stdout, packing_table(reports))
    stdout.print()
    if file is None:
        after = sum(report.nbytes for report in reports)
        stdout.print(f"would pack {size(source.nbytes)} to about {size(after)}; nothing was written")
        if sparse:
            stdout.print("sizes are those of dense codes: zeros are counted when weights are packed")
    else:
        after = file.stat().st_size
        stdout.print(f"packed weights: {bits_per_weight(reports):.4g} bits per element")
        ratio = source.nbytes / after
        change = f"{ratio:.2f}x smaller" if ratio >= 1 else f"{1 / ratio:.2f}x larger"
        stdout.print(f"on disk: {size(source.nbytes)} -> {size(after)} ({change}): {file}")
        tell_left_behind(source, stdout)
    _show(notes)


def _print_json(source: Checkpoint, reports: list[TensorReport], file: Path | None, notes: list[str]) -> None:
    """Print what was packed, or would be: bytes of the file are those of its tensors where none was written."""
    from octavo.display.console import print_json
    from octavo.model_folder.pack_checkpoint import bits_per_weight
    from octavo.model_folder.weight_tables import packing_dict

    print_json(
        {
            "path": str(source.path),
            "file": None if file is None else str(file),
            "bytes_before": source.nbytes,
            "bytes": sum(report.nbytes for report in reports) if file is None else file.stat().st_size,
            "bits_per_element": bits_per_weight(reports),
            "tensors": [packing_dict(report) for report in reports],
            "notes": notes,
        }
    )
