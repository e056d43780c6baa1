"""``octavo prune``: sets the least important weights of a model folder to 0."""

from __future__ import annotations

from json import dumps, loads
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import ForceOption, JsonOption, OutOption, tell_left_behind
from octavo.errors import ModelError

DATA_FREE = ("magnitude", "random")


def run(
    path: Annotated[Path, typer.Argument(metavar="IN", help="The folder of a float model.")],
    out: OutOption,
    sparsity: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of the units that goes, 0 to below 1; N:M has its own.")
    ] = None,
    criterion: Annotated[str, typer.Option(metavar="NAME", help="magnitude or random.")] = "magnitude",
    granularity: Annotated[
        str, typer.Option(metavar="UNIT", help="element, row, column, block:RxC, N:M, head, neuron or layer.")
    ] = "element",
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="local, global or isomorphic.  [default: isomorphic for structures, else local]"
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="SELECTOR", help="Layers to prune, several times.  [default: linear and conv layers]"),
    ] = None,
    floor: Annotated[float, typer.Option(metavar="SHARE", help="Least share kept of each, but in local scope.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Of random.")] = 0,
    keep_masks: Annotated[bool, typer.Option("--keep-masks", help="Write masks, for training to go on.")] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Take heads, neurons and layers that are 0 out of the model.")
    ] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Set the least important weights of a model to 0.

    IN is a folder of transformers or of Octavo with float weights; the output is a folder that octavo.load_model reads
    and octavo pack packs. The number of zeros is exact. Zeros save no bytes and no time by themselves: octavo pack
    --sparse stores them in fewer bytes, and --compact takes heads, neurons and layers that are 0 out, with the same
    output. Criteria that need data or training (wanda, taylor, movement), and schedules, are in Python:
    octavo.prune_model. Selectors are those of octavo recipe.

    \b
    Examples:
      octavo prune bert/ -o bert-half/ --sparsity 0.5
      octavo prune bert/ -o bert-24/ --granularity 2:4 --target 'encoder.**'
      octavo prune bert/ -o bert-heads/ --sparsity 0.5 --granularity head --compact
    """
    from octavo.display.console import console, print_table
    from octavo.display.numbers import size
    from octavo.model_folder.pack_folder import save_folder
    from octavo.model_folder.save_load import load_model
    from octavo.model_folder.weight_files import PACKED_NAME, Checkpoint, check_target
    from octavo.prune import compact_model, fold_model, prune_model, report

    if criterion not in DATA_FREE:
        raise ModelError(
            f"--criterion is {criterion!r}; accepted are {' and '.join(DATA_FREE)}: others need data or training, "
            "which octavo.prune_model takes"
        )
    if compact and keep_masks:
        raise ModelError("--compact and --keep-masks: what is taken out has no mask; give one of them")
    source = Checkpoint.open(path)
    if not source.is_folder:
        raise ModelError(f"{path}: a file of tensors; a model is pruned, so give its folder")
    check_target(source, out, PACKED_NAME, force=force)
    model = prune_model(
        load_model(path), sparsity, criterion=criterion, granularity=granularity, scope=scope, targets=target or None,
        floor=floor, seed=seed, inplace=True, progress=False,
    )  # fmt: skip
    told = report(model)
    model = model if keep_masks else fold_model(model, inplace=True)
    taken = None
    if compact:
        model, taken = compact_model(model, inplace=True)
    file = save_folder(source, out, model, force=force, own_config=compact)
    if json:
        known = {} if taken is None else {"compacted": taken.to_rows(), "parameters": list(taken.parameters)}
        typer.echo(dumps({**loads(told.to_json()), **known}, indent=2, ensure_ascii=False))
        return
    stdout = console()
    print_table(stdout, told.to_table())
    stdout.print()
    if taken is not None:
        print_table(stdout, taken.to_table())
        stdout.print()
    stdout.print(f"on disk: {size(source.nbytes)} -> {size(file.stat().st_size)}: {file}")
    tell_left_behind(source, stdout)
