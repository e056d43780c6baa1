"""``octavo graph``: what is in a model, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import ForceOption, JsonOption, read_recipe
from octavo.cli._foreign_files import folder_of
from octavo.storage import files
from octavo.storage.outputs import check_output

if TYPE_CHECKING:
    from octavo.graph import Costs, Graph, Pipeline, PipelineResult


def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="polynomials, minilm, smollm2, the folder of a model, a GGUF file, or package.module:function.",
        ),
    ],
    level: Annotated[str, typer.Option(metavar="module|operator", help="What a row is.")] = "module",
    view: Annotated[
        str | None,
        typer.Option(metavar="fx", help="Nodes as torch.fx names them, with the dictionaries of MASE on each."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="TEXT|FILE", help="Price the model as packed by this recipe.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="INPUT", help="Leave an input out, such as labels; may be repeated.")
    ] = None,
    diff: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Show what that model has more, less and otherwise.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples that costs are given for, default 1.")] = None,
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens of a sample, default 128.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Another size, such as one that depends on values; may be repeated."),
    ] = None,
    pipeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run the passes of a TOML or JSON file first, and show what they make."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts, one a line or labelled, or objects with text or chat messages (.jsonl), "
            "for passes that calibrate and for --view.",
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field of the text in .jsonl.  [default: text]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Write the model that --pipeline makes.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page that folds and shows costs by colour.")
    ] = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print the graph for Graphviz.")] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Show the layers or operators of a model, and their costs.

    Equal layers stand in one row. Nothing is computed: torch.export follows the model on tensors without values, so
    large models take seconds. Of a GGUF file the blocks that a format holds are packed layers; --recipe prices it as
    octavo pack packs it anew. Costs are multiply-adds, bit operations, bytes of weights, traffic and peak memory. An
    operator whose cost is not known is listed by name. package.module:function takes nothing and returns a model and
    its inputs. A third value is batches for passes that calibrate.

    \b
    Examples:
      octavo graph minilm
      octavo graph smollm2 --recipe int4:g32
      octavo graph minilm --recipe 'int4:g32 input=int8' --batch 8
      octavo graph bert/ --level operator
      octavo graph bert/ --view fx --data texts.txt        placeholder, call_module ..., and three dictionaries
      octavo graph bert/ --without labels --diff bert/     what do labels add?
      octavo graph bert/ --html bert.html                  a page that folds, one file
      octavo graph bert/ --pipeline small.toml --diff bert/  what do its passes change?
      octavo graph bert/ --pipeline static.toml --data texts.txt -o bert-static/
      octavo graph mymodels:tagger --dot | dot -Tsvg -o tagger.svg
    """
    from octavo.compress.graph_subjects import subject
    from octavo.display.console import console, print_json, print_table
    from octavo.errors import ModelError
    from octavo.graph import Pipeline, capture, to_dot, to_html
    from octavo.graph import diff as difference
    from octavo.model_folder.save_load import save_model
    from octavo.storage.named_models import resolved

    if level not in ("module", "operator"):
        raise ModelError(f"--level {level!r}; accepted are module and operator")
    if view is not None:
        others = {"--level": level != "module", "--diff": diff, "--dot": dot, "--html": html, "--pipeline": pipeline}
        _check_view(view, [name for name, value in {**others, "--recipe": recipe}.items() if value])
    if pipeline is None:
        if out is not None:
            raise ModelError("--out writes the model that --pipeline makes; give the file of a pipeline")
        if data is not None and view is None:
            raise ModelError("--data calibrates passes of --pipeline; give the file of a pipeline")
    if html is not None and (dot or diff is not None):
        raise ModelError(f"--html shows the model alone; leave {'--dot' if dot else '--diff'} out")
    if out is not None:
        check_output(resolved(model), out, is_folder=True, overwrite=force)
    given = _sizes(size or ())
    if view is not None:
        _show_fx(model, data, field, without or (), {"batch": batch, "sequence": sequence, **given}, json)
        return
    rules = None if recipe is None else read_recipe(recipe)
    passes = None if pipeline is None else Pipeline.of(pipeline)
    if passes is None:
        made, graph = None, capture(*subject(model, without or (), priced=rules is not None))
    else:
        made = _run(passes, model, data, field, without or ())
        if out is not None:
            save_model(made.model, out)
        graph = capture(made.model, made.inputs)
    if level == "operator":
        graph.require_operators("--level operator")
    if dot:
        print(to_dot(graph, "operator" if level == "operator" else "module"))
        return
    stdout = console()
    for name, report in () if made is None or json else made.reports:
        stdout.print(f"{name}:")
        print_table(stdout, report.to_table())
        stdout.print()
    if diff is not None:
        found = difference(graph, capture(*subject(diff)))
        if json:
            print_json(found.as_dict())
        elif found:
            print_table(stdout, found.to_table())
        else:
            stdout.print("no difference")
        return
    costs = graph.costs(rules)
    sizes = _all_sizes(costs, {"batch": batch, "sequence": sequence, **given})
    if html is not None:
        with files.whole(html, "w") as file:
            file.write(to_html(graph, rules, **sizes))
    if json:
        ran = {} if made is None else made.as_dict()
        print_json({**graph.as_dict(), "costs": costs.as_dict(**sizes), **ran})
        return
    print_table(stdout, _operators(graph, costs, sizes) if level == "operator" else _modules(graph, costs, sizes))
    stdout.print()
    print_table(stdout, costs.to_table(**sizes))
    stdout.print()
    stdout.print(f"{graph}")
    stdout.print(f"costs at {_size_text({**costs.sizes, **sizes})}")
    for what, path in (("page", html), ("model", out)):
        if path is not None:
            stdout.print(f"{what}: {path}")


