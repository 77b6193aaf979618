"""Synchronous data parallel training: the mean gradient of all replicas in every step."""

from __future__ import annotations

from orrery.systems.train.problems.trainer import Trainer


class Synchronous(Trainer):
    """Average the gradients in every step; then all replicas take the same step.

    With n replicas it equals one machine that reads the n batches at once (Goyal et al., "Accurate,
    large minibatch SGD", 2017). The gradient is averaged layer by layer as the backward pass leaves
    the layers, behind the arithmetic that is still to come (Li et al., "PyTorch Distributed", VLDB
    2020), so only what is not over by the end of the pass is waited for.

    Knobs: `overlap`, whether the averages run behind the backward pass; `optimiser`.
    Differs from the papers: a layer of the task is a bucket, whatever its size.

    >>> Synchronous().overlap
    True
    """

    overlap: bool = True

    async def train(self) -> None:
        for _ in self.steps():
            gradient = await (self._behind() if self.overlap else self._after())
            self.weights = self.inner.step(self.weights, gradient)

    async def _after(self) -> object:
        return await self.mean(await self.gradient())

    async def _behind(self) -> object:
        averages = {}

        def done(layer: str, where: slice, gradient: object) -> None:
            averages[layer] = where, self.behind(self.mean(gradient, tag=layer))

        whole = (await self.gradient_by_layer(done=done)).copy()
        for where, average in averages.values():
            whole[where] = await average
        return whole
