"""PyTorch with DistributedDataParallel on all GPUs of all hosts of a job, or on CPUs where there are none.

    bastion launch --instance_type=gpu-h100-8 --num_replicas=2 --image=IMAGE -- torchrun examples/gpu/ddp_train.py

torchrun finds the hosts by itself. With --output_dir, each host keeps a checkpoint there, and the next attempt goes on
from it.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(7)  # the same weights everywhere
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    goal = torch.arange(8.0, device=device).unsqueeze(1) / 8
    folder = os.environ.get("BASTION_OUTPUT_DIR", "")
    checkpoint = Path(folder, "checkpoint.pt")
    begin = 1
    if folder and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        begin = saved["step"] + 1
    for step in range(begin, STEPS + 1):
        data = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())  # other data everywhere
        inputs = torch.randn(32, 8, generator=data).to(device)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if step % 10 == 0 and int(os.environ["LOCAL_RANK"]) == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.6f}", flush=True)
            if folder:
                torch.save({"model": model.module.state_dict(), "step": step}, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
    weights = model.module.weight.detach().sum().item()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: weights {weights:.6f}", flush=True)
    dist.destroy_process_group()


main()
