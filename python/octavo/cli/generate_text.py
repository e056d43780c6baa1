"""``octavo generate``: continues texts with the native decoder, or, of masked diffusion, through torch."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.cli._standard_input import standard_lines
from octavo.cli._terminal_text import write_text
from octavo.cli.chat import CacheOption, SetOption, template_variables
from octavo.errors import OctavoError
from octavo.storage.reading import read_json

if TYPE_CHECKING:
    from octavo.engine.text_generator import Sampling, TextGenerator


def run(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder of a language model, packed or not, a GGUF file, or smollm2."),
    ],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]...",
            help="Texts to continue; without any, the lines of standard input, where it is no terminal. An empty one "
            "begins a document.",
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens at most.  [default: 128, or as many as fit]", show_default=False)
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most likely token, 1 draws by probability, more draws more evenly.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the most likely tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest tokens of so much probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws; the same seed gives the same text.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may repeat.")] = None,
    steps: Annotated[
        int, typer.Option(min=0, help="Of masked diffusion: steps in which a block is revealed; 0: one an id.")
    ] = 0,
    special: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Special tokens in a prompt: allow, refuse, or split as any text.  [default: refuse]",
            show_default=False,
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Each PROMPT is a message to a chat model; its answer is printed.")
    ] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="With --chat: the system message.")] = None,
    variables: SetOption = None,
    cache: CacheOption = None,
    json: JsonOption = False,
) -> None:
    """Continue texts with a language model, without torch.

    FOLDER is one of a GPT of Octavo, or of a language model of transformers (GPT-2, Llama, Mistral, Qwen, Gemma, Phi
    and more), packed by `octavo pack` or not, or a GGUF file. Packed weights are multiplied as they are, so fewer
    bits are faster. Each prompt is printed with its continuation, as it comes. A text ends with the model's end of
    text, before a --stop text, or after --tokens. Several prompts are continued together; --json prints prompts, texts
    and the seconds that they took. Without a PROMPT, every line of standard input is one; a text of several lines is
    given in quotes. On a terminal, no PROMPT begins a new document.

    With --chat, the chat template of FOLDER makes a conversation of each PROMPT, and the answer alone is printed.
    `octavo chat FOLDER` goes on talking.

    A model that was trained by masked diffusion reveals tokens in steps, not from left to right. It is sampled
    through torch, from its folder as it was trained; --top-k, --top-p and --stop are not for it.

    \b
    Examples:
      octavo generate model "Once upon a time"
      octavo pack model -o small --recipe int4:g32
      octavo generate small "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7 --tokens 200
      octavo generate small "Q: why? A:" "Q: when? A:" --stop "Q:" --json
      octavo generate small --chat "Why is the sky blue?" --system "You answer in one sentence."
      octavo generate small < prompts.txt
    """
    from octavo.display.console import print_json
    from octavo.engine.text_generator import Sampling, TextGenerator
    from octavo.errors import SettingError
    from octavo.storage.named_models import resolved

    folder = resolved(folder)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if special not in (None, "allow", "refuse", "split"):
        raise SettingError(f"--special is {special!r}; accepted are allow, refuse and split")
    if chat and special not in (None, "allow"):
        raise SettingError(
            f"--special is {special!r} with --chat, where special tokens in a message are special tokens; check the "
            "text, and leave --special out"
        )
    if not chat and (system is not None or variables):
        raise SettingError(f"{'--set' if variables else '--system'} is for messages; add --chat")
    texts = prompts or (None if sys.stdin.isatty() else standard_lines()) or [""]
    if _is_diffusion(folder):
        if top_k or top_p != 1 or stop or special not in (None, "refuse") or chat:
            raise SettingError(
                "--top-k, --top-p, --stop, --special and --chat are for autoregressive models; FOLDER is of masked "
                "diffusion"
            )
        _reveal(folder, texts, tokens=tokens or 64, steps=steps, temperature=temperature, seed=seed, json=json)
        return
    if steps:
        raise SettingError(f"--steps is {steps}; accepted is 0, for FOLDER is of no masked diffusion")
    decoder = TextGenerator.load(folder, cache=cache)
    if chat:
        values = template_variables(variables)
        _reply(decoder, texts, sampling, system, json=json, tokens=tokens, stop=stop, variables=values)
        return
    options: dict[str, Any] = {"tokens": tokens, "stop": stop, "special": special or "refuse"}
    if json or len(texts) > 1:
        begin = time.perf_counter()
        found = decoder.generate(texts, sampling, **options)
        seconds = time.perf_counter() - begin
        if json:
            print_json(
                {
                    "texts": [{"prompt": text, "text": more} for text, more in zip(texts, found, strict=True)],
                    "seconds": round(seconds, 6),
                }
            )
            return
        for text, more in zip(texts, found, strict=True):
            write_text(f"{text}{more}\n")
        return
    pieces = decoder.stream(texts[0], sampling, **options)
    write_text(texts[0])
    for piece in pieces:
        write_text(piece)
    write_text("\n")


def _reply(
    decoder: TextGenerator, texts: list[str], sampling: Sampling, system: str | None, *, json: bool, **options: Any
) -> None:
    """Print the answer of a chat model to each of some messages."""
    from octavo.display.console import print_json

    before = [] if system is None else [{"role": "system", "content": system}]
    answers, begin = [], time.perf_counter()
    for text in texts:
        pieces = decoder.stream_chat([*before, {"role": "user", "content": text}], sampling, **options)
        if json:
            answers.append({"prompt": text, "text": "".join(pieces)})
            continue
        for piece in pieces:
            write_text(piece)
        write_text("\n")
    if json:
        print_json({"texts": answers, "seconds": round(time.perf_counter() - begin, 6)})


def _is_diffusion(folder: Path) -> bool:
    """Whether the configuration of a folder names masked diffusion; what is wrong with a folder its reader says."""
    try:
        found = read_json(folder / "config.json").get("objective")
    except (OSError, OctavoError):
        return False
    return isinstance(found, dict) and found.get("name") == "masked_diffusion"


def _reveal(
    folder: Path, prompts: list[str], *, tokens: int, steps: int, temperature: float, seed: int, json: bool
) -> None:
    """Sample from masked diffusion, and print as the native decoder's texts are."""
    from octavo.display.console import console, print_json
    from octavo.lab.language.diffusion_text import DiffusionText

    console(stderr=True).print(
        "a model of masked diffusion: sampled through torch; the native decoder has no such path"
    )
    model = DiffusionText.load(folder)
    begin = time.perf_counter()
    found = model.continued(prompts, tokens=tokens, steps=steps, temperature=temperature, seed=seed)
    seconds = time.perf_counter() - begin
    if json:
        texts = [{"prompt": text, "text": more} for text, more in zip(prompts, found, strict=True)]
        print_json({"texts": texts, "seconds": round(seconds, 6), "sampler": "masked diffusion, torch"})
        return
    for text, more in zip(prompts, found, strict=True):
        write_text(f"{text}{more}\n")