def _check_view(view: str, others: Sequence[str]) -> None:
    """Raise ModelError for another view than fx, and for an option that says otherwise what is shown."""
    from octavo.errors import ModelError

    if view != "fx":
        raise ModelError(f"--view {view!r}; accepted is fx")
    if others:
        raise ModelError(f"--view fx shows the nodes of the model as it is; leave {others[0]} out")


def _show_fx(
    model: str,
    data: Path | None,
    field: str | None,
    without: Sequence[str],
    sizes: Mapping[str, int | None],
    json: bool,
) -> None:
    """Print the nodes of FX with common, software and hardware."""
    from octavo.compress.graph_subjects import pipeline_subject
    from octavo.display.console import console, print_json, print_table
    from octavo.graph import Pipeline, capture, fx_nodes

    with folder_of(model, packed=True) as place:
        network, inputs, batches = pipeline_subject(place, Pipeline([]), data, without, field)
    graph = capture(network, inputs)
    nodes = fx_nodes(graph, network, batches or ())
    costs = graph.costs()
    chosen = _all_sizes(costs, sizes)
    costs.at(**chosen)  # refuses a size that the graph does not have
    chosen = {**costs.sizes, **chosen}
    rows = [node.as_dict(**chosen) for node in nodes]
    if json:
        print_json({"model": graph.model_class, "sizes": chosen, "nodes": rows})
        return
    stdout = console()
    print_table(stdout, _fx_table(rows))
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(node.op for node in nodes).items())
    stdout.print()
    stdout.print(f"{graph.model_class}: {kinds}")
    stdout.print(f"hardware at {_size_text(chosen)}; --json has every field of common, software and hardware")


