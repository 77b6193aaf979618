"""A routing trace from a mixture of experts that was trained, to balance something real.

A small classifier of the topics of word sequences: an embedding, one layer of experts with the
best `active` of them chosen by a learned gate, and a head. Topics come in uneven shares, so that
after training some experts are hot. Needs PyTorch; some seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from orrery.base.rand import key_of
from orrery.models.real.backend import need_torch


class Trace(NamedTuple):
    """Tokens of each expert in each step, [steps, experts]; and how well the model had learnt."""

    counts: np.ndarray
    loss_before: float
    loss_after: float


def trained_routing(
    *, experts: int = 64, active: int = 2, steps: int = 40, tokens: int = 2048, topics: int = 96,
    width: int = 32, rounds: int = 120, rows: int = 256, seed: int = 0,
) -> Trace:  # fmt: skip
    """Train the model from a seed, then count which experts its tokens choose, step by step.

    It is trained `rounds` times on `rows` tokens; each step of the trace has `tokens`.
    """
    torch = need_torch()
    nn = torch.nn.functional
    generator = torch.Generator().manual_seed(key_of(seed, "moe", "trace") >> 1)

    def drawn(*shape: int):  # type: ignore[no-untyped-def]
        return torch.randn(*shape, generator=generator)

    centres = drawn(topics, width)
    shares = 1.0 / torch.arange(1, topics + 1, dtype=torch.float32)
    gate = (drawn(width, experts) * 0.3).requires_grad_()
    up = (drawn(experts, width, width) * width**-0.5).requires_grad_()
    head = (drawn(width, topics) * width**-0.5).requires_grad_()
    optimiser = torch.optim.Adam([gate, up, head], lr=5e-3)

    def batch(count: int):  # type: ignore[no-untyped-def]
        topic = torch.multinomial(shares, count, replacement=True, generator=generator)
        return centres[topic] + 0.7 * drawn(count, width), topic

    def routed(x):  # type: ignore[no-untyped-def]
        scores, chosen = (x @ gate).topk(active, dim=-1)
        return scores.softmax(-1), chosen

    def loss_of(x, topic):  # type: ignore[no-untyped-def]
        weights, chosen = routed(x)
        # All experts compute all rows, and the chosen ones are kept: quick for so small a model.
        hidden = torch.tanh((x @ up.permute(1, 0, 2).reshape(width, -1)).view(len(x), experts, -1))
        made = hidden.gather(1, chosen[..., None].expand(-1, -1, width))
        made = (made * weights[..., None]).sum(1)
        return nn.cross_entropy((x + made) @ head, topic)

    losses = []
    for _ in range(rounds):
        loss = loss_of(*batch(rows))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        counts = [
            np.bincount(routed(batch(tokens)[0])[1].flatten().numpy(), minlength=experts)
            for _ in range(steps)
        ]
    ends = max(rounds // 10, 1)
    return Trace(np.array(counts), float(np.mean(losses[:ends])), float(np.mean(losses[-ends:])))


__all__ = ["Trace", "trained_routing"]
