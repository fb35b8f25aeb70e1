"""What one edge server holds, and many: the figures of docs/scale.md.

mixing     a graph filter on the paper's CNN (53,002 parameters) of so many devices, each linked with its 6 nearest;
           a block of columns is measured, as many as take 0.8 GB, and seconds are those of all columns
planning   a schedule of the paper's problem P'' for so many devices
round      rounds in which a tenth of so many devices trains a logistic model (650 parameters) on 45 samples
buildings  examples/many_buildings.py with 50 buildings of 200 devices, by blocks of 2,000 columns

Seconds are those of the processor, the best of three (of one for preparing a filter), so that others on the machine
count little. Memory is the peak of the process. Each piece runs in a process of its own and is kept in OUT/KIND.json as
soon as it is done; a second start does only what is missing. Usage:

python benchmarks/scale.py [--out scale]              # up to 1,000 devices: a minute
python benchmarks/scale.py --out results/scale --full # up to 100,000 devices, and the buildings: some minutes
python benchmarks/scale.py --out results/scale --page # writes the tables of docs/scale.md from the result files
"""

import argparse
import json
import math
import os
import runpy
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from common import peak_memory, where
from fedfilt import FederatedData, Graph, Run, from_table, mix, play
from fedfilt._files import write_atomically
from fedfilt.filters import Tikhonov
from fedfilt.populations import Prescribed
from fedfilt.schedulers import SameDeadline
from fedfilt.system.wire import wire_size

ROOT = Path(__file__).resolve().parent.parent
PARAMETERS, LIGHT = 53_002, 650  # of the paper's CNN, of a logistic model
SIZES = (100, 1_000, 10_000, 100_000)
SMALL = 1_000  # devices up to which a piece is measured without --full
HELD = 200_000_000  # numbers of a signal that is held at once
FRACTION, SAMPLES = 0.1, 45
BEFORE, ROUNDS = 1, 3  # rounds until memory has its full size; rounds that are measured
BUILDINGS, DEVICES, COLUMNS = 50, 200, 2_000

# Assumptions of the costs of many homes
HOME, BORDER = 10, 2  # devices of a home; those of them with links to other homes
RATE, BLOCK = 1e9, 1_000  # bits a second of the cloud's link, each way; columns that the cloud holds at once
REQUESTS = 0.3  # seconds of an edge server's processor for a device and round: benchmarks/many_devices.py


# --- pieces -------------------------------------------------------------------------------------------------------


