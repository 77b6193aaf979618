"""Prompts in chunks that fit beside the decodes."""

from __future__ import annotations

from orrery.parts import Count
from orrery.systems.serve.baselines.vllm_v1 import VllmV1


class Sarathi(VllmV1):
    """Cuts prompts into chunks so that decodes never wait for a whole prompt.

    Sarathi-Serve (Agrawal et al., OSDI 2024): every step takes all decodes and fills the rest of a
    small budget of tokens with a chunk of a prompt. The budget bounds a step, and so the time
    between two tokens. vLLM adopted it; the difference that is left is the size of the budget.
    """

    max_tokens: Count = 512


__all__ = ["Sarathi"]
