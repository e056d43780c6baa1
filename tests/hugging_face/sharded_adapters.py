"""Steps of training PEFT's adapters on codes with DDP or FSDP2: ``torchrun ... sharded_adapters.py FOLDER``."""

import sys
from pathlib import Path

import octavo
import peft
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[1]))
from helpers.models import packed, transformer
from hugging_face.training_steps import train_own, train_whole

KINDS = {"ddp": {}, "fsdp": {}, "fsdp dora": {"use_dora": True}}


def model(kind):
    base = packed(transformer("LlamaForCausalLM", layers=2, heads=4, num_key_value_heads=2), "int4:g32")
    targets = octavo.peft.target_modules(base)
    config = octavo.peft.prepare(peft.LoraConfig(r=4, target_modules=targets, **KINDS[kind]))
    torch.manual_seed(1)
    return peft.get_peft_model(base, config).train()


def adapters_of(network):
    return {
        name.removeprefix("module."): tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()
        for name, tensor in network.state_dict().items()
        if "lora_" in name
    }


def codes_of(network):
    return {name: tensor.clone() for name, tensor in network.named_buffers() if ".weight_" in name}


def optimizer_of(network):
    return torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], 1e-2)


def whole(kind, processes):
    """Adapters after the steps in one process."""
    network = model(kind)
    optimizer = optimizer_of(network)
    train_whole(network, optimizer, processes)
    return adapters_of(network)


def shared(kind):
    """Adapters after the steps of all processes; the codes are those that they were."""
    processes, network = dist.get_world_size(), model(kind)
    codes = codes_of(network)
    if kind == "ddp":
        wrapped = DistributedDataParallel(network, broadcast_buffers=False)  # codes are the same everywhere, and stay
    else:
        mesh = init_device_mesh("cpu", (processes,))
        for layer in network.base_model.model.model.layers:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(network, mesh=mesh)
        assert all(hasattr(parameter, "full_tensor") for parameter in network.parameters())
    optimizer = optimizer_of(wrapped)
    train_own(wrapped, optimizer)
    now = codes_of(network)
    assert now.keys() == codes.keys() and all(torch.equal(now[name], codes[name]) for name in codes)
    return adapters_of(wrapped)


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in KINDS:
        adapters = shared(kind)
        if dist.get_rank() == 0:
            torch.save(adapters, Path(folder, f"{kind}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
