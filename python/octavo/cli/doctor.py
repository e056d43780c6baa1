"""``octavo doctor``: reports hardware and libraries of this machine, and why others are missing."""

from __future__ import annotations

from octavo.cli._app import JsonOption


def run(json: JsonOption = False) -> None:
    """Show what this machine has, and what it lacks.

    Versions, instructions and threads of the processor, NVIDIA's driver, GPUs, the compiler of kernels and the folder
    that keeps what it compiled. What is missing is no error.

    \b
    Examples:
      octavo doctor
      octavo doctor --json
    """
    from octavo.cuda import device as cuda
    from octavo.cuda import machine
    from octavo.display.console import print_json

    found = cuda.info()
    if json:
        print_json({"packages": machine.packages(), "cpu": machine.cpu(), "cuda": machine.cuda_dict(found)})
        return
    machine.print_sections([machine.software_section(), machine.cpu_section(), machine.cuda_section(found)])
