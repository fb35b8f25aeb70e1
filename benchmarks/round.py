"""The paper's round (20 devices x 450 samples x 3 epochs, batch 32) against an sgemm of the same FLOPs and its rivals.

All variants alternate in one run; each figure is the best of several. One core each, but for "2 threads". FedJAX,
pfl, Flower's simulation and Keras take part where they are installed (extra `rivals`). Then the memory of
training 1,000 devices. Usage: python benchmarks/round.py [--quick]
"""

import copy
import itertools
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from common import conclude, heading, interleaved, sgemm
from fedfilt import native
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.system.orders import Job, Plan

EPOCHS, BATCH, RATE = 3, 32, 0.02


def naive(run):
    """A module, an optimiser and a DataLoader per device, as tutorials do it."""
    sets = [
        TensorDataset(torch.from_numpy(run.data.x[rows]).float() / 255, torch.from_numpy(run.data.y[rows]))
        for rows in run.data.train
    ]
    models = [copy.deepcopy(run.trainer.module) for _ in sets]

    def round():
        for model, samples in zip(models, sets, strict=True):
            plain_loop(model, samples)

    return round


def plain_loop(model, samples):
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for x, y in DataLoader(samples, batch_size=BATCH, shuffle=True):
            optimiser.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimiser.step()


def flower_round(run):
    """Flower's quickstart: FedAvg, and a plain PyTorch loop in the ClientApp, in its own simulation on one core."""
    import ray  # noqa: F401 (Flower's simulation is of no use without it)
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    module, folder = copy.deepcopy(run.trainer.module), tempfile.TemporaryDirectory()
    for device, rows in enumerate(run.data.train):
        np.savez(f"{folder.name}/{device}.npz", x=run.data.x[rows], y=run.data.y[rows])
    place, client, server = folder.name, ClientApp(), ServerApp()
    go, done = queue.Queue(), queue.Queue()

    @client.train()
    def _train(message, context):
        torch.set_num_threads(1)
        own = np.load(f"{place}/{context.node_config['partition-id']}.npz")
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        plain_loop(module, TensorDataset(torch.from_numpy(own["x"]).float() / 255, torch.from_numpy(own["y"])))
        metrics = MetricRecord({"num-examples": len(own["y"])})
        return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)

    @server.main()
    def _main(grid, context):
        while threading.main_thread().is_alive():  # else the benchmark would never end
            try:
                go.get(timeout=1)
            except queue.Empty:
                continue
            first = ArrayRecord(run.trainer.module.state_dict())
            found = FedAvg(fraction_evaluate=0.0).start(grid, first, num_rounds=1)
            done.put(found.train_metrics_clientapp)

    one_core = {"init_args": {"num_cpus": 1, "include_dashboard": False}, "client_resources": {"num_cpus": 1}}
    options = {"server_app": server, "client_app": client, "num_supernodes": run.graph.count}
    threading.Thread(target=run_simulation, kwargs={**options, "backend_config": one_core}, daemon=True).start()

    def round():
        go.put(folder)  # which is kept as long as this
        assert done.get(timeout=600), "no device has trained"

    return round


def keras_fit(run):
    """The authors' way: a Keras model per device and its fit()."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    layers = tf.keras.layers
    models = []
    for _ in run.data.train:
        model = tf.keras.Sequential(
            [
                layers.Input((28, 28, 1)),
                layers.Conv2D(32, 3, 2, "same", activation="relu"),
                layers.MaxPooling2D(2),
                layers.Conv2D(64, 3, 2, "same", activation="relu"),
                layers.MaxPooling2D(2),
                layers.Flatten(),
                layers.Dense(128, activation="relu"),
                layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(tf.keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy")
        models.append(model)
    sets = [
        (run.data.x[rows].transpose(0, 2, 3, 1).astype(np.float32) / 255, run.data.y[rows]) for rows in run.data.train
    ]

    def round():
        for model, (x, y) in zip(models, sets, strict=True):
            model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)

    return round


def pfl_round(run):
    """Apple's pfl-research: federated averaging with its simulated backend, its own model and optimiser classes."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = copy.deepcopy(run.trainer.module)

        def loss(self, x, y, is_eval=False):
            return functional.cross_entropy(self.layers(x), y)

        @torch.no_grad()
        def metrics(self, x, y):
            return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}

    sets = [
        [torch.from_numpy(run.data.x[rows]).float() / 255, torch.from_numpy(run.data.y[rows])]
        for rows in run.data.train
    ]
    users = itertools.cycle(range(len(sets))).__next__
    data = FederatedDataset(lambda user: Dataset(sets[user]), users)
    module = Net()
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, optimiser)
    backend = SimulatedBackend(data, None)
    steps = NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=RATE, local_batch_size=BATCH)

    def round():
        params = NNAlgorithmParams(
            central_num_iterations=1,
            evaluation_frequency=10,
            train_cohort_size=len(sets),
            val_cohort_size=None,
        )
        FederatedAveraging().run(params, backend, model, steps, None, [], send_metrics_to_platform=False)

    return round


