"""Networks that packages bring: entry points of ``octavo.subjects``, read when a folder or a name asks for one."""

import textwrap
from pathlib import Path

import octavo
import pytest
import torch
from helpers.processes import python
from octavo.model_folder import subject_registry

MODULE = '''
    """A package with a network of its own."""
    from dataclasses import asdict, dataclass
    import torch
    from octavo.model_folder.subject_registry import Subject
    from torch import nn

    @dataclass(frozen=True)
    class Sizes:
        width: int
        @classmethod
        def from_dict(cls, values): return cls(**values)
        def as_dict(self): return asdict(self)

    class Guest(nn.Module):
        octavo_kind = "guest"
        def __init__(self, config):
            super().__init__()
            self.config, self.layer = config, nn.Linear(config.width, 3)
        def example_inputs(self): return {"x": torch.zeros(2, self.config.width)}
        def forward(self, x): return self.layer(x)

    class GuestSubject(Subject):
        kind = "guest"
        def config(self): return Sizes
        def network(self, config): return Guest

    GUEST = GuestSubject()
'''


def install(folder: Path, names: str = "guest_package:GUEST", package: str = "guest-package") -> Path:
    """Lay a package and its metadata into a folder, as installation does; its entry point ``guest`` names ``names``."""
    (folder / "guest_package.py").write_text(textwrap.dedent(MODULE))
    information = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[octavo.subjects]\nguest = {names}\n")
    return folder


def test_the_laboratory_is_registered():
    assert {"seq2seq", "classifier", "gpt"} <= set(subject_registry.kinds())


def test_a_network_of_another_package_is_saved_and_loaded_by_its_folder(tmp_path):
    folder = install(tmp_path)
    code = f"""
        import sys, torch, octavo
        assert "guest_package" not in sys.modules
        from guest_package import Guest, Sizes
        model = octavo.pack_model(octavo.quantize_model(Guest(Sizes(8)), "mxint8", progress=False))
        octavo.save_model(model, {str(tmp_path / "folder")!r})
    """
    done = python(code, path=[folder])
    assert done.returncode == 0, done.stderr
    code = f"""
        import sys, torch, octavo
        model = octavo.load_model({str(tmp_path / "folder")!r})
        assert "guest_package" in sys.modules and "octavo.lab" not in sys.modules
        assert type(model).__name__ == "Guest" and model(torch.ones(2, 8)).shape == (2, 3)
    """
    done = python(code, path=[folder])
    assert done.returncode == 0, done.stderr


def test_commands_take_the_folder_of_a_network_of_another_package(tmp_path):
    folder = install(tmp_path)
    code = f"""
        import os, octavo
        from guest_package import Guest, Sizes
        from octavo.cli import app
        os.chdir({str(tmp_path)!r})
        octavo.save_model(Guest(Sizes(64)), "float")
        for line in (
            "pack float -o packed --recipe mxint8", "inspect packed", "unpack packed -o unpacked", "graph float",
            "recipe mxint8 --model float", "prune float -o pruned --sparsity 0.5", "compare float --formats mxint8",
            "graph packed",
        ):
            app(line.split(), standalone_mode=False)
        for name in ("packed", "unpacked", "pruned"):
            assert type(octavo.load_model(name)) is Guest, name
        try:
            app("eval float --data {Path(__file__).name}".split(), standalone_mode=False)
        except octavo.OctavoError as error:
            assert "a Guest reads no texts" in str(error), error
    """
    done = python(code, path=[folder])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "names, message",
    [
        (
            "no_such_package:GUEST",
            "no_such_package:GUEST of the package guest-package cannot be imported: ModuleNotFound",
        ),
        ("guest_package:NOTHING", "cannot be imported: AttributeError"),
        ("guest_package:Sizes", "is a type; accepted is an object of a subclass of octavo"),
    ],
)
def test_a_package_that_brings_no_network_is_named_and_hides_no_other(tmp_path, names, message):
    folder = install(tmp_path, names)
    (tmp_path / "config.json").write_text('{"octavo": 2, "kind": "guest", "width": 8}')
    octavo.save({"layer.weight": octavo.encode(torch.ones(3, 8), "mxint8")}, tmp_path / "model.octavo.safetensors")
    code = f"""
        import octavo
        from octavo.model_folder import subject_registry
        assert subject_registry.named("polynomials").kind == "seq2seq"
        for ask in (lambda: octavo.load_model({str(tmp_path)!r}), lambda: subject_registry.named("nobody")):
            try:
                ask()
            except octavo.ModelError as error:
                assert {message!r} in str(error), error
            else:
                raise AssertionError("taken")
    """
    done = python(code, path=[folder])
    assert done.returncode == 0, done.stderr


def test_two_packages_that_bring_one_kind_are_both_named(tmp_path):
    folder = install(tmp_path)
    install(tmp_path, "guest_package:OTHER", "other-package")
    code = """
        import octavo
        from octavo.model_folder import subject_registry
        try:
            subject_registry.subject("guest")
        except octavo.ModelError as error:
            assert "guest-package" in str(error) and "other-package" in str(error), error
        else:
            raise AssertionError("taken")
    """
    done = python(code, path=[folder])
    assert done.returncode == 0, done.stderr


def test_a_folder_of_a_kind_that_nobody_brings_is_refused_with_the_kinds_there_are(tmp_path):
    (tmp_path / "config.json").write_text('{"octavo": 2, "kind": "guest", "width": 8}')
    octavo.save({"layer.weight": octavo.encode(torch.ones(3, 8), "mxint8")}, tmp_path / "model.octavo.safetensors")
    with pytest.raises(octavo.ContainerError, match=r"kind 'guest'; accepted is .*'gpt'"):
        octavo.load_model(tmp_path)


def test_an_import_of_the_package_reads_no_registry():
    code = """
        import sys, octavo
        octavo.Format("mxint8")
        assert "importlib.metadata" not in sys.modules and "octavo.model_folder.subject_registry" not in sys.modules
    """
    done = python(code)
    assert done.returncode == 0, done.stderr
