"""``octavo cuda``: lists GPUs, compiles kernels ahead of their first use."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli._app import JsonOption

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _cuda() -> None:
    """Look at GPUs, and compile kernels ahead of their first use.

    \b
    Start here:
      octavo cuda info
      octavo cuda prebuild --format mxint8      kernels of one format, for the GPUs of this machine
    """


@app.command("info")
def info(json: JsonOption = False) -> None:
    """Show the driver, GPUs, compiler and folder of kernels.

    \b
    Examples:
      octavo cuda info
      octavo cuda info --json
    """
    from octavo.cuda import device as cuda
    from octavo.cuda import machine
    from octavo.display.console import print_json

    found = cuda.info()
    print_json(machine.cuda_dict(found)) if json else machine.print_sections([machine.cuda_section(found)])


@app.command("prebuild")
def prebuild(
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="ARCH", help="Such as sm_90a; repeatable.  [default: GPUs here, else common ones]"),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(metavar="FORMAT", help="Such as mxint8; repeatable.  [default: all that are listed]"),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", "-j", metavar="N", help="Compile in N processes.  [default: one a core]"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compile kernels into the cache, so that no first use has to.

    Needs NVRTC (pip install nvidia-cuda-nvrtc) and no GPU. OCTAVO_CACHE_DIR names the folder, which can be copied to
    another machine of the same CUDA version. Kernels that are there are not compiled again.

    \b
    Examples:
      octavo cuda prebuild --format mxint8 --format int4:g32
      octavo cuda prebuild --arch sm_90a
      OCTAVO_CACHE_DIR=image/kernels octavo cuda prebuild --arch sm_80 --arch sm_90a -j 8
    """
    from dataclasses import asdict

    from octavo.cuda import device as cuda
    from octavo.display.console import console, print_json
    from octavo.display.progress import milestones

    errors = console(stderr=True)
    if errors.is_terminal:
        with milestones(errors) as tell:
            made = cuda.prebuild(
                arch, format, processes=processes, progress=lambda done, total, name: tell(name, done / total)
            )
    else:
        made = cuda.prebuild(arch, format, processes=processes)
    if json:
        print_json(asdict(made))
        return
    kept = cuda.info().cache
    out = console()
    out.print(
        f"{made.compiled} kernels compiled, {made.found} found, for {', '.join(made.archs)}: {made.seconds:.1f} s"
    )
    if kept is not None:
        out.print(f"kept in {kept.folder}")
