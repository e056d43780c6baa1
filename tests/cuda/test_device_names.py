"""Names of devices are read in one place, and so is the machine."""

import ast
from pathlib import Path

import octavo
import pytest
import torch
from octavo import CudaUnavailableError, SettingError
from octavo.cuda import machine
from octavo.cuda.device_names import best_device, parse_device, torch_device

PACKAGE = Path(octavo.__file__).parent


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cpu", ("cpu", None)), ("cuda", ("cuda", None)), ("cuda:0", ("cuda", 0)), ("cuda:17", ("cuda", 17))],
)
def test_names_are_read_as_torch_reads_them(name, expected):
    assert parse_device(name) == parse_device(torch.device(name)) == expected


@pytest.mark.parametrize(
    "name",
    ["", "tpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:²", "cuda:1000", "CUDA", None, 0],
)
def test_other_names_are_refused_with_what_is_accepted(name):
    with pytest.raises(SettingError, match=r"device is .*; accepted are 'cpu', 'cuda' and 'cuda:N'"):
        parse_device(name)


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert best_device() == torch_device("cpu") == torch.device("cpu")
    with pytest.raises(CudaUnavailableError, match=r"device is 'cuda:1', but PyTorch .* finds no GPU; octavo doctor"):
        torch_device("cuda:1")


def test_gpus_are_counted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert torch_device("cuda:0") == torch.device("cuda", 0)
    assert torch_device("cuda") == best_device() == torch.device("cuda", 1)
    with pytest.raises(CudaUnavailableError, match="device is 'cuda:2'; there are 2, counted from 0"):
        torch_device("cuda:2")


def test_one_file_asks_the_machine_what_it_is():
    asking = {"platform", "cpuinfo", "get_device_name", "get_cpu_capability", "cpu_count"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            names |= {node.attr} if isinstance(node, ast.Attribute) else set()
            if names & asking - {"platform"} or (isinstance(node, ast.Import) and "platform" in names):
                found.add(str(path.relative_to(PACKAGE)))
    assert found == {"cuda/machine.py", "storage/system.py"}  # the latter counts the cores of a process


def test_a_run_and_a_study_tell_the_same_machine():
    from octavo.lab.studies.stopwatch import machine as of_study

    told, made = machine.computer(torch.device("cpu")), machine.versions()
    assert (
        told["gpu"] is None and told["cores"] == machine.cpu()["cores"] and told["threads"] == torch.get_num_threads()
    )
    study = of_study(torch.device("cpu"))
    assert study["name"] == f"{told['machine']} {told['cpu']}" and study["torch"] == made["torch"]
    assert machine.packages()["octavo"] == made["octavo"] == octavo.__version__
