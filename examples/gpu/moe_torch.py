"""Train a mixture-of-experts language model with PyTorch, on all GPUs of all hosts of a job, or on CPUs.

    torchrun moe_torch.py --data=data

Rank 0 saves, and tells the others what it saved: it needs no folder that hosts share. A rank that is told to stop
(SIGTERM) tells the others within the next step, so all leave after the same one. What a step draws at random depends on
the seed, the step and the rank alone. So a training that was stopped anywhere ends like one that never was.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from corpus import Corpus
from progress import Checkpoints, Curves, Journal, StopSignal, tell_step, write_result
from settings import Settings
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_model import Model

# A rank that hangs is for --stuck_after to find. PyTorch's own limit, of 10 minutes with NCCL, would end the command as
# a failure, which costs one of --max_tries.
PATIENCE = timedelta(days=7)
STOPPED = 1


class Training:
    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.rank, ranks = dist.get_rank(), dist.get_world_size()
        settings.share(ranks)
        self.mine = slice(self.rank, None, ranks)
        self.data = Corpus(
            settings.data / "train.bin", context=settings.context, batch=settings.batch, seed=settings.seed
        )
        self.steps = settings.epochs * self.data.steps
        self.checkpoints = Checkpoints(settings.output_dir / "checkpoints")
        torch.manual_seed(settings.seed)  # the same weights everywhere
        model = Model(settings).to(device)
        saved = self._restored()
        if saved:
            model.load_state_dict(saved["model"])
        self.step = saved.get("step", 0)
        self.loss = saved.get("loss", 0.0)
        self.journal = Journal(saved["journal"].tolist() if saved else ())
        self.model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
        if saved:
            self.optimizer.load_state_dict(saved["optimizer"])

    def train_step(self, told_to_stop: bool) -> tuple[float, bool]:
        """Train on the next batch; returns the mean balance of the experts, and whether any rank was told to stop."""
        seed = (self.settings.seed * self.steps + self.step) * dist.get_world_size() + self.rank
        torch.manual_seed(seed)
        numbers = self.data.numbers(self.step)[self.mine]
        loss, balance = self.model(torch.from_numpy(self.data.windows(numbers)).long().to(self.device))
        self.optimizer.zero_grad()
        (loss + self.settings.moe_coef * balance).backward()
        self.optimizer.step()
        self.step += 1
        # What each rank really saw is in the journal, not what it should have seen.
        facts = self._of_all([loss.item(), balance.item(), told_to_stop, *numbers.tolist()])
        self.loss = facts[:, 0].mean().item()
        self.journal.add(facts[:, 3:].T.flatten().long().tolist())
        return facts[:, 1].mean().item(), bool(facts[:, 2].any())

    def save(self) -> None:
        if self.rank == 0:
            self.checkpoints.save(self.step, self._write)

    @torch.no_grad()
    def validation_loss(self) -> float:
        """The loss on val.bin, or its first sixteen batches; each rank's is the same."""
        settings = self.settings
        data = Corpus(settings.data / "val.bin", context=settings.context, batch=1)
        model = self.model.module.eval()
        numbers = torch.arange(min(data.samples, 16 * settings.batch)).split(settings.batch)
        losses = [model(torch.from_numpy(data.windows(part.numpy())).long().to(self.device))[0] for part in numbers]
        sizes = torch.tensor([len(part) for part in numbers], device=self.device)
        return ((torch.stack(losses) * sizes).sum() / sizes.sum()).item()

    def _write(self, file: BinaryIO) -> None:
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "loss": self.loss,
            "journal": torch.tensor(self.journal.rows),
        }
        torch.save(state, file)

    def _restored(self) -> dict[str, Any]:
        """What rank 0 saved last, on every rank; empty if it saved nothing."""
        newest = self.checkpoints.newest() if self.rank == 0 else None
        state = [{} if newest is None else torch.load(newest, map_location="cpu", weights_only=True)]
        dist.broadcast_object_list(state, src=0, device=self.device)
        return state[0]

    def _of_all(self, values: list[float]) -> Tensor:
        """A row for each rank."""
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, mine)
        return torch.stack(rows).cpu()


def main() -> int:
    settings = Settings.from_command_line()
    told_to_stop = StopSignal()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic products of matrices
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    training = Training(settings, device)
    first = training.rank == 0
    curves = Curves(settings.tensorboard and first, settings.output_dir)
    print(f"rank {training.rank} of {dist.get_world_size()} begins at step {training.step}", flush=True)
    while training.step < training.steps:
        balance, stop = training.train_step(told_to_stop.came)
        last = training.step == training.steps
        if first:
            tell_step(training.step)
            curves.add(training.step, loss=training.loss, balance=balance)
        if stop or last or training.step % settings.save_every == 0:
            if first:
                print(f"step {training.step}: loss {training.loss:.6f}, balance {balance:.4f}", flush=True)
            curves.flush()
            training.save()
        if stop and not last:
            print(f"stops after step {training.step}", flush=True)
            return STOPPED
    loss = training.validation_loss()
    if first:
        write_result(settings.output_dir, training.journal, loss=training.loss, validation_loss=loss)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
