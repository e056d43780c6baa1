"""The ``octavo`` command, one file per command. Heavy packages load inside commands, so that help answers at once."""

import signal

import typer

from octavo.cli import (
    _other_packages,
    _process,
    chat,
    check,
    compare,
    compress,
    convert,
    cuda,
    doctor,
    embed,
    eval,
    formats,
    generate_text,
    graph,
    inspect,
    pack,
    prune,
    recipe,
    report,
    tokenize,
    unpack,
)
from octavo.cli._app import Commands, tell_warnings, terminate, version
from octavo.cli.lab import bench, expand, study, train

app = typer.Typer(
    cls=Commands,
    name="octavo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def _octavo(
    show_version: version = False,
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks: octavo --debug COMMAND ..."),
) -> None:
    """Octavo packs models: it stores their weights in small number formats, measures the loss, and runs them packed.

    \b
    A language model, in a folder of transformers:
      octavo graph llama/                       its layers, and what they cost
      octavo eval llama/ --data text.txt        its perplexity
      octavo pack llama/ -o small/ --recipe int4:g32
      octavo generate small/ 'Once upon a time'
      octavo chat small/                        talk to it, where it is a chat model
      octavo compress --model llama/ --data text.txt --budget 4.5

    \b
    The model that comes along:
      octavo compress                           choose its formats, pack it, and measure the loss
      octavo lab expand '(7-3*z)*(2*z+5)'       run it

    \b
    More:
      octavo formats mxfp4                      a number format, explained
      octavo compare model.safetensors --formats mxint8,mxfp4,nf4
      octavo recipe 'int4:g32; last:Linear keep' --model polynomials
      octavo embed bert-small/ 'a cat' 'a kitten'      run a packed text encoder
      octavo convert small/ small.gguf --to gguf      a file of llama.cpp, without rounding again
      octavo inspect small/                     the tensors of a file or folder
      octavo check llama-int4/                  what is wrong in a quantised checkpoint of any writer
      octavo report small/ smaller/             compare two compressions
      octavo prune bert/ -o half/ --sparsity 0.5
      octavo tokenize train books.txt -o vocabulary/   learn byte pairs
      octavo lab train gpt --data book.txt      train a language model on any text
      octavo lab study ptq-qat                  accuracy against width, on a model trained in a minute
      octavo doctor                             what this machine has, and what it lacks
    """


app.command("formats")(formats.run)
app.command("compare")(compare.run)
app.command("pack")(pack.run)
app.command("prune")(prune.run)
app.command("recipe")(recipe.run)
app.command("graph")(graph.run)
app.command("unpack")(unpack.run)
app.command("convert", no_args_is_help=True)(convert.run)
app.command("inspect")(inspect.run)
app.command("check")(check.run)
app.command("compress")(compress.run)
app.command("report")(report.run)
app.command("embed")(embed.run)
app.command("generate")(generate_text.run)
app.command("chat", no_args_is_help=True)(chat.run)
app.add_typer(tokenize.app, name="tokenize")
app.command("eval", no_args_is_help=True)(eval.run)
app.add_typer(cuda.app, name="cuda")
app.command("doctor")(doctor.run)

laboratory = typer.Typer(no_args_is_help=True, help="The laboratory: our own models, and questions about formats.")
app.add_typer(laboratory, name="lab")
# Their names of 0.1 are hidden aliases, which go with the next release.
for group, hidden in ((laboratory, False), (app, True)):
    group.add_typer(train.app, name="train", hidden=hidden)
    group.add_typer(bench.app, name="bench", hidden=hidden)
    group.add_typer(study.app, name="study", hidden=hidden)
    group.command("expand", cls=expand.Command, hidden=hidden)(expand.run)


def main() -> None:
    """Run the command line: the console script ``octavo``."""
    signal.signal(signal.SIGTERM, terminate)
    _other_packages.quiet()
    tell_warnings()
    _process.run(lambda: app(prog_name="octavo"))
