"""Personal models as one C file each, without dependencies, for microcontrollers."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.export._models import NOTHING, SIGMOID, SOFTMAX, Personal
from fedfilt.training.description import Convolution, Dense, Flatten, Layer, Pool, Relu
from fedfilt.training.network import output_size

OUT, SUFFIX = "c", ".c"
WIDTH = 8  # numbers in a line

HEAD = """\
/* A personal model, written by fedfilt: {about}.
 *
 *     void fedfilt_predict(const float *input, float *output);
 *
 * takes FEDFILT_INPUTS numbers, {inputs}, and gives FEDFILT_OUTPUTS numbers,
 * {outputs}; fedfilt_labels says of what. Nothing is needed but math.h:
 *
 *     cc -O2 -c {file}     (and -lm where the program is linked)
 *
 * Constants take {flash} bytes, static memory {memory} bytes. One call at a time: calls share that memory.
 */
"""

CONVOLVE = """
/* Convolution over a picture (a window has height 1), ReLU if wanted, and the maximum of windows side by side. */
static void convolve(const float *in, const int *size, const float *weight, const float *bias, const int *kernel,
                     const int *stride, const int *padding, const int *pool, int outputs, int relu, float *out)
{
    const int channels = size[0], height = size[1], width = size[2];
    const int high = ((height + 2 * padding[0] - kernel[0]) / stride[0] + 1) / pool[0];
    const int wide = ((width + 2 * padding[1] - kernel[1]) / stride[1] + 1) / pool[1];
    for (int o = 0; o < outputs; o++)
        for (int place = 0; place < high * wide; place++) {
            float best = 0.0f;
            for (int window = 0; window < pool[0] * pool[1]; window++) {
                const int top = (place / wide * pool[0] + window / pool[1]) * stride[0] - padding[0];
                const int left = (place % wide * pool[1] + window % pool[1]) * stride[1] - padding[1];
                const float *w = weight + (long)o * channels * kernel[0] * kernel[1];
                float sum = bias ? bias[o] : 0.0f;
                for (int c = 0; c < channels; c++) {
                    float part = 0.0f; /* sums of sums lose fewer digits */
                    for (int y = top; y < top + kernel[0]; y++)
                        for (int x = left; x < left + kernel[1]; x++, w++)
                            if (y >= 0 && y < height && x >= 0 && x < width)
                                part += *w * in[((long)c * height + y) * width + x];
                    sum += part;
                }
                if (window == 0 || sum > best)
                    best = sum;
            }
            *out++ = relu && best < 0.0f ? 0.0f : best;
        }
}
"""

DENSE = """
/* Every output a weighted sum of all inputs, and ReLU if wanted. */
static void dense(const float *in, int inputs, const float *weight, const float *bias, int outputs, int relu,
                  float *out)
{
    for (int o = 0; o < outputs; o++) {
        float sum = bias ? bias[o] : 0.0f;
        for (int i = 0; i < inputs;) {
            float part = 0.0f; /* sums of sums lose fewer digits */
            for (const int end = i + 32 < inputs ? i + 32 : inputs; i < end; i++)
                part += *weight++ * in[i];
            sum += part;
        }
        out[o] = relu && sum < 0.0f ? 0.0f : sum;
    }
}
"""

SOFTMAX_C = """
    float most = output[0], sum = 0.0f;
    for (int i = 1; i < FEDFILT_OUTPUTS; i++)
        most = output[i] > most ? output[i] : most;
    for (int i = 0; i < FEDFILT_OUTPUTS; i++)
        sum += output[i] = expf(output[i] - most);
    for (int i = 0; i < FEDFILT_OUTPUTS; i++)
        output[i] /= sum;
"""

SIGMOID_C = """
    for (int i = 0; i < FEDFILT_OUTPUTS; i++)
        output[i] = 1.0f / (1.0f + expf(-output[i]));
