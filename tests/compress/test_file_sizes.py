"""A budget is a promise: no file of a compression is larger than it, whatever the model; the header counts."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.models import transformer
from helpers.text_folders import text_folder
from octavo.compress.compress_model import write_model
from octavo.compress.compression_job import Job, check_budget
from octavo.compress.compression_options import Goal, Options, canonical, with_lookups
from octavo.compress.text_compression import text_job
from octavo.data.batches import Batches
from octavo.errors import ConfigError
from octavo.model_folder.save_load import file_bytes
from octavo.nn.rewriting import made_of_layers
from octavo.recipe.note import note_recipe
from octavo.search.allocation import allocate
from octavo.search.assignment_recipe import to_recipe
from torch import nn

CANDIDATES = (
    "mxint8", "int8:channel", "int6:g64", "int4:g32", "uint4:g32", "nf4", "nf3/32", "int2:g32", "int4", "mxfp4@mse",
    "nvfp4", "e4m3", "int3:g16@mse", "fixed8.4", "bfp6/16", "int4:g32@hqq",
)  # fmt: skip
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


class Scaled(nn.Module):
    """A parameter and buffers that no format is for; one of them is in no file."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(7), persistent=False)

    def forward(self, x):
        return x * self.gain


class Twice(nn.Module):
    """A layer under two names."""

    def __init__(self, width):
        super().__init__()
        self.one = nn.Linear(width, width)
        self.other = self.one

    def forward(self, x):
        return self.other(self.one(x))


class Convolved(nn.Module):
    def __init__(self, width, kernel):
        super().__init__()
        self.inner = nn.Conv1d(width, width, kernel, padding="same", bias=kernel > 1)

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class RandomNet(nn.Module):
    """Layers of random kinds and sizes; a head that may be the table of the embedding."""

    def __init__(self, draw):
        super().__init__()
        self.rows, width = draw.randint(3, 90), draw.choice([1, 7, 16, 32, 33, 48, 64, 100])
        self.table = nn.Embedding(self.rows, width)
        for place in range(draw.randint(0, 5)):
            name = draw.choice(["block", "dense_ä", "x", "a_name_that_is_rather_long_for_a_layer"])
            wider = draw.choice([5, 31, 32, 64, 96])
            kind = draw.randrange(7)
            if kind == 0:
                part = nn.LayerNorm(width)
            elif kind == 1:
                part = Scaled(width)
            elif kind == 2:
                part = Twice(width)
            elif kind == 3:
                part = Convolved(width, draw.choice([1, 3, 5]))
            else:
                part = nn.Sequential(
                    nn.Linear(width, wider, bias=draw.random() < 0.5), nn.ReLU(), nn.Linear(wider, width)
                )
            self.add_module(f"{name}{place * draw.choice([1, 1, 1000])}_{place}", part)
        self.head = nn.Linear(width, self.rows, bias=draw.random() < 0.5)
        if draw.random() < 0.4:
            self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        for name, part in self.named_children():
            if name not in ("table", "head"):
                x = part(x)
        return self.head(x)


def job_of(model, ids):
    return Job(
        name="random", model=model, batches=Batches([ids]), evaluate=None, measures="", write=write_model, identity={},
        sized=file_bytes,
    )  # fmt: skip


def random_job(draw):
    torch.manual_seed(draw.randrange(1 << 30))
    net = RandomNet(draw).to(draw.choice(DTYPES)).eval()
    return job_of(net, torch.randint(net.rows, (2, 3)))


def drawn_losses(draw, table):
    """Losses as a search would have measured them: fewer bytes, mostly more loss."""
    scale = np.array([[draw.lognormvariate(0, 2)] for _ in table.groups])
    noise = np.array([[draw.lognormvariate(0, 1) for _ in table.formats] for _ in table.groups])
    loss = scale * noise / (1 + table.nbytes.astype(float)) ** 2
    loss[:, -1] = 0
    return np.where(np.isnan(table.loss), np.nan, loss)