def best_of(repetitions, work):
    """The least seconds of the processor."""
    best = math.inf
    for _ in range(repetitions):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def mixing(count):
    rng = np.random.default_rng(0)
    graph, response = Graph.nearest(rng.random((count, 2)), 6), Tikhonov(1.0)
    prepare = best_of(1, lambda: mix(graph, response, np.zeros((count, 8), np.float32)))
    prepared = peak_memory()
    columns = min(PARAMETERS, HELD // count)
    signal = np.empty((count, columns), np.float32)
    for rows in np.array_split(signal, max(1, count // 1_000)):
        rows[:] = rng.standard_normal(rows.shape, np.float32)
    seconds = best_of(3, lambda: mix(graph, response, signal, out=signal))
    return {
        "columns": columns,
        "prepare": prepare,
        "prepared_bytes": prepared,
        "seconds": seconds * PARAMETERS / columns,
    }


def planning(count):
    size = wire_size(PARAMETERS, PARAMETERS)
    hardware = Prescribed(0.31, 1.92).draw(np.full(count, SAMPLES), size, np.random.default_rng(0))
    return {"seconds": best_of(3, lambda: SameDeadline()(hardware, size))}


def a_round(count):
    from participation import Timed

    rng = np.random.default_rng(0)
    pool = rng.standard_normal((1_000, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 1_000)
    train = tuple(rng.integers(0, 1_000, (count, SAMPLES)))
    data = FederatedData("random", *pool, 10, train, None, np.arange(10))
    table = {
        "rounds": 1_000,
        "model": "logistic",
        "scheduler": {"name": "everything", "epochs": 1},
        "evaluation": {"every": 1_000},
        "engine": {"workers": 1},
        "participation": {"fraction": FRACTION},
    }
    run = Run(from_table(table), data=data, graph=Graph.nearest(rng.random((count, 2)), 6))
    found = []
    with run.experiment() as experiment:
        engine = Timed(experiment.engine)
        rounds = play(run.start(), replace(experiment, engine=engine))
        for number in range(BEFORE + ROUNDS):
            start = time.process_time()
            next(rounds)
            if number >= BEFORE:
                found.append((time.process_time() - start, engine.seconds))
    whole, training = min(found)
    return {"parameters": run.layout.size, "training": training, "rest": whole - training}


def buildings(count):
    """Seconds of the slowest building, of the cloud, and of a server that mixes all models; errors against it."""
    made = runpy.run_path(str(ROOT / "examples" / "many_buildings.py"))
    graph, rng = made["street"](BUILDINGS, count // BUILDINGS), np.random.default_rng(1)
    weights = rng.integers(0, 900, count)
    start = time.process_time()
    servers, cloud = made["prepare"](graph, [count // BUILDINGS] * BUILDINGS, weights, 1.0)
    found = {"prepare": time.process_time() - start, "parts": math.inf, "building": math.inf, "cloud": math.inf}
    response = Tikhonov(1.0)
    start = time.process_time()
    mix(graph, response, np.zeros((count, 8), np.float32), weights)
    found |= {"whole_prepare": time.process_time() - start, "whole": math.inf}
    signal = rng.standard_normal((count, COLUMNS))
    for kind in (np.float64, np.float32, np.float32, np.float32):  # the last three are timed, and take turns
        models, taken = np.split(signal.astype(kind), BUILDINGS), np.zeros(BUILDINGS + 1)
        reduced = [timed(taken, i, servers[i].reduce, own) for i, own in enumerate(models)]
        rows = timed(taken, -1, cloud.solve, reduced)
        mixed = np.concatenate([timed(taken, i, servers[i].finish, own) for i, own in enumerate(rows)])
        together = np.concatenate(models)
        exact = mix(graph, response, together.astype(np.float64), weights)
        found[f"error_{kind.__name__}"] = float(abs(mixed - exact).max() / abs(exact).max())
        if kind is np.float32:
            start = time.process_time()
            mix(graph, response, together, weights, out=together)
            whole = time.process_time() - start
            new = {"parts": taken.sum(), "building": taken[:-1].max(), "cloud": taken[-1], "whole": whole}
            found |= {name: min(found[name], float(seconds) * PARAMETERS / COLUMNS) for name, seconds in new.items()}
    return {
        **found,
        "devices": graph.count,
        "border": sum(len(server.border) for server in servers),
        "links": len(graph.edges),
        "links_between": int((graph.edges // (count // BUILDINGS) @ [1, -1] != 0).sum()),
        "once_bytes": sum(8 * server.schur.size for server in servers),
        **shares(servers),
    }


def timed(taken, place, work, *given):
    """What some work gives; its seconds of the processor are added to `taken`."""
    start = time.process_time()
    result = work(*given)
    taken[place] += time.process_time() - start
    return result


def shares(servers):
    """What rows that go to the cloud are made of: the share of the border device itself, and of how many others."""
    own, others = [], []
    for server in servers:
        weights = np.concatenate(
            [np.diag(server.mass[server.border, 0]), server.follow.T * server.mass[server.inner, 0]], 1
        )
        parts = weights / weights.sum(axis=1, keepdims=True)
        own += np.diag(parts[:, : len(server.border)]).tolist()
        others += (1 / (parts**2).sum(axis=1)).tolist()
    return {"own_median": float(np.median(own)), "own_most": max(own), "devices_median": float(np.median(others))}


KINDS = {
    "mixing": (mixing, SIZES),
    "planning": (planning, SIZES),
    "round": (a_round, SIZES[1:]),
    "buildings": (buildings, (BUILDINGS * DEVICES,)),
}


def compute(out, full):
    """Every piece that is missing, in a process of its own."""
    out.mkdir(parents=True, exist_ok=True)
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for kind, (_, sizes) in KINDS.items():
        path = out / f"{kind}.json"
        found = json.loads(path.read_text()) if path.exists() else {**where("scipy"), "pieces": {}}
        for size in sizes:
            if str(size) not in found["pieces"] and (full or size <= SMALL):
                load = round(os.getloadavg()[0], 1)
                words = [sys.executable, __file__, "--piece", kind, str(size)]
                said = subprocess.run(words, env=os.environ | alone, check=True, stdout=subprocess.PIPE).stdout
                found["pieces"][str(size)] = {**json.loads(said), "load": load}
                write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())
                print(kind, size, found["pieces"][str(size)], flush=True)


# --- costs --------------------------------------------------------------------------------------------------------


def seconds_of(name, rows, pieces):
    """Seconds for so many rows: on the lines between what was measured, log to log; the last goes on beyond."""
    last = int(np.clip(np.searchsorted(SIZES, rows), 1, len(SIZES) - 1))
    low, high = SIZES[last - 1], SIZES[last]
    below, above = pieces[str(low)][name], pieces[str(high)][name]
    return below * (rows / low) ** (math.log(above / below) / math.log(high / low))


def costs(homes, parameters, pieces):
    """What a round of so many homes takes, by name; `pieces` are those of mixing.json."""
    devices, rows = homes * HOME, homes * BORDER
    least, most = (pieces[str(size)]["prepared_bytes"] for size in (SIZES[0], SIZES[-1]))
    each = (most - least) / SIZES[-1]  # bytes of a row's part of the graph and its factor
    cloud = {
        f"{who}, {name}": value
        for who, count in (("border rows", rows), ("all models", devices))
        for name, value in {
            "bytes up, and down": 4 * parameters * count,
            "seconds of its link": 8 * 4 * parameters * count / RATE,
            "seconds of preparing": seconds_of("prepare", count, pieces),
            "seconds of mixing": seconds_of("seconds", count, pieces) * parameters / PARAMETERS,
            "bytes of memory": count * (each + 4 * min(BLOCK, parameters)),
        }.items()
    }
    return {
        "devices": devices,
        "rows": rows,
        "home, bytes up": HOME * wire_size(parameters, parameters),
        "home, seconds": HOME * REQUESTS,
        "home, bytes to the cloud, and back": 4 * parameters * BORDER,
        "once, bytes": 8 * homes * BORDER**2,
        **cloud,
        "SuperLink, seconds": homes * REQUESTS,
    }


# --- page ---------------------------------------------------------------------------------------------------------


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace(" --- ", "---")


def data_size(count):
    """Bytes in three digits.

    >>> data_size(424_016_000_000)
    '424 GB'
    """
    power = min(int(math.log10(max(count, 1)) // 3), 5)
    return f"{float(f'{count / 1000**power:.3g}'):g} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def duration(seconds):
    """Seconds in two digits, or minutes and hours where they are many.

    >>> duration(3392), duration(0.0123)
    ('57 min', '12 ms')
    """
    for most, unit, each in ((0.1, "ms", 1e-3), (120, "s", 1), (7200, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < most:
            return f"{float(f'{seconds / each:.2g}'):g} {unit}"
    return f"{float(f'{seconds / 86400:.2g}'):g} days"


def sections(out):
    """The generated parts of docs/scale.md, by name."""
    files = {kind: json.loads((out / f"{kind}.json").read_text()) for kind in KINDS}
    mixed, planned, played, built = (files[kind]["pieces"] for kind in KINDS)
    loads = [piece["load"] for file in files.values() for piece in file["pieces"].values()]
    about = files["mixing"]
    words = f"{about['versions']}; {about['machine']}; load {min(loads):g} to {max(loads):g} from other work."
    return {
        "machine": textwrap.fill(words, 120),
        "server": table(
            ["devices", "their models", "prepare the filter", "mix", "plan", "memory to mix"],
            [
                [
                    f"{size:,}",
                    data_size(4 * PARAMETERS * size),
                    duration(mixed[str(size)]["prepare"]),
                    duration(mixed[str(size)]["seconds"]),
                    duration(planned[str(size)]["seconds"]),
                    f"{data_size(mixed[str(size)]['memory'])} for {mixed[str(size)]['columns']:,} columns",
                ]
                for size in SIZES
            ],
        ),
        "rounds": table(
            ["devices", "that train", "a round", "training", "the rest", "memory"],
            [
                [
                    f"{size:,}",
                    f"{round(FRACTION * size):,}",
                    duration(piece["training"] + piece["rest"]),
                    duration(piece["training"]),
                    duration(piece["rest"]),
                    data_size(piece["memory"]),
                ]
                for size in SIZES[1:]
                for piece in [played[str(size)]]
            ],
        ),
        "buildings": _buildings(built[str(BUILDINGS * DEVICES)]),
        "costs": _costs(mixed),
    }


def _buildings(piece):
    row = 4 * PARAMETERS
    rows = {
        "devices; of these with links to other buildings": f"{piece['devices']:,}; {piece['border']:,}",
        "links; of these between buildings": f"{piece['links']:,}; {piece['links_between']:,}",
        "error, float64; float32": f"{piece['error_float64']:.1e}; {piece['error_float32']:.1e}",
        "to the cloud each round, and as much back": data_size(piece["border"] * row),
        "the same if the cloud mixes all models": data_size(piece["devices"] * row),
        "Schur complements, once": data_size(piece["once_bytes"]),
        "a building, the slowest: a round": duration(piece["building"]),
        "the cloud: a round": duration(piece["cloud"]),
        "all buildings and the cloud, one after the other: prepare; a round": (
            f"{duration(piece['prepare'])}; {duration(piece['parts'])}"
        ),
        "`fedfilt.mix` on the whole graph: prepare; a round": (
            f"{duration(piece['whole_prepare'])}; {duration(piece['whole'])}"
        ),
        "share of the border device itself in its row: median, most": (
            f"{piece['own_median']:.0%}, {piece['own_most']:.0%}"
        ),
        "devices in a row to the cloud, in effect: median": f"{piece['devices_median']:.1f}",
    }
    return table([f"{BUILDINGS} buildings of {DEVICES} devices", ""], [list(line) for line in rows.items()])


def _costs(pieces):
    cases = [costs(homes, parameters, pieces) for parameters in (PARAMETERS, LIGHT) for homes in (1_000, 1_000_000)]
    cloud = {
        "up, and as much down": "bytes up, and down",
        "link at 1 Gbit/s": "seconds of its link",
        "processor, mixing": "seconds of mixing",
        "processor, preparing the filter, once": "seconds of preparing",
        "memory": "bytes of memory",
    }
    rows = [
        ("in a home: updates to its edge server", "home, bytes up"),
        ("in a home: processor of its edge server", "home, seconds"),
        ("a home to the cloud, and as much back", "home, bytes to the cloud, and back"),
        ("Schur complements of all homes, once", "once, bytes"),
        *(
            (f"cloud of {who}: {label}", f"{who}, {name}")
            for who in ("border rows", "all models")
            for label, name in cloud.items()
        ),
        ("processor of a single SuperLink, if a home came to it as a device does", "SuperLink, seconds"),
    ]
    lines = [["devices; border rows", *(f"{case['devices']:,}; {case['rows']:,}" for case in cases)]]
    for label, name in rows:
        show = data_size if "bytes" in name else duration
        lines.append([label, *(show(case[name]) for case in cases)])
    head = [f"{homes} homes, {model}" for model in ("CNN", "logistic") for homes in ("1,000", "1,000,000")]
    return table(["a round", *head], lines)


def write_page(out, path):
    """Replace what stands between the markers."""
    text = path.read_text()
    for name, content in sections(out).items():
        begin, end = (f"<!-- {edge}: benchmarks/scale.py --page, {name} -->" for edge in ("begin", "end"))
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"
    write_atomically(path, text.encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scale"), help="folder of the result files")
    parser.add_argument("--full", action="store_true", help="also more than 1,000 devices")
    parser.add_argument("--page", action="store_true", help="only write docs/scale.md from the result files")
    parser.add_argument("--piece", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.piece:
        found = KINDS[given.piece[0]][0](int(given.piece[1]))
        print(json.dumps(found | {"memory": peak_memory()}))
    elif given.page:
        write_page(given.out, ROOT / "docs" / "scale.md")
    else:
        compute(given.out, given.full)
