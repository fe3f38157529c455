"""One of the processes of test_gradient_exchange.py: `exchange_process.py RANK FOLDER`."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from robocache_ros.training.gradient_exchange import GradientExchange

PROCESSES = 2
SMALL = 64  # bytes: almost every parameter is a group


class Branches(nn.Module):
    """A network with a part that the loss does not depend on."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.unused, self.last = nn.Linear(3, 8), nn.Linear(3, 5), nn.Linear(8, 2)
        self.scale: Tensor
        self.register_buffer("scale", torch.full((), float(seed + 1)))

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = self.last(self.first(given).relu()) * self.scale
        return found.square().mean()


def run_process(rank: int, folder: str) -> None:
    """Write the gradients of this process, by our exchange and by DistributedDataParallel."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", PROCESSES)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    given = [torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * rank + k)) for k in range(2)]
    network = Branches(rank)
    exchange = GradientExchange(list(network.parameters()), list(network.buffers()), group_bytes=SMALL)
    found: dict[str, Any] = {"weights": [each.detach().clone() for each in network.parameters()]}
    found["scale"] = network.scale
    network(given[0]).backward()
    found["alone"] = gradients(network)["first.weight"]
    exchange.arm()
    network(given[1]).backward()  # accumulated before it is exchanged
    exchange.finish()
    for number in range(len(exchange.groups)):
        exchange.wait(number)
    found["ours"] = gradients(network)
    peer = DistributedDataParallel(Branches(0), find_unused_parameters=True)
    with peer.no_sync():
        peer(given[0]).backward()
    peer(given[1]).backward()
    found["peer"] = gradients(peer.module)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.barrier()  # none closes its connections while the other one uses them
    distributed.destroy_process_group()


def gradients(network: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if each.grad is None else each.grad.clone() for name, each in network.named_parameters()}


if __name__ == "__main__":
    run_process(int(sys.argv[1]), sys.argv[2])
