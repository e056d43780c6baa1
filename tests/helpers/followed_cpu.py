"""A meter of memory that follows the tensors of the CPU, in place of a GPU's allocator."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BLOCK = 512
"""Bytes that the allocator of a GPU rounds up to."""


class FollowedCpu(TorchDispatchMode):
    """Allocated bytes of the CPU while it is active: results of operators, in blocks."""

    def __init__(self):
        super().__init__()
        self.live, self.most, self.sizes = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self.sizes and storage.nbytes():
                    self.sizes[storage._cdata] = size = -(-storage.nbytes() // BLOCK) * BLOCK
                    self.live += size
                    weakref.finalize(storage, self._free, storage._cdata)
        self.most = max(self.most, self.live)
        return result

    def _free(self, key):
        self.live -= self.sizes.pop(key, 0)

    def allocated(self):
        return self.live

    def begin(self):
        self.most = self.live

    def peak(self):
        return self.most

    def reserved(self):
        return 2 * self.most