def _fx_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a row for each node of FX: what it reads and makes, the ranges known, and the work."""
    from octavo.display.console import table
    from octavo.display.numbers import size

    def shapes(facts: Mapping[str, Any]) -> str:
        texts = (
            " x ".join(map(str, fact["shape"])) + " " + (fact["format"] or fact["dtype"]) for fact in facts.values()
        )
        return ", ".join(text.strip() for text in texts)

    def ranges(software: Mapping[str, Any]) -> str:
        tensors = {**software["args"], **software["results"]}
        known = {name: fact["statistics"] for name, fact in tensors.items() if fact["statistics"] is not None}
        texts = [f"{name.rpartition('.')[2]} {s['low']:.3g} .. {s['high']:.3g}" for name, s in known.items()]
        return ", ".join([*texts, *(f"{role} {fact['format']}" for role, fact in software["calibration"].items())])

    grid = table(
        "kind", "name", "target", "reads", "common: results", "software: ranges, calibration",
        ">hardware: multiply-adds", ">bit operations", ">traffic", "device",
    )  # fmt: skip
    for row in rows:
        work = row["hardware"]
        grid.add_row(
            row["op"],
            row["name"],
            row["target"],
            ", ".join(row["inputs"]),
            shapes(row["common"]["results"]),
            ranges(row["software"]),
            *("unknown" if work[name] is None else f"{work[name]:,}" for name in ("macs", "bitops")),
            "unknown" if work["bytes"] is None else size(work["bytes"]),
            work["placement"] or "",
        )
    return grid


def _all_sizes(costs: Costs, sizes: Mapping[str, int | None]) -> dict[str, int]:
    """Return the sizes that costs are given for: one sample of 128 tokens but for what the command line says."""
    usual = {name: count for name, count in (("batch", 1), ("sequence", 128)) if name in costs.sizes}
    return {**usual, **{name: count for name, count in sizes.items() if count is not None}}


def _size_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "the sizes that the model fixes"


def _run(passes: Pipeline, model: str, data: Path | None, field: str | None, without: Sequence[str]) -> PipelineResult:
    """Run a pipeline on the model that a command names; data that is missing is told as its option."""
    from octavo.compress.graph_subjects import pipeline_subject
    from octavo.errors import CalibrationError

    with folder_of(model, packed=False) as place:
        given, inputs, batches = pipeline_subject(place, passes, data, without, field)
    try:
        return passes.run(given, inputs=inputs, calibration=batches, inplace=True)
    except CalibrationError as error:
        if batches is not None:
            raise
        raise CalibrationError(
            f"{error}; on the command line batches come from --data FILE, or from package.module:function as its third "
            "value"
        ) from None


def _sizes(given: Sequence[str]) -> dict[str, int]:
    """Read ``NAME=N``. Raises ModelError for other texts."""
    from octavo.errors import ModelError

    found = {}
    for text in given:
        name, _, number = text.partition("=")
        if not name or not (number.isascii() and number.isdigit()):
            raise ModelError(f"--size {text!r}; give a name and a whole number, such as --size u0=64")
        found[name] = int(number)
    return found


def _modules(graph: Graph, costs: Costs, sizes: dict[str, int]) -> Any:
    """Return a row for each module, equal ones once with their count; costs of all of them."""
    from octavo.display.console import table
    from octavo.display.numbers import size
    from octavo.graph.records import at

    made = table("module", "class", ">count", ">operators", ">weights", ">multiply-adds", ">traffic")
    by_path, all_sizes = costs.by_module(graph), {**costs.sizes, **sizes}
    weights = {node.module_path: node.weights for node in graph.module_nodes}
    for block in graph.blocks:
        rows = [by_path[path] for path in block.paths if path in by_path]
        held = {name for path in block.paths for name in weights[path]}
        made.add_row(
            block.paths[0] or "(the model)" if block.count == 1 else f"{block.paths[0]} ... {block.paths[-1]}",
            block.module_class,
            f"{block.count}",
            f"{block.operators}" if rows else "",
            f"{sum(graph.tensors[name].elements for name in held):,}",
            f"{sum(at(row.macs, all_sizes) for row in rows):,}" if rows else "",
            size(sum(at(row.traffic_bytes, all_sizes) for row in rows)) if rows else "",
        )
    return made


def _operators(graph: Graph, costs: Costs, sizes: dict[str, int]) -> Any:
    """Return a row for each operator."""
    from octavo.display.console import table
    from octavo.graph.records import at

    made = table("operator", "module", ">shape", "dtype", "format", ">multiply-adds", ">bit operations")
    all_sizes = {**costs.sizes, **sizes}
    for node, row in zip(graph.nodes, costs.rows, strict=True):
        results = [graph.tensors[name] for name in node.outputs]
        made.add_row(
            node.op,
            node.module_path,
            ", ".join(" x ".join(map(str, record.shape)) or "scalar" for record in results),
            ", ".join(str(record.dtype).removeprefix("torch.") for record in results),
            ", ".join(record.format for record in results if record.format),
            f"{at(row.macs, all_sizes):,}" if row.known else "unknown",
            f"{at(row.bitops, all_sizes):,}" if row.known else "unknown",
        )
    return made
