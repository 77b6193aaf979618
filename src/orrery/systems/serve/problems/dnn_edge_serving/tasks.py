"""Data for the real networks: noisy glyphs, waveforms and motions, made from a seed; digits.

A sample is a sequence of steps, as a sensor delivers it: noisy frames of a glyph, slices of a
waveform, readings of a three-axis accelerometer. Later steps add evidence, so that a
deeper exit can know more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PlatformLacks
from orrery.base.rand import Stream
from orrery.inputs import draws

F32 = npt.NDArray[np.float32]

# The digits of a 5 x 7 matrix display, a row to five bits.
_FONT = (
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)  # fmt: skip


class Data(NamedTuple):
    """Samples [n, steps, width] and their classes, to learn from and to test on."""

    train: F32
    train_class: npt.NDArray[np.int64]
    test: F32
    test_class: npt.NDArray[np.int64]

    @property
    def classes(self) -> int:
        return int(self.train_class.max()) + 1


def _split(samples: npt.NDArray[np.float64], classes: npt.NDArray[np.int64], tested: int) -> Data:
    small = samples.astype(np.float32)
    return Data(small[tested:], classes[tested:], small[:tested], classes[:tested])


def _labels(stream: Stream, count: int, classes: int) -> npt.NDArray[np.int64]:
    return np.minimum(draws.uniforms(stream, count) * classes, classes - 1).astype(np.int64)


def _filmed(
    images: npt.NDArray[np.float64], steps: int, noise: float, stream: Stream
) -> npt.NDArray[np.float64]:
    shape = (len(images), steps, images.shape[1])
    grain = draws.normals(stream, len(images) * steps * images.shape[1]).reshape(shape)
    return images[:, None, :] + noise * grain


def glyphs(steps: int, train: int, test: int, seed: int = 0, noise: float = 1.0) -> Data:
    """Digits of a matrix display, shifted, filmed in the dark: every step is a noisy frame."""
    stream = Stream(seed, "edge tasks", "glyphs")
    count = train + test
    label = _labels(stream, count, 10)
    down, right = _labels(stream, count, 3), _labels(stream, count, 3)
    frames = np.zeros((count, 10, 8))
    font = np.array([[[row >> (4 - c) & 1 for c in range(5)] for row in glyph] for glyph in _FONT])
    for i in range(count):
        frames[i, down[i] : down[i] + 7, right[i] : right[i] + 5] = font[label[i]]
    return _split(_filmed(frames.reshape(count, 80), steps, noise, stream), label, test)


def signals(steps: int, train: int, test: int, seed: int = 0, noise: float = 0.6) -> Data:
    """Six kinds of wave of any phase and of many frequencies, in slices of eight samples."""
    stream = Stream(seed, "edge tasks", "signals")
    count, samples = train + test, steps * 8
    label = _labels(stream, count, 6)
    turns = (3.0 + 3.0 * draws.uniforms(stream, count)) * steps / 40.0
    phase = draws.uniforms(stream, count)
    at = np.arange(samples) / samples
    angle = turns[:, None] * at + phase[:, None]
    part = angle % 1.0
    kinds = np.stack([
        np.sqrt(2.0) * np.sin(2 * np.pi * angle),
        np.where(part < 0.5, 1.0, -1.0),
        np.sqrt(3.0) * (2 * part - 1),
        np.sqrt(3.0) * (4 * np.abs(part - 0.5) - 1),
        np.where(part < 0.25, np.sqrt(3.0), -1 / np.sqrt(3.0)),
        np.sin(2 * np.pi * angle) + np.sin(4 * np.pi * angle + 1.0),
    ])  # fmt: skip
    wave = kinds[label, np.arange(count)]
    seen = wave + noise * draws.normals(stream, wave.size).reshape(wave.shape)
    return _split(seen.reshape(count, steps, 8), label, test)


def motions(steps: int, train: int, test: int, seed: int = 0, noise: float = 1.0) -> Data:
    """Five gaits on three axes: they differ in pace, in direction and in how the axes lag."""
    stream = Stream(seed, "edge tasks", "motions")
    count = train + test
    label = _labels(stream, count, 5)
    pace = np.array([0.08, 0.08, 0.13, 0.13, 0.19])[label] * (
        0.9 + 0.2 * draws.uniforms(stream, count)
    )
    lag = np.array([0.0, 0.25, 0.0, 0.5, 0.25])[label]
    phase = draws.uniforms(stream, count)
    angle = 2 * np.pi * (pace[:, None] * np.arange(steps) + phase[:, None])
    axes = [np.sin(angle), np.sin(angle + 2 * np.pi * lag[:, None]), np.sin(2 * angle)]
    weight = np.array([[1, 1, 0.2], [1, 1, 0.5], [1, 0.6, 0.2], [0.6, 1, 0.5], [1, 1, 0.8]])[label]
    seen = np.stack(axes, axis=2) * weight[:, None, :]
    seen = seen + noise * draws.normals(stream, seen.size).reshape(seen.shape)
    return _split(seen, label, test)


def digits(steps: int, train: int, test: int, seed: int = 0, noise: float = 3.0) -> Data:
    """The 1,797 handwritten digits of scikit-learn, filmed in the dark."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        fix = "pip install 'orrery[data]', or use the task glyphs"
        raise PlatformLacks(f"the task digits is read from scikit-learn; {fix}") from None
    images, label = load_digits(return_X_y=True)
    stream = Stream(seed, "edge tasks", "digits")
    order = np.argsort(draws.uniforms(stream, len(label)))[: train + test]
    seen = _filmed((images[order] - 5.0) / 6.0, steps, noise, stream)
    return _split(seen, label[order].astype(np.int64), min(test, len(order) // 3))


TASKS: dict[str, Callable[..., Data]] = {
    "glyphs": glyphs, "signals": signals, "motions": motions, "digits": digits,
}  # fmt: skip