def check_promise(draw, job, folder):
    """Return bytes of the file and of the budget; None where the budget was refused, with a reason that is true."""
    formats = with_lookups(canonical(tuple(draw.sample(CANDIDATES, draw.randint(1, 5)))), job.model)
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    whole = job.size(job.model)
    most = int(whole * draw.uniform(0.15, 0.97))
    goal = Goal(nbytes=most) if draw.random() < 0.5 else Goal(bits=8 * most / parameters)
    most = goal.most_bytes(parameters)
    try:
        sizes = check_budget(job, Options(goal=goal), formats)
    except ConfigError as error:
        least = int(str(error).split(" bytes, ")[0].split(" ")[-1].replace(",", ""))
        assert least > most and "and float takes" in str(error)
        return None
    nbytes, fixed = sizes.of(sizes.table)
    sensitivity = replace(sizes.table, loss=drawn_losses(draw, sizes.table), nbytes=nbytes, fixed_nbytes=fixed)
    point = sizes.point(allocate(sensitivity), most)
    packed = job.build(to_recipe(point, sensitivity))
    assert sizes.exact(point.choice) == job.size(packed)
    solved = {
        name: text + "@gptq" * (draw.random() < 0.5 and text != "keep" and "@" not in text)
        for name, text in point.choice.items()
    }
    if sizes.exact(point.choice, tuned=True) <= most:  # else a search finds what solvers gave too large
        note_recipe(packed, str(to_recipe(solved, sensitivity)))
    size = job.write(packed, folder).stat().st_size
    assert size == job.size(packed) and size <= point.nbytes
    return size, most


def promises(seed, count, folder, make=random_job):
    kept = []
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        result = check_promise(draw, make(draw), folder)
        if result is not None:
            kept.append(result[0] / result[1])
    return kept


def test_no_file_is_larger_than_its_budget(tmp_path):
    shares = promises("quick", 150, tmp_path)
    assert len(shares) > 75 and max(shares) <= 1
    assert np.median(shares) > 0.9  # and budgets are used


@pytest.mark.slow
def test_no_file_of_ten_thousand_is_larger_than_its_budget(tmp_path):
    assert max(promises("slow", 10_000, tmp_path)) <= 1


ARCHITECTURES = {
    "MixtralForCausalLM": {"num_local_experts": 4, "num_key_value_heads": 2},
    "FalconForCausalLM": {},
    "T5Model": {},
    "OPTForCausalLM": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "BertForMaskedLM": {},
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_no_file_of_an_architecture_is_larger_than_its_budget(kind, tmp_path):
    model = made_of_layers(transformer(kind, **ARCHITECTURES[kind]))
    ids = torch.randint(3, 50, (2, 6))
    batch = {"input_ids": ids} | ({"decoder_input_ids": ids} if kind == "T5Model" else {})
    shares = promises(kind, 3, tmp_path, lambda draw: job_of(model, batch))
    assert shares and max(shares) <= 1


FAMILIES = (("Bert", "Model"), ("GPT2", "LMHeadModel"), ("Roberta", "Model"), ("DistilBert", "Model"))


def folder_job(folder):
    def make(draw):
        family, head = draw.choice(FAMILIES)
        path = folder / f"{draw.randrange(1 << 40)}"
        text_folder(path, family, head)
        if draw.random() < 0.5:
            from octavo.model_folder.weight_files import PLAIN_NAME
            from octavo.tensors import container

            halves = {name: tensor.bfloat16() for name, tensor in container.load(path / PLAIN_NAME).items()}
            container.save(
                halves, path / PLAIN_NAME, metadata={"format": "pt", "made_by": "somebody" * draw.randint(1, 9)}
            )
        return text_job(str(path))

    return make


def test_no_folder_of_transformers_is_larger_than_its_budget(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "out").mkdir()
    shares = promises("folders", 12, tmp_path / "out", folder_job(tmp_path))
    assert shares and max(shares) <= 1
