"""Steps of training with FSDP2 or Trainer, for processes that torchrun starts: ``python sharded.py fsdp|trainer FOLDER``."""

import sys
from pathlib import Path

import octavo
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.append(str(Path(__file__).resolve().parents[1]))
from helpers.models import transformer
from hugging_face.training_steps import texts, train_own, train_whole

RECIPES = {"rounded": "mxint8; type:Linear mxint8 input=mxint8", "learned": "type:Linear int4:channel@lsq"}


def model(recipe):
    network = transformer("LlamaForCausalLM", layers=2, heads=4, num_key_value_heads=2)
    return octavo.quantize_model(network, RECIPES[recipe], progress=False).train()


def whole(recipe, processes):
    """Weights after the steps in one process."""
    network = model(recipe)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    train_whole(network, optimizer, processes)
    return network.state_dict()


def sharded(recipe):
    """Weights after the steps with parameters that the processes share."""
    processes = dist.get_world_size()
    mesh = init_device_mesh("cpu", (processes,))
    network = model(recipe)
    for layer in network.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    train_own(network, optimizer)
    assert any(hasattr(parameter, "full_tensor") for parameter in network.parameters())
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in network.state_dict().items()
    }


def main(kind, folder):
    torch.set_num_threads(1)
    if kind == "fsdp":
        dist.init_process_group("gloo")
        for recipe in RECIPES:
            weights = sharded(recipe)
            if dist.get_rank() == 0:
                torch.save(weights, Path(folder, f"{recipe}.pt"))
        dist.destroy_process_group()
        return
    import transformers

    ids = torch.cat([texts(step) for step in range(6)])
    arguments = transformers.TrainingArguments(
        folder, max_steps=4, save_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, use_cpu=True, seed=1,
        report_to=[], disable_tqdm=True, logging_strategy="no", ddp_find_unused_parameters=False,
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": row} for row in ids]
    trainer = transformers.Trainer(model("learned"), arguments, train_dataset=rows)
    assert trainer.args.world_size == 2
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
