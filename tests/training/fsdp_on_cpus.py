"""
`vanilla train` under accelerate's FSDP on CPUs, with gloo: accelerate keeps FSDP for GPUs, so its processes are told
that they have some. What it then gathers "to the CPU" would be a view of memory that is freed: here it stays in place.
"""

import sys

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig

from modeling_vanilla.scripts import train

PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
for gathered in (FullStateDictConfig, FullOptimStateDictConfig):
    gathered.offload_to_cpu = property(lambda self: False, lambda self, value: None)

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    sys.exit(train.run())
