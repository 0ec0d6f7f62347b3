"""The language model of `torch_model.py` as functions of its weights.

Every expert computes every token, and the router's weights keep the results of `top_k`: that is simple, and costs
experts / top_k times the work. A large model sends each expert its tokens only.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from corpus import VOCABULARY
from jax import Array
from settings import Settings

Weights = dict[str, Any]


def initial(settings: Settings) -> Weights:
    """The first weights, as arrays of NumPy: to draw them with JAX would compile a program for each shape."""
    width, experts = settings.width, settings.experts
    draw = np.random.default_rng(settings.seed)

    def drawn(*shape: int, scale: float) -> np.ndarray:
        return (scale * draw.normal(size=shape)).astype(np.float32)

    def norm() -> Weights:
        return {"scale": np.ones(width, np.float32), "shift": np.zeros(width, np.float32)}

    def layer() -> Weights:
        return {
            "before_attention": norm(),
            "inputs": drawn(width, 3, settings.heads, width // settings.heads, scale=width**-0.5),
            "outputs": drawn(width, width, scale=width**-0.5),
            "before_experts": norm(),
            "router": drawn(width, experts, scale=width**-0.5),
            "into": drawn(experts, width, 4 * width, scale=width**-0.5),
            "out": drawn(experts, 4 * width, width, scale=(4 * width) ** -0.5),
        }

    return {
        "tokens": drawn(VOCABULARY, width, scale=0.02),
        "places": drawn(settings.context, width, scale=0.02),
        "layers": [layer() for _ in range(settings.layers)],
        "norm": norm(),
    }


def loss_of(weights: Weights, windows: Array, settings: Settings, key: Array | None = None) -> tuple[Array, Array]:
    """Windows of context + 1 tokens; returns the loss of the predictions, and the mean balance of the layers.

    `key`: for the dropout; None: without.
    """
    inputs, goals = windows[:, :-1], windows[:, 1:]
    x = weights["tokens"][inputs] + weights["places"]
    balances = []
    for number, layer in enumerate(weights["layers"]):
        keys = (None, None) if key is None else jax.random.split(jax.random.fold_in(key, number))
        x = x + _dropped(_attention(layer, _normalized(layer["before_attention"], x)), settings.dropout, keys[0])
        found, balance = _experts(layer, _normalized(layer["before_experts"], x), settings.top_k)
        x = x + _dropped(found, settings.dropout, keys[1])
        balances.append(balance)
    scores = jax.nn.log_softmax(_normalized(weights["norm"], x) @ weights["tokens"].T)
    loss = -jnp.take_along_axis(scores, goals[..., None], axis=-1).mean()
    return loss, jnp.stack(balances).mean()


def _attention(layer: Weights, x: Array) -> Array:
    query, key, value = jnp.einsum("btw,wphd->pbthd", x, layer["inputs"])
    seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return seen.reshape(x.shape) @ layer["outputs"]


def _experts(layer: Weights, x: Array, top_k: int) -> tuple[Array, Array]:
    """The experts' result, and how unequally they are used: 1 is equally (arXiv:2101.03961, equations 4 to 6)."""
    chances = jax.nn.softmax(x @ layer["router"])
    experts = chances.shape[-1]
    weights, chosen = jax.lax.top_k(chances, top_k)
    choices = jax.nn.one_hot(chosen, experts)  # token, choice, expert
    weights = weights / weights.sum(axis=-1, keepdims=True)
    weight = (choices * weights[..., None]).sum(axis=-2)
    hidden = jax.nn.gelu(jnp.einsum("btw,ewh->bteh", x, layer["into"]))
    result = jnp.einsum("bteh,ehw,bte->btw", hidden, layer["out"], weight)
    balance = experts * (choices.mean(axis=(0, 1, 2)) * chances.mean(axis=(0, 1))).sum()
    return result, balance


def _normalized(norm: Weights, x: Array) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-5) * norm["scale"] + norm["shift"]


def _dropped(x: Array, share: float, key: Array | None) -> Array:
    if key is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - share, x.shape), x / (1 - share), 0)
