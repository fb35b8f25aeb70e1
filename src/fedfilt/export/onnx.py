"""Personal models as ONNX files, from raw inputs to probabilities."""

from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from fedfilt._types import Array
from fedfilt.export._models import NOTHING, SIGMOID, SOFTMAX, Personal
from fedfilt.training.description import Convolution, Dense, Flatten, Pool, Relu

OUT, SUFFIX = "onnx", ".onnx"
OPSET, IR = 17, 8  # of 2022: old enough for every runtime, new enough for every layer
ENDS: dict[str, tuple[str, dict[str, int]]] = {SOFTMAX: ("Softmax", {"axis": 1}), SIGMOID: ("Sigmoid", {})}


class _Graph:
    """A chain of nodes: each takes the output of the one before."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.last = "input"

    def add(self, kind: str, *constants: tuple[str, Array], **options: Any) -> None:
        """A node that takes what the last one gives, and named constants."""
        self.tensors += [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants]
        names, out = [name for name, _ in constants], f"{kind.lower()}-{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [self.last, *names], [out], **options))
        self.last = out


def content(model: Personal) -> bytes:
    """The file: `input` (batch, ...) as bytes or floats, `output` (batch, labels) as probabilities."""
    graph, weights = _Graph(), model.tensors
    _scale(graph, model)
    for layer in model.description.layers:
        if isinstance(layer, Convolution | Dense):
            named = [f"{layer.name}.{kind}" for kind in ("weight", "bias")[: 1 + layer.bias]]
            known = [(name, weights[name]) for name in named]
            if isinstance(layer, Dense):
                graph.add("Gemm", *known, transB=1)
            else:
                options = {"kernel_shape": layer.kernel, "strides": layer.stride, "pads": layer.padding * 2}
                graph.add("Conv", *known, **options)
        elif isinstance(layer, Relu):
            graph.add("Relu")
        elif isinstance(layer, Pool):
            graph.add("MaxPool", kernel_shape=layer.size, strides=layer.size)
        elif isinstance(layer, Flatten):
            graph.add("Flatten", axis=1)
        else:
            raise ValueError(f"a model with {type(layer).__name__} cannot be exported to ONNX")
    if model.end != NOTHING:
        graph.add(ENDS[model.end][0], **ENDS[model.end][1])
    graph.nodes[-1].output[0] = "output"
    given = TensorProto.UINT8 if model.pixels else TensorProto.FLOAT
    inputs = helper.make_tensor_value_info("input", given, ["batch", *model.shape])
    outputs = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", model.description.outputs])
    made = helper.make_model(
        helper.make_graph(graph.nodes, "fedfilt", [inputs], [outputs], graph.tensors),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="fedfilt",
        producer_version=model.about["fedfilt"],
    )
    helper.set_model_props(made, {**model.about, "labels": "\n".join(model.labels)})
    checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


def _scale(graph: _Graph, model: Personal) -> None:
    """What training did to inputs before the first layer: bytes to 0..1, or the device's own scaling."""
    if model.pixels:
        graph.add("Cast", to=TensorProto.FLOAT)
        graph.add("Div", ("most", np.array(255, np.float32)))
    if model.scaling is not None:
        mean, spread = (
            values.reshape(-1, *[1] * (len(model.shape) - 1)) for values in (model.scaling.mean, model.scaling.spread)
        )
        graph.add("Cast", to=TensorProto.DOUBLE)  # a mean much larger than its spread needs the digits
        graph.add("Sub", ("mean", mean))
        graph.add("Div", ("spread", spread))
        graph.add("Clip", ("low", np.array(-10.0)), ("high", np.array(10.0)))
        graph.add("Cast", to=TensorProto.FLOAT)
        if model.scaling.soft:
            graph.add("Mul", ("soft", np.array(model.scaling.soft, np.float32)))
            graph.add("Asinh")