def fedjax_round(run):
    """Google's FedJAX: federated averaging of a haiku model, compiled by XLA on one thread."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    import fedjax
    import haiku
    import jax
    import jax.numpy

    for name in (
        "tree_map",
        "tree_leaves",
        "tree_flatten",
        "tree_unflatten",
    ):  # FedJAX 0.0.17 needs them
        if not hasattr(jax, name):
            setattr(jax, name, getattr(jax.tree_util, name))

    def net(x):
        layers = [
            *(haiku.Conv2D(32, 3, 2), jax.nn.relu, haiku.MaxPool((2, 2, 1), (2, 2, 1), "VALID")),
            *(haiku.Conv2D(64, 3, 2), jax.nn.relu, haiku.MaxPool((2, 2, 1), (2, 2, 1), "VALID")),
            *(haiku.Flatten(), haiku.Linear(128), jax.nn.relu, haiku.Linear(10)),
        ]
        return haiku.Sequential(layers)(x)

    made = haiku.without_apply_rng(haiku.transform(net))

    def loss(params, batch, _):
        logits = jax.nn.log_softmax(made.apply(params, batch["x"]))
        return -jax.numpy.take_along_axis(logits, batch["y"][:, None], axis=1).mean()

    clients = []
    for device, rows in enumerate(run.data.train):
        x = run.data.x[rows].transpose(0, 2, 3, 1).astype(np.float32) / 255
        clients.append((device, fedjax.ClientDataset({"x": x, "y": run.data.y[rows]}), jax.random.PRNGKey(device)))
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=EPOCHS, drop_remainder=False),
    )
    start = algorithm.init(made.init(jax.random.PRNGKey(0), jax.numpy.zeros((1, 28, 28, 1))))
    return lambda: jax.block_until_ready(algorithm.apply(start, clients)[0].params)


def ours(run, engine):
    state = run.start()
    jobs = [Job(1, device, state.models[device], Plan(EPOCHS)) for device in range(run.graph.count)]
    return lambda: list(engine.train(jobs, math.inf))


def config(**changes):
    table = {"samples": {"train": 450, "local_test": 100, "global_test": 100}, "training": {"learning_rate": RATE}}
    return from_table({**table, **changes})


def peak_memory():
    """Largest memory (shared pages counted once) of a process with 2 workers that trains 1,000 devices for 2 rounds."""
    code = """
from pathlib import Path
import sys
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.play import play_in_folder
if __name__ == "__main__":
    samples = {"train": 45, "local_test": 20, "global_test": 100}
    graph = {"name": "nearest", "devices": 1000, "rooms": 200}
    table = {"graph": graph, "samples": samples, "rounds": 2, "engine": {"workers": 2}, "evaluation": {"every": 1}}
    run = Run(from_table(table))
    for line in play_in_folder(run, Path(sys.argv[1])):
        pass
"""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "many.py"
        script.write_text(code)
        process = subprocess.Popen([sys.executable, str(script), str(Path(folder) / "run")])
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(_proportional(pid) for pid in [process.pid, *_children(process.pid)]))
            time.sleep(0.2)
        assert process.returncode == 0
    return peak


def _children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _proportional(pid):
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def torch_engine(run):
    before = os.environ.get(native.VARIABLE)
    os.environ[native.VARIABLE] = "off"
    engine = run.engine()
    os.environ.pop(native.VARIABLE) if before is None else os.environ.update({native.VARIABLE: before})
    return engine


def main():
    quick = "--quick" in sys.argv[1:]
    torch.set_num_threads(1)
    heading()
    one, two = Run(config(engine={"workers": 1})), Run(config(engine={"workers": 2}))
    flops = one.flops_per_sample * EPOCHS * sum(len(rows) for rows in one.data.train)
    yardstick, more = sgemm(flops)
    with one.engine() as alone, two.engine() as pair, torch_engine(one) as plain:
        variants = {
            "sgemm, same FLOPs": yardstick,
            "fedfilt": ours(one, alone),
            "fedfilt, 2 threads": ours(two, pair),
            "fedfilt without native core": ours(one, plain),
            "plain PyTorch loop": naive(one),
        }
        rivals = {
            "FedJAX": fedjax_round,
            "pfl": pfl_round,
            "Flower simulation": flower_round,
            "Keras fit per device": keras_fit,
        }
        for name, rival in rivals.items():
            try:
                variants[name] = rival(one)
            except ImportError as error:
                print(f"{name} is left out: {error}\n")
        best = interleaved(variants, 2 if quick else 7)
    best["sgemm, same FLOPs"] /= more
    floor = best["sgemm, same FLOPs"]
    print(f"{flops / 1e9:.1f} GFLOP a round\n")
    print("| | s a round | x sgemm | x fedfilt |\n|---|---|---|---|")
    for name, seconds in best.items():
        print(f"| {name} | {seconds:.3f} | {seconds / floor:.2f} | {seconds / best['fedfilt']:.2f} |")
    fast = best["fedfilt"]
    peak = peak_memory()
    print(f"\n1,000 devices of the paper's CNN, 2 threads: peak {peak / 1e9:.2f} GB")
    conclude(
        [
            ("at most 1.25x an sgemm of the same FLOPs", floor * 1.25 / fast, 1.0),
            ("x as fast as a plain PyTorch loop", best["plain PyTorch loop"] / fast, 7.0),
            ("x as fast as without native core", best["fedfilt without native core"] / fast, 4.0),
            ("2 threads x as fast as 1", fast / best["fedfilt, 2 threads"], 1.8),
            ("1,000 devices in under 3 GB", 3e9 / peak, 1.0),
        ]
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
