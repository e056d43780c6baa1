"""``octavo eval``: measures a model on data from a file."""

from __future__ import annotations

import json as jsonlib
import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.cli._foreign_files import folder_of
from octavo.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from octavo.lab.polynomials.evaluate import Mistake
    from octavo.train import Bound
    from octavo.train.measurement import Measurement


def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="polynomials, minilm, smollm2, the folder of a model, packed or not, or a GGUF file."
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="A text (perplexity), labelled texts in .tsv or .jsonl (accuracy), or lines left=right of "
            "polynomials; plain, .xz or .gz. Texts may be objects with text or chat messages (.jsonl).",
        ),
    ],
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Measure the agreement with this model, on texts, one a line.")
    ] = None,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field of the text in .jsonl.  [default: text]")
    ] = None,
    context: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a window.  [default: the model's, up to 1024]")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens from window to window.  [default: the context]")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of the text at most; no more of the file is read.")
    ] = None,
    leaks: Annotated[
        str,
        typer.Option(
            metavar="refuse|report",
            help="A model whose losses move with what they must not see is refused, or measured and the movement told.",
        ),
    ] = "refuse",
    guard_calls: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Calls of the model that look for such movement, at most.  [default: 40, or a twentieth of all]",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--model", metavar="FOLDER", help="polynomials: an exported model.")
    ] = None,
    beam: Annotated[int, typer.Option(metavar="N", help="polynomials: hypotheses kept a line; 1 is greedy.")] = 1,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="polynomials: float, bfloat16, or integer: int8, greedy only.")
    ] = "float",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="polynomials.  [default: all cores]", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="polynomials: cpu; cuda or cuda:N: a GPU.")] = "cpu",
    mistakes: Annotated[int, typer.Option(metavar="N", help="polynomials: show the first N wrong lines.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="polynomials: write all wrong lines, a JSON object a line."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure perplexity, accuracy, agreement or exact match.

    A language model gets a plain text. Its perplexity is exact: every token is predicted once, from the window before
    it. Masked diffusion has no exact loss, so an upper bound is estimated, and told as one. A classifier gets
    labelled texts: lines label<TAB>text or text<TAB>label, or JSON objects with text and label.
    Any model of texts is compared with another one by --against. Intervals are of 95 %.

    A perplexity comes with a check that no token is seen before it is predicted. The check calls the model up to 40
    times more, which is most of the time on a short text; --guard-calls 4 makes it shorter and weaker.

    polynomials, and folders that octavo lab train polynomials wrote, get lines left=right. The native engine must give
    the right side to the last character. A file of any size streams through.

    \b
    Examples:
      octavo eval gpt2/ --data wikitext2_test.txt --context 512 --stride 256
      octavo eval llama/ --data text.txt --context 512 --tokens 20000 --guard-calls 4
      octavo eval sentiment/ --data sst2_dev.tsv.xz --json
      octavo eval packed-minilm/ --against minilm --data texts.txt
      octavo eval polynomials --data lines.txt
      octavo eval polynomials --data lines.txt.xz --model octavo-hybrid/model --mistakes 10
    """
    from octavo.lab.polynomials.shipped import NAME, is_polynomial

    if is_polynomial(model) and against is None:
        given = Path(model) if folder is None and model != NAME else folder
        _polynomials(data, given, beam, precision, threads, device, mistakes, out, json)
        return
    if folder is not None or out is not None or mistakes or beam != 1:
        raise SettingError("--model, --beam, --mistakes and --out are of polynomials; leave them out")
    from octavo.train.measurement import Measurement

    if leaks not in ("refuse", "report"):
        raise SettingError(f"--leaks is {leaks!r}; accepted are refuse and report")
    windows = {"context": context, "stride": stride, "tokens": tokens, "leaks": leaks, "guard_calls": guard_calls}
    with ExitStack() as stack:
        subject = stack.enter_context(folder_of(model, packed=True))
        other = None if against is None else stack.enter_context(folder_of(against, packed=True))
        found = _measured(subject, data, field, other, windows)
    if isinstance(found, Measurement):
        _show(found, model, data, against, json)
    else:
        _show_bound(found, model, data, json)


def _measured(
    model: str,
    data: Path,
    field: str | None,
    against: str | None,
    windows: Mapping[str, Any],
) -> Measurement | Bound:
    """Measure by ``windows``: the options of :func:`octavo.evaluate` that are of a perplexity."""
    from octavo.compress.by_name import find
    from octavo.compress.text_models import check_task, labelled_for, open_text_model, template_of
    from octavo.data.calibration_texts import read_texts
    from octavo.data.labelled_files import is_json_lines
    from octavo.display.progress import Bar
    from octavo.train import likelihood_bound
    from octavo.train.evaluate_model import context_of, evaluate

    tokens = windows["tokens"]
    with ExitStack() as stack:
        bar = stack.enter_context(Bar("evaluating", 1.0, unit="share"))

        def show(done: int, total: int) -> None:
            bar.move(done / total if total else 0.0)

        if against is not None:
            texts = read_texts(data, field=field, tokenizer=template_of(find(against), data))
            other, mine = open_text_model(against), open_text_model(model)
            batches = other.batches(texts, lines=not is_json_lines(data))
            return evaluate(mine.model, batches, against=other.model, progress=show, **windows)
        opened = open_text_model(model)
        check_task(opened)
        if hasattr(getattr(opened.model, "objective", None), "bound"):
            if windows["stride"] is not None or windows["leaks"] != "refuse" or windows["guard_calls"] is not None:
                raise SettingError(
                    "--stride, --leaks and --guard-calls are of an exact perplexity; MODEL has a bound on it alone: "
                    "leave them out"
                )
            ids = _ids(opened.tokenizer, data, field, tokens)
            length = context_of(opened.model) if windows["context"] is None else windows["context"]
            return likelihood_bound(opened.model, ids, context=length, tokens=tokens, progress=show)
        is_text = opened.task == "language"
        examples: Any
        if not is_text:
            examples = labelled_for(opened, data, field)
        elif field is not None or is_json_lines(data):
            examples = _ids(opened.tokenizer, data, field, tokens)
        else:
            examples = _text(opened.tokenizer, data, tokens)
        return evaluate(opened.model, examples, tokenizer=opened.tokenizer, progress=show, **windows)


def _ids(tokenizer: Any, data: Path, field: str | None, tokens: int | None) -> list[int]:
    """Return the tokens of a file: of JSON objects those of all texts, with the end-of-text token between them."""
    from octavo.data.calibration_texts import end_of_text, read_texts, text_ids
    from octavo.data.labelled_files import is_json_lines

    if field is None and not is_json_lines(data):
        return text_ids(tokenizer, _text(tokenizer, data, tokens))
    end = end_of_text(tokenizer)
    ids: list[int] = []
    for text in read_texts(data, field=field, tokenizer=tokenizer):
        ids += [*(end if ids else ()), *text_ids(tokenizer, text)]
    return ids


# Tokens behind those that are measured: where a text is cut, its last tokens are not those of the whole.
_BEHIND = 256


def _text(tokenizer: Any, data: Path, tokens: int | None) -> str:
    """Return the text of a file, or as much of it as gives ``tokens``."""
    from octavo.data.calibration_texts import text_ids
    from octavo.data.labelled_files import TEXT_BYTES, read_text_file
    from octavo.train.token_windows import check_whole

    if tokens is None:
        return read_text_file(data, way_out="give --tokens N to measure its beginning")
    wanted = check_whole("--tokens", tokens) + _BEHIND
    return read_text_file(
        data, lambda text: len(text_ids(tokenizer, text)) > wanted, nbytes=min(8 * wanted, TEXT_BYTES),
        way_out="give a smaller --tokens",
    )  # fmt: skip


def _show(found: Measurement, model: str, data: Path, against: str | None, json: bool) -> None:
    from octavo.display.console import console, print_json

    if json:
        named = {"model": model, "data": str(data)} | ({} if against is None else {"against": against})
        print_json({**named, **found.as_dict()})
        return
    stdout = console()
    share = found.metric == "accuracy"
    text = f"{found.value:.3%}" if share else f"{found.value:.6g}"
    if found.low is not None and found.high is not None:
        text += f" ({found.low:.3%} to {found.high:.3%})" if share else f" ({found.low:.6g} to {found.high:.6g})"
    stdout.print(f"{found.metric:18} {text}")
    stdout.print(f"{'examples':18} {found.count:,}")
    for name, value in {**found.details, **found.setup}.items():
        stdout.print(f"{name:18} {value:,.6g}")
    if found.checked:
        stdout.print(f"{'checked':18} {_checked(found.checked)}")


def _checked(checked: Mapping[str, float | None]) -> str:
    """Return how much of an evaluation its guard made again, for people."""
    moved = "nothing to change" if checked["moved"] is None else f"losses moved by {checked['moved']:.2g} nats at most"
    return (
        f"{checked['windows']:,} windows, {checked['cuts']:,} cuts, {checked['positions']:,} losses made again in "
        f"{checked['batches']:,} batches: {moved}"
    )


def _show_bound(found: Bound, model: str, data: Path, json: bool) -> None:
    """Show an upper bound, and that it is one."""
    from octavo.display.console import console, print_json

    told = "an upper bound, estimated over random draws; it compares with no exact loss"
    facts = {"nats": found.nats, "error": found.error, "tokens": found.tokens, "context": found.context}
    if json:
        named = {"model": model, "data": str(data), "metric": "bound", "told": told}
        print_json({**named, **facts, "draws": found.draws, "examples": found.source_hash})
        return
    stdout = console()
    stdout.print(f"{'bound':18} at most {found.nats:.6g} nats a token, standard error {found.error:.2g}")
    stdout.print(f"{'perplexity':18} at most {math.exp(found.nats):.6g}")
    for name, value in (("tokens", found.tokens), ("context", found.context), ("draws", found.draws)):
        stdout.print(f"{name:18} {value:,}")
    stdout.print(told)


def _polynomials(
    data: Path,
    model: Path | None,
    beam: int,
    precision: str,
    threads: int | None,
    device: str,
    mistakes: int,
    out: Path | None,
    json: bool,
) -> None:
    """Count the lines of a file whose right side a model gives exactly, to the last character.

    The engine answers the left sides, natively and without torch; a file of any size streams through. A line that the
    model cannot read counts as wrong; one that is no left=right line is an error.
    """
    from octavo.display.console import console, print_json
    from octavo.lab.polynomials.evaluate import evaluate
    from octavo.lab.polynomials.native_engine import Engine
    from octavo.storage.files import whole

    if mistakes < 0:
        raise SettingError(f"--mistakes is {mistakes}; accepted are 0 and more")
    if out is not None and out.is_file() and data.is_file() and out.samefile(data):
        raise SettingError(f"--out is {out}, the file of --data, whose lines would be lost; give another --out")
    engine = Engine.load(model, precision=precision, threads=threads, device=device)  # type: ignore[arg-type] # load checks it
    shown: list[Mistake] = []
    with ExitStack() as stack:
        file = None if out is None else stack.enter_context(whole(out, "w"))

        def mistaken(mistake: Mistake) -> None:
            if len(shown) < mistakes:
                shown.append(mistake)
            if file is not None:
                file.write(jsonlib.dumps(mistake.as_dict()) + "\n")

        found = evaluate(engine, data, beam=beam, mistaken=mistaken, progress=_bar(stack, data))
    if json:
        listed = {"mistakes": [mistake.as_dict() for mistake in shown]} if mistakes else {}
        print_json({"data": str(data), "model": None if model is None else str(model), **found.as_dict(), **listed})
        return
    stdout = console()
    for label, text in found.results():
        stdout.print(f"{label:34} {text}")
    for mistake in shown:
        answer = f"answered {mistake.given}" if mistake.given is not None else f"no answer: {mistake.reason}"
        stdout.print(f"line {mistake.line}: {mistake.left}={mistake.right}, {answer}")
    if out is not None:
        stdout.print(f"{'written':34} {out}: {found.lines - found.exact:,} mistakes")


def _bar(stack: ExitStack, data: Path) -> Callable[[int, int], None]:
    """Show a bar over the bytes of a file, on a terminal."""
    from octavo.display.progress import progress

    advance: Any = stack.enter_context(progress("evaluating", data.stat().st_size))
    before = 0

    def show(lines: int, nbytes: int) -> None:
        nonlocal before
        advance(f"{lines:,} lines", nbytes - before)
        before = nbytes

    return show
