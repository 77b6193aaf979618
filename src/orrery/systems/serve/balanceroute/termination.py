"""Who will have ended h steps from now? The small interface that BR-H asks, and five who answer.

A classifier gives the chance that a request ends with its next token; BR-H takes that chance as
constant over its short horizon, unless the classifier knows better (`survival`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import NotFitted
from orrery.parts import Count, Fraction, NonNegative, Positive
from orrery.parts.knobs import Part
from orrery.systems.serve.problems.dp_decode.ports import F64, I64


class Termination(Part):
    """Says that nobody ends: loads only grow. The base of all classifiers."""

    def chance(self, prompt: I64, made: I64, left: I64) -> F64:
        """The chance of each request to end with its next token.

        `left`, the truth, is there for those who say that they cheat.
        """
        return np.zeros(len(prompt))

    def survival(self, prompt: I64, made: I64, left: I64, horizon: int) -> F64:
        """[horizon + 1, requests]: the chance to be there still after h steps."""
        stays = 1.0 - np.clip(self.chance(prompt, made, left), 0.0, 1.0)
        found = np.ones((horizon + 1, len(prompt)))
        for step in range(horizon):
            np.multiply(found[step], stays, out=found[step + 1])
        return found


class BaseRate(Termination):
    """Gives every request the same chance, which is one over the mean length of an answer."""

    mean_tokens: Positive = 155.0  # of Azure's conversation and code together

    def chance(self, prompt: I64, made: I64, left: I64) -> F64:
        return np.full(len(prompt), min(1.0, 1.0 / self.mean_tokens))


class Oracle(Termination):
    """Knows when every request ends; a bound on what any classifier could give."""

    def survival(self, prompt: I64, made: I64, left: I64, horizon: int) -> F64:
        return (left[None, :] > np.arange(horizon + 1)[:, None]).astype(float)


class Adversary(Termination):
    """Says the opposite of the truth: what ends soon stays, what stays ends at once."""

    def survival(self, prompt: I64, made: I64, left: I64, horizon: int) -> F64:
        found = (left[None, :] <= np.arange(horizon + 1)[:, None]).astype(float)
        found[0] = 1.0
        return found


class Trained(Termination):
    """Logistic regression on (tokens so far, prompt length), fitted to finished requests.

    The features are log(1 + made), log(prompt) and their squares and product, which lets the chance
    rise and fall; a weight decay `decay` keeps it finite. Newton's method, at most `rounds` times.
    """

    decay: NonNegative = 1e-3
    rounds: Count = 30
    share: Fraction = 1.0  # of the tokens of the answers, how many are looked at

    def fit(self, prompt: Any, output: Any) -> Trained:
        """Learn from finished requests: every token that they made was a chance to end."""
        prompt, output = np.asarray(prompt, np.int64), np.asarray(output, np.int64)
        if not len(prompt) or len(prompt) != len(output):
            raise NotFitted(
                f"{len(prompt)} prompts and {len(output)} answers; give as many of each"
            )
        owner = np.repeat(np.arange(len(output)), output)
        made = np.arange(len(owner)) - np.repeat(np.cumsum(output) - output, output)
        ends = made == output[owner] - 1
        every = max(1, round(1.0 / max(self.share, 1e-6)))
        keep = ends | (np.arange(len(owner)) % every == 0)
        weight = np.where(ends, 1.0, float(every))[keep]
        rows = self._features(prompt[owner[keep]], made[keep])
        self.__dict__["weights"] = self._newton(rows, ends[keep].astype(float), weight)
        return self

    def _newton(self, rows: F64, ends: F64, weight: F64) -> F64:
        found = np.zeros(rows.shape[1])
        found[0] = np.log(max(ends.sum(), 1.0) / max(weight.sum() - ends.sum(), 1.0))
        for _ in range(self.rounds):
            chance = 1.0 / (1.0 + np.exp(-rows @ found))
            slope = rows.T @ (weight * (ends - chance)) - self.decay * found
            bend = (rows * (weight * chance * (1 - chance))[:, None]).T @ rows
            move = np.linalg.solve(bend + self.decay * np.eye(len(found)), slope)
            found = found + move
            if np.abs(move).max() < 1e-8:
                break
        return found

    @staticmethod
    def _features(prompt: I64, made: I64) -> F64:
        a, b = np.log1p(made) / 4.0, np.log(np.maximum(prompt, 1)) / 7.0
        return np.stack([np.ones(len(a)), a, b, a * a, b * b, a * b, a * a * a], axis=1)

    def chance(self, prompt: I64, made: I64, left: I64) -> F64:
        weights = self.__dict__.get("weights")
        if weights is None:
            raise NotFitted("Trained is not fitted; call fit(prompt, output) first")
        return 1.0 / (1.0 + np.exp(-self._features(prompt, made) @ weights))


__all__ = ["Adversary", "BaseRate", "Oracle", "Termination", "Trained"]