"""


class _Step(NamedTuple):
    """A layer with weights and what follows it."""

    layer: Convolution | Dense
    size: tuple[int, int, int]  # of its input: channels, height, width
    pool: tuple[int, int]
    relu: bool
    numbers: int  # that come out


def content(model: Personal) -> bytes:
    """The file, in ASCII."""
    steps = list(_steps(model))
    inputs = math.prod(model.shape)
    buffers = [inputs if model.pixels or model.scaling else 0, *(step.numbers for step in steps[:-1])]
    even, odd = (max(buffers[i::2], default=0) for i in range(2))
    weights, places = _weights(model)
    channels = 2 * len(model.scaling.mean) if model.scaling else 0
    labels = ", ".join(f'"{_quoted(label)}"' for label in model.labels)
    parts = [
        HEAD.format(
            about=", ".join(f"{key} {_said(value)}" for key, value in model.about.items()),
            inputs=_inputs(model),
            outputs="probabilities" if model.end != NOTHING else "the values of its outputs",
            flash=4 * len(weights) + 8 * channels,
            memory=4 * (even + odd),
            file=f"{_said(model.name)}.c",
        ),
        "#include <math.h>",
        "",
        f"#define FEDFILT_INPUTS {inputs} /* {' x '.join(map(str, model.shape))} */",
        f"#define FEDFILT_OUTPUTS {model.description.outputs}",
        "",
        f"const char *const fedfilt_labels[FEDFILT_OUTPUTS] = {{{labels}}};",
        "",
        _array("float", "weights", [f"{value:.9g}" for value in weights.tolist()], "f"),
    ]
    if model.scaling is not None:
        for name, values in (("means", model.scaling.mean), ("spreads", model.scaling.spread)):
            parts.append(_array("double", name, [f"{value:.17g}" for value in values.tolist()]))
    for name, size in (("even", even), ("odd", odd)):
        if size:
            parts.append(f"static float {name}[{size}];")
    kinds = {type(step.layer) for step in steps}
    parts += [code for kind, code in ((Convolution, CONVOLVE), (Dense, DENSE)) if kind in kinds]
    parts += ["\nvoid fedfilt_predict(const float *input, float *output);\n"]
    parts += ["void fedfilt_predict(const float *input, float *output)\n{", *_body(model, steps, places), "}\n"]
    return "\n".join(parts).encode("ascii")


def _steps(model: Personal) -> Iterator[_Step]:
    """The layers in steps of one with weights, its ReLU and its pool; ValueError where they come otherwise."""
    layers: list[Layer] = [layer for layer in model.description.layers if not isinstance(layer, Flatten)]
    size = (model.shape[0], *(1,) * (3 - len(model.shape)), *model.shape[1:])
    while layers:
        layer = layers.pop(0)
        if not isinstance(layer, Convolution | Dense):
            raise ValueError(f"a model with {type(layer).__name__} at that place cannot be exported to C")
        after = []
        while layers and isinstance(layers[0], Relu | Pool):
            after.append(layers.pop(0))
        pools = [one for one in after if isinstance(one, Pool)]
        if len(pools) > 1 or (pools and isinstance(layer, Dense)):
            raise ValueError("a model with two pools in a row, or one of a dense layer, cannot be exported to C")
        pool = _sides(pools[0].size if pools else (1, 1), 1)
        if isinstance(layer, Convolution):
            sides = output_size(layer, size[3 - len(layer.kernel) :])
            out = (layer.outputs, *(n // q for n, q in zip(_sides(sides, 1), pool, strict=True)))
        else:
            out = (layer.outputs, 1, 1)
        yield _Step(layer, (size[0], size[1], size[2]), pool, len(after) > len(pools), math.prod(out))
        size = out


def _sides(values: tuple[int, ...], height: int) -> tuple[int, int]:
    """A setting of both sides of a picture, as a window is one of height 1."""
    return (height, values[0]) if len(values) == 1 else (values[0], values[1])


def _weights(model: Personal) -> tuple[Array, dict[str, int]]:
    """(all weights, one after the other as torch has them; where each tensor begins)."""
    tensors = {slot.name: model.tensors[slot.name] for slot in model.description.layout.slots}
    ends = np.cumsum([0, *(tensor.size for tensor in tensors.values())]).tolist()
    return np.concatenate([tensor.ravel() for tensor in tensors.values()]), dict(zip(tensors, ends[:-1], strict=True))


def _body(model: Personal, steps: list[_Step], places: dict[str, int]) -> Iterator[str]:
    """The lines of the function, which passes numbers from one buffer to the other."""
    buffers, now = ("even", "odd"), "input"
    if model.pixels or model.scaling is not None:
        yield from _scale(model)
        now = "even"
    for i, step in enumerate(steps):
        layer, out = step.layer, "output" if i == len(steps) - 1 else buffers[(i + 1) % 2]
        weight = f"weights + {places[f'{layer.name}.weight']}"
        bias = f"weights + {places[f'{layer.name}.bias']}" if layer.bias else "0"
        if isinstance(layer, Dense):
            yield f"    dense({now}, {layer.inputs}, {weight}, {bias}, {layer.outputs}, {step.relu:d}, {out});"
        else:
            named = {"size": step.size, "kernel": _sides(layer.kernel, 1), "stride": _sides(layer.stride, 1)}
            named |= {"padding": _sides(layer.padding, 0), "pool": step.pool}
            tables = {key: f"(const int[]){{{', '.join(map(str, values))}}}" for key, values in named.items()}
            yield f"    convolve({now}, {tables['size']}, {weight}, {bias}, {tables['kernel']}, {tables['stride']},"
            yield f"             {tables['padding']}, {tables['pool']}, {layer.outputs}, {step.relu:d}, {out});"
        now = out
    if model.end != NOTHING:
        yield {SOFTMAX: SOFTMAX_C, SIGMOID: SIGMOID_C}[model.end].strip("\n")


def _scale(model: Personal) -> Iterator[str]:
    """The lines that do to inputs what training did before the first layer."""
    yield "    for (int i = 0; i < FEDFILT_INPUTS; i++) {"
    if model.scaling is None:
        yield "        even[i] = input[i] / 255.0f;"
    else:
        each = math.prod(model.shape[1:])
        yield f"        double x = ((double)input[i] - means[i / {each}]) / spreads[i / {each}];"
        yield "        x = x < -10.0 ? -10.0 : x > 10.0 ? 10.0 : x;"
        soft = model.scaling.soft
        yield (
            f"        even[i] = asinhf({_number(f'{soft:.9g}')}f * (float)x);"
            if soft
            else "        even[i] = (float)x;"
        )
    yield "    }"


def _inputs(model: Personal) -> str:
    if model.pixels:
        return "pixels from 0 to 255"
    return "as the sensors give them" if model.scaling is not None else "as the model was trained on"


def _array(kind: str, name: str, numbers: list[str], suffix: str = "") -> str:
    """A constant table."""
    words = [f"{_number(number)}{suffix}" for number in numbers]
    lines = [", ".join(words[i : i + WIDTH]) for i in range(0, len(words), WIDTH)]
    return f"static const {kind} {name}[{len(numbers)}] = {{\n    " + ",\n    ".join(lines) + "\n};"


def _number(text: str) -> str:
    """A number that C takes for a floating-point one."""
    return text if "." in text or "e" in text else f"{text}.0"


def _said(text: str) -> str:
    """A text of others in a comment, which it cannot end."""
    return "".join(x if x.isascii() and (x.isalnum() or x in " .,=_+-()") else "_" for x in text)


def _quoted(text: str) -> str:
    r"""A text of others as C writes it between quotes.

    >>> _quoted('sit "down"'), _quoted("é?")
    ('sit \\042down\\042', '\\303\\251\\077')
    """
    return "".join(x if x.isascii() and (x.isalnum() or x in " .,=_+-()") else _octal(x) for x in text)


def _octal(letter: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in letter.encode())
