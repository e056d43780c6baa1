"""``octavo check``: finds what is wrong in a quantised checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import ForceOption, JsonOption
from octavo.storage.outputs import check_output

EXIT_FINDINGS = 1


def run(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A GGUF or safetensors file, or a folder of safetensors files; minilm, smollm2."
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The float original: every layer is decoded and compared with it."),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="READER", help="vllm, llama.cpp, transformers or octavo: how it treats each layer."
        ),
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write a copy with the exact repairs; the checkpoint stays as it is."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with all findings.")] = None,
    list_rules: Annotated[bool, typer.Option("--rules", help="List all rules.")] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Find what is wrong in a quantised checkpoint.

    Tensors and configurations are read as they are stored, on the CPU, a megabyte at a time. Read are GGUF files,
    compressed-tensors, GPTQ, AWQ, ModelOpt, bitsandbytes, MXFP4 of gpt-oss, float8 of DeepSeek, float models, and our
    own folders. A finding names the tensor, the block and the byte, and says what readers do with it. Rules of severity
    'suspect' are statistics; --base makes them sure.

    Exit code: 0 without findings, 1 with findings, 2 for a checkpoint that cannot be read.

    \b
    Examples:
      octavo check smollm2.gguf
      octavo check llama-int4/ --for vllm
      octavo check llama-nvfp4/ --base llama/ --json
      octavo check llama-gptq/ --fix llama-gptq-repaired/
      octavo check llama-awq/ --html findings.html
      octavo check --rules
    """
    from octavo.display.console import console, print_json, print_table
    from octavo.display.numbers import size
    from octavo.display.progress import progress
    from octavo.interchange.check import tables
    from octavo.interchange.check.repair import write_repaired
    from octavo.interchange.check.run_check import check_path, rules
    from octavo.report.html_page import check_page
    from octavo.storage import files
    from octavo.storage.named_models import resolved

    out = console()
    if list_rules:
        if json:
            print_json(rules())
        else:
            print_table(out, tables.rule_table())
        return
    if path is None:
        raise typer.BadParameter("give a FILE or folder, or --rules")
    path = resolved(path)
    if fix is not None:
        check_output(path, fix, is_folder=path.is_dir(), overwrite=force)
    with progress("checking", _nbytes(path) * (1 if base is None else 2)) as done:
        checked = check_path(path, base=base, reader=reader, progress=done)
    repaired = []
    if fix is not None and any(one.edits for one in checked.findings):
        repaired = write_repaired(path, fix, checked.findings, overwrite=force)
    if html is not None:
        files.write(html, check_page(checked.as_dict()))
    if json:
        print_json({**checked.as_dict(), "repaired": [one.rule.id for one in repaired]})
    else:
        source, findings = checked.model.source, checked.findings
        if len(findings):
            print_table(out, tables.finding_table(findings))
            out.print()
            for line in tables.rule_lines(findings):
                out.print(line, soft_wrap=True)
            out.print()
        if checked.agreements:
            print_table(out, tables.agreement_table(checked.agreements))
            out.print()
        if reader is not None and checked.routes:
            print_table(out, tables.route_table(checked.routes))
            out.print()
        counts = ", ".join(f"{count} {kind}" for kind, count in checked.model.kinds.items()) or "no quantised layers"
        bits = (
            f", {checked.bits:.3f} bits a parameter, {checked.coverage:.1%} of linear weights" if checked.bits else ""
        )
        out.print(f"{path}: {checked.kind}, {len(source.tensors)} tensors, {size(source.nbytes)}; {counts}{bits}")
        severities = [one.severity for one in findings]
        counted = [(severities.count(kind), kind) for kind in ("error", "warning", "suspect")]
        summary = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for count, kind in counted)
        out.print(f"findings: {summary}" if len(findings) else "findings: none")
        if fix is not None:
            summary = ", ".join(dict.fromkeys(one.rule.id for one in repaired))
            out.print(
                f"written: {fix}, repaired: {summary}" if repaired else "nothing to repair exactly; nothing written"
            )
    if len(checked.findings):
        raise typer.Exit(EXIT_FINDINGS)


def _nbytes(path: Path) -> int:
    """Return the bytes of weights at a path, for the bar."""
    if not path.is_dir():
        return path.stat().st_size if path.exists() else 0
    return sum(file.stat().st_size for file in path.iterdir() if file.suffix in (".safetensors", ".gguf"))
