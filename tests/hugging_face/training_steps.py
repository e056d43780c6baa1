"""Steps of training on seeded texts, in one process for the texts of several, and in each of several for its own."""

import torch
import torch.distributed as dist

STEPS, TEXTS = 3, 4


def texts(step):
    return torch.randint(3, 50, (TEXTS, 8), generator=torch.Generator().manual_seed(step))


def train_whole(network, optimizer, processes):
    """Train in one process: gradients are the mean of those of each process's texts."""
    for step in range(STEPS):
        for part in texts(step).chunk(processes):
            network(input_ids=part, labels=part).loss.backward()
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.grad /= processes
        optimizer.step()
        optimizer.zero_grad()


def train_own(network, optimizer):
    """Train on the texts of this process, with others beside it."""
    for step in range(STEPS):
        own = texts(step).chunk(dist.get_world_size())[dist.get_rank()]
        network(input_ids=own, labels=own).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
