"""``octavo recipe``: checks a recipe, and shows what it does to a model."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli._app import JsonOption, read_recipe


def run(
    recipe: Annotated[str, typer.Argument(metavar="TEXT|FILE", help="A recipe, or a file NAME.toml that holds one.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FOLDER",
            help="polynomials, minilm, smollm2, a model folder or file, a GGUF file: show who gets what.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check a recipe, or show what it does to a model.

    A recipe is rules separated by ';'. Each is [SELECTOR] [ROLE=]FORMAT[@CHOICE] ..., and for every tensor the last
    rule that matches decides. A tensor that no rule matches stays as it is; a rule that matches nothing is an error.
    Without --model the recipe is printed as TOML. With --model a table shows the format of every layer. Where octavo
    pack packs tensors without the model, it shows the tensors, and why.

    \b
    selector
      (none)             every Linear, Embedding, convolution
      encoder.*.query    a glob: * stays between dots, ** crosses them
      type:Linear        a class, subclasses included
      name:encoder.0     a path, exactly
      regex:.*\\.key      a regular expression for all of the path
      first:Linear last:Linear last:glob:encoder.**
    role
      weight (the default), input, output, bias
    format
      any of octavo formats; keep leaves the tensor as it is; int32 for a bias on the integer path
    choice
      of scales from data: @minmax @quantile:0.999 @mse @kl @lsq; of weights: @gptq @hqq
      of block scales (mx*, bfp, bm, blog, nvfp4): @floor @ceil @mse

    \b
    Examples:
      octavo recipe 'int4:g32; last:Linear keep' --model polynomials
      octavo recipe 'type:Linear weight=int8:channel input=int8@quantile:0.999 bias=int32; embed*=mxint8'
      octavo recipe recipe.toml --model bert/ --json
    """
    from octavo.display.console import console
    from octavo.recipe.explanation_tables import print_explanation

    read = read_recipe(recipe)
    if model is None:
        print(read.to_json() if json else read.to_toml().rstrip("\n"))
        return
    from octavo.compress.by_name import find
    from octavo.model_folder.explain_folder import explain_folder

    explained = explain_folder(read, find(model))
    if json:
        print(explained.to_json())
    else:
        print_explanation(console(), explained)
