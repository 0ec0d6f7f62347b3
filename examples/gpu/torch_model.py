"""A language model whose layers have experts, of which each token takes the `top_k` that its router prefers."""

from __future__ import annotations

import torch
from corpus import VOCABULARY
from settings import Settings
from torch import Tensor, nn
from torch.nn import functional


class Experts(nn.Module):
    """Each token goes to `top_k` experts.

    The second result says how unequally the experts are used: 1 is equally. It is that of Switch Transformers
    (arXiv:2101.03961, equations 4 to 6), over all choices of a token.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.top_k = settings.top_k
        self.router = nn.Linear(width, settings.experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(settings.experts)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.reshape(-1, x.shape[-1])
        chances = functional.softmax(self.router(tokens), dim=-1)
        weights, chosen = chances.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            # An expert without tokens runs, too: DistributedDataParallel waits for the gradients of all of them.
            token, choice = (chosen == number).nonzero(as_tuple=True)
            result = result.index_add(0, token, expert(tokens[token]) * weights[token, choice, None])
        used = functional.one_hot(chosen, len(self.experts)).float().mean(dim=(0, 1))
        balance = len(self.experts) * (used * chances.mean(dim=0)).sum()
        return result.reshape(x.shape), balance


class Layer(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.before_attention, self.before_experts = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.experts = Experts(settings)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, context, width = x.shape
        parts = self.inputs(self.before_attention(x)).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.outputs(seen.transpose(1, 2).reshape(x.shape)))
        found, balance = self.experts(self.before_experts(x))
        return x + self.dropout(found), balance


class Model(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, settings.width)
        self.places = nn.Embedding(settings.context, settings.width)
        self.layers = nn.ModuleList(Layer(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Windows of context + 1 tokens; returns the loss of the predictions, and the mean balance of the layers."""
        inputs, goals = windows[:, :-1], windows[:, 1:]
        x = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=inputs.device))
        balances = []
        for layer in self.layers:
            x, balance = layer(x)
            balances.append(balance)
        scores = self.norm(x) @ self.tokens.weight.T
        loss = functional.cross_entropy(scores.flatten(0, 1), goals.flatten())
        return loss, torch.stack(balances).mean()
