"""Real networks with several exits: recurrent, stacked, in NumPy; trained in seconds on a CPU.

A network reads its input step by step through stacked recurrent layers and keeps the running mean
of the top layer's state. Exit k stands after a share of the steps and classifies that mean with a
head of its own, so a deeper exit does strictly more work and has seen strictly more. Each step is
a few small matrix products: a batch costs much less than its requests one by one, as on a GPU whose
kernels are short.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError, did_you_mean
from orrery.base.rand import Stream
from orrery.inputs import draws
from orrery.systems.serve.problems.dnn_edge_serving.tasks import TASKS, Data

F32 = npt.NDArray[np.float32]


class Shape(NamedTuple):
    """What a network is: its task, its depth (steps, layers), its width, where its exits stand."""

    task: str
    steps: int
    layers: int
    width: int
    exits: tuple[float, ...] = (0.3, 0.6, 1.0)
    train: int = 1000
    epochs: int = 8


# Three of different size for three tasks; the large ones make the mix of six.
SHAPES = {
    "glyphs": Shape("glyphs", 40, 2, 128),
    "signals": Shape("signals", 30, 2, 128),
    "motions": Shape("motions", 50, 1, 160),
    "glyphs_large": Shape("glyphs", 40, 3, 192),
    "signals_large": Shape("signals", 40, 2, 192),
    "motions_large": Shape("motions", 50, 2, 192),
    "digits": Shape("digits", 40, 2, 128),
}
TESTED = 1000


class Network:
    """A trained network with exits. `forward(x, exit)` gives the logits of that exit."""

    def __init__(self, shape: Shape, weights: dict[str, F32]) -> None:
        self.shape = shape
        self.weights = weights
        # Where each exit stands, in steps; the last one has seen everything.
        self.stops = [max(1, round(shape.steps * share)) for share in shape.exits]

    def forward(self, x: F32, exit: int) -> F32:
        """Logits [n, classes] of one exit; nothing behind it is computed."""
        w, shape = self.weights, self.shape
        stop = self.stops[exit]
        states = [np.zeros((len(x), shape.width), np.float32) for _ in range(shape.layers)]
        total = np.zeros((len(x), shape.width), np.float32)
        for t in range(stop):
            below = x[:, t]
            for layer in range(shape.layers):
                state = below @ w[f"in{layer}"]
                state += states[layer] @ w[f"on{layer}"]
                state += w[f"bias{layer}"]
                np.tanh(state, out=state)
                states[layer] = below = state
            total += below
        return np.asarray((total / np.float32(stop)) @ w[f"head{exit}"] + w[f"head_bias{exit}"])

    def answers(self, x: F32, exit: int) -> npt.NDArray[np.int64]:
        """The class of each sample, by one exit."""
        found: npt.NDArray[np.int64] = np.argmax(self.forward(x, exit), axis=1)
        return found


def accuracies(network: Network, data: Data) -> list[float]:
    """The share of right answers of each exit on the samples held out."""
    return [
        float((network.answers(data.test, exit) == data.test_class).mean())
        for exit in range(len(network.stops))
    ]


# -- training


def _begin(shape: Shape, inputs: int, classes: int, stream: Stream) -> dict[str, F32]:
    def drawn(rows: int, columns: int, scale: float) -> F32:
        cells = draws.normals(stream, rows * columns) * scale
        return cells.reshape(rows, columns).astype(np.float32)

    weights: dict[str, F32] = {}
    for layer in range(shape.layers):
        below = inputs if layer == 0 else shape.width
        weights[f"in{layer}"] = drawn(below, shape.width, 0.5 / np.sqrt(below))
        # An orthogonal start keeps the states of many steps from fading or exploding.
        weights[f"on{layer}"] = np.linalg.qr(drawn(shape.width, shape.width, 1.0))[0] * np.float32(
            0.9
        )
        weights[f"bias{layer}"] = np.zeros(shape.width, np.float32)
    for exit in range(len(shape.exits)):
        weights[f"head{exit}"] = drawn(shape.width, classes, 1.0 / np.sqrt(shape.width))
        weights[f"head_bias{exit}"] = np.zeros(classes, np.float32)
    return weights


def _gradient(network: Network, x: F32, label: npt.NDArray[np.int64]) -> dict[str, F32]:
    """The gradient of the exits' summed cross entropies, by back propagation through the steps."""
    shape, w = network.shape, network.weights
    count, layers = len(x), shape.layers
    states = np.zeros((layers, shape.steps + 1, count, shape.width), np.float32)
    for t in range(shape.steps):
        below = x[:, t]
        for layer in range(layers):
            below = np.tanh(below @ w[f"in{layer}"] + states[layer, t] @ w[f"on{layer}"]
                            + w[f"bias{layer}"])  # fmt: skip
            states[layer, t + 1] = below
    found = {name: np.zeros_like(value) for name, value in w.items()}
    # What each step's top state does to the losses of the exits behind it.
    on_top = np.zeros((shape.steps, count, shape.width), np.float32)
    for exit, stop in enumerate(network.stops):
        mean = states[-1, 1 : stop + 1].mean(axis=0)
        logits = mean @ w[f"head{exit}"] + w[f"head_bias{exit}"]
        chance = np.exp(logits - logits.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        chance[np.arange(count), label] -= 1.0
        chance /= count
        found[f"head{exit}"] += mean.T @ chance
        found[f"head_bias{exit}"] += chance.sum(axis=0)
        on_top[:stop] += (chance @ w[f"head{exit}"].T) / np.float32(stop)
    slopes = np.zeros((layers, shape.steps, count, shape.width), np.float32)
    later = [np.zeros((count, shape.width), np.float32) for _ in range(layers)]
    for t in range(shape.steps - 1, -1, -1):
        down = on_top[t]
        for layer in range(layers - 1, -1, -1):
            state = states[layer, t + 1]
            slope = (down + later[layer]) * (1.0 - state * state)
            slopes[layer, t] = slope
            later[layer] = slope @ w[f"on{layer}"].T
            if layer:
                down = slope @ w[f"in{layer}"].T
    # The sums over the steps are one product each.
    for layer in range(layers):
        below = np.swapaxes(x, 0, 1) if layer == 0 else states[layer - 1, 1:]
        flat = slopes[layer].reshape(-1, shape.width)
        found[f"in{layer}"] += below.reshape(-1, below.shape[2]).T @ flat
        found[f"on{layer}"] += states[layer, :-1].reshape(-1, shape.width).T @ flat
        found[f"bias{layer}"] += flat.sum(axis=0)
    return found


def train(
    shape: Shape, seed: int = 0, rate: float = 4e-3, batch: int = 100
) -> tuple[Network, Data]:
    """A network trained from a seed with Adam, and its data."""
    data = TASKS[shape.task](shape.steps, shape.train, TESTED, seed)
    stream = Stream(seed, "edge networks", shape.task)
    network = Network(shape, _begin(shape, data.train.shape[2], data.classes, stream))
    mean = {name: np.zeros_like(value) for name, value in network.weights.items()}
    square = {name: np.zeros_like(value) for name, value in network.weights.items()}
    turns = shape.epochs * (len(data.train) // batch)
    turn = 0
    for _ in range(shape.epochs):
        order = np.argsort(draws.uniforms(stream, len(data.train)))
        for begin in range(0, len(order) - batch + 1, batch):
            some = order[begin : begin + batch]
            turn += 1
            step = rate * (1.0 - 0.9 * turn / turns)
            for name, slope in _gradient(network, data.train[some], data.train_class[some]).items():
                mean[name] += 0.1 * (slope - mean[name])
                square[name] += 0.001 * (slope * slope - square[name])
                size = np.sqrt(square[name] / (1 - 0.999**turn)) + 1e-8
                network.weights[name] -= (step * mean[name] / (1 - 0.9**turn) / size).astype(
                    np.float32
                )
    return network, data


@functools.lru_cache(maxsize=16)
def trained(name: str) -> tuple[Network, Data]:
    """A shipped network by name, trained when it is first asked for (seconds), and its data."""
    if name not in SHAPES:
        raise UsageError(f"there is no network {name!r}; {did_you_mean(name, SHAPES)}")
    return train(SHAPES[name])
