"""Devices with different inputs (the paper's Remark 1): an encoder for each kind, and one model behind all of them.

An encoder takes inputs of its kind's own shape to the latent shape that all kinds have in common; the model begins
there. In a row the encoder comes first. All rows are as wide as the one with the largest encoder needs: columns that a
kind does not need are 0, and stay it. So everything that holds rows holds one matrix.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedfilt._checks import check_count, check_number
from fedfilt.training.description import ENCODER, Convolution, Dense, Flatten, Layer, Relu

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Encoder:
    """The table [encoder]: the latent shape, and how a device trains its encoder before its first round.

    With as many numbers as an input has, an encoder is a convolution of at least `kernel` and ReLU, whose stride is as
    the latent shape wants it; with one number it is a dense layer and ReLU. Before a device trains for the first time,
    it trains the encoder for `epochs` without labels: a decoder, which is then forgotten, has to give what the encoder
    saw back from the latent numbers.

    >>> [layer.stride for layer in Encoder(latent=(8, 31)).layers((3, 63)) if isinstance(layer, Convolution)]
    [(2,)]
    """

    # what encoders map inputs to: [channels, places] or [numbers]; empty: there are no encoders
    latent: tuple[int, ...] = ()
    kernel: int = 9  # least size of the convolution, in rows or pixels of the input
    epochs: int = 10  # without labels, before a device's first round; 0: none
    learning_rate: float = 0.05  # in these epochs

    def __post_init__(self) -> None:
        for side in self.latent:
            check_count("encoder.latent", side)
        check_count("encoder.kernel", self.kernel)
        check_count("encoder.epochs", self.epochs, low=0)
        check_number("encoder.learning_rate", self.learning_rate, low=0, above=True)

    def layers(self, shape: Sequence[int]) -> Iterator[Layer]:
        """The encoder of inputs of a shape; ValueError if it cannot have this latent shape."""
        outputs, *sides = self.latent
        if not sides:
            yield Flatten()
            yield Dense(math.prod(shape), outputs, name=ENCODER)
        elif len(shape) != len(self.latent) or len(shape) > 3:
            raise ValueError(
                f"encoder.latent must be one number, or {len(shape)} for inputs of shape {tuple(shape)}, "
                f"got {list(self.latent)}"
            )
        else:
            fitted = [_fitted(shape, long, short, self) for long, short in zip(shape[1:], sides, strict=True)]
            kernel, stride, padding = (tuple(values) for values in zip(*fitted, strict=True))
            yield Convolution(shape[0], outputs, kernel, stride, padding, name=ENCODER)
        yield Relu()


def _fitted(shape: Sequence[int], long: int, short: int, encoder: Encoder) -> tuple[int, int, int]:
    """(kernel, stride, padding) that make a side of `short` places of one with `long`, with the smallest kernel."""
    found = []
    for stride in (long // short, long // short + 1) if short <= long else ():
        least = max(encoder.kernel, stride)
        for kernel in (least, least + 1, max(least, long - stride * short + 1)):
            padding = max(0, -(-(stride * (short - 1) + kernel - long) // 2))
            if 2 * padding <= kernel <= long and (long + 2 * padding - kernel) // stride + 1 == short:
                found.append((kernel, stride, padding))
    if found:
        return min(found)
    raise ValueError(
        f"encoder.latent = {list(encoder.latent)} does not fit inputs of shape {tuple(shape)}: no convolution with "
        f"encoder.kernel = {encoder.kernel} or more turns {long} places into {short}"
    )


@dataclass(frozen=True)
class Encoded:
    """A model for latent inputs, behind the encoder of one kind of device; a part like those of fedfilt/models.

    `room` is what the largest of all encoders needs in a row.

    >>> from fedfilt.models import Motifs
    >>> from fedfilt.training.description import described
    >>> watch, unit = behind(Encoder(latent=(4, 20)), Motifs((4, 20), classes=2), [(3, 40), (9, 100)])
    >>> [slot.start for slot in described(watch).layout.slots], described(unit).layout.size - watch.room
    ([0, 108, 328, 2888, 3016, 3272], 2946)
    """

    model: Any  # with `layers()`
    encoder: Encoder
    shape: Shape  # of inputs
    room: int = 0

    def layers(self) -> Iterator[Layer]:
        """From input to output."""
        first = list(self.encoder.layers(self.shape))
        yield from first
        for place, layer in enumerate(self.model.layers()):
            if place or len(self.encoder.latent) > 1 or not isinstance(layer, Flatten):  # a dense encoder is flat
                yield replace(layer, name="") if isinstance(layer, Convolution | Dense) else layer


def behind(encoder: Encoder, model: Any, shapes: Sequence[Sequence[int]]) -> tuple[Encoded, ...]:
    """A model behind the encoder of every device, whose inputs have these shapes."""
    if not hasattr(model, "layers") or hasattr(model, "forward"):
        raise ValueError(
            f"encoders need a model that lists its layers, such as those in fedfilt.models, got {type(model).__name__}"
        )
    unlike = dict.fromkeys(tuple(shape) for shape in shapes)
    rooms = [_weights(encoder.layers(shape)) for shape in unlike]
    made = {shape: Encoded(model, encoder, shape, max(rooms)) for shape in unlike}
    return tuple(made[tuple(shape)] for shape in shapes)


def _weights(layers: Iterator[Layer]) -> int:
    return sum(math.prod(one.shape) + one.outputs for one in layers if isinstance(one, Convolution | Dense))
