"""Filtering on graphs of 20 to 100,000 devices, against PyGSP, SciPy's SuperLU and a dense solve, in one run.

Each line is the best of several interleaved repetitions, on one thread, in milliseconds per column of the signal;
"error" is the relative error of the result against a float64 solve. Preparation (factor, eigenvectors) is not
counted, as it is shared by all columns and rounds; it is shown beside. Usage: python benchmarks/mix.py [--quick]
"""

import math
import subprocess
import sys
import time
import warnings

import networkx
import numpy as np
import pygsp
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import splu
from threadpoolctl import threadpool_limits

import fedfilt
from common import conclude, heading
from fedfilt.filters import Tikhonov
from fedfilt.mixing import _prepare

COLUMNS = {20: 8192, 1_000: 1024, 4_000: 256, 10_000: 256, 100_000: 64}


def fedfilt_mix(graph, mu):
    fedfilt.mix(graph, Tikhonov(mu), np.zeros((graph.count, 1), np.float32))
    return lambda x: fedfilt.mix(graph, Tikhonov(mu), x)


def fedfilt_float64(graph, mu):  # the precision PyGSP works in
    fedfilt.mix(graph, Tikhonov(mu), np.zeros((graph.count, 1)))
    return lambda x: fedfilt.mix(graph, Tikhonov(mu), x.astype(np.float64))


def superlu(graph, mu):
    factor = splu((sp.eye_array(graph.count) + mu * graph.laplacian).tocsc())  # as SciPy comes: float64, COLAMD
    return lambda x: factor.solve(x.astype(np.float64))


def dense_solve(graph, mu):
    factor = scipy.linalg.cho_factor(np.eye(graph.count) + mu * graph.laplacian.toarray())
    return lambda x: scipy.linalg.cho_solve(factor, x.astype(np.float64))


def pygsp_filter(graph, mu, method):
    peer = pygsp.graphs.Graph(sp.csr_matrix(graph.adjacency, copy=True))
    peer.estimate_lmax() if method == "chebyshev" else peer.compute_fourier_basis()
    kernel = pygsp.filters.Filter(peer, Tikhonov(mu))
    return lambda x: kernel.filter(x, method=method, order=30)


def pygsp_exact(graph, mu):
    return pygsp_filter(graph, mu, "exact")


def pygsp_chebyshev(graph, mu):
    return pygsp_filter(graph, mu, "chebyshev")


def rivals(count):
    small = [dense_solve, pygsp_exact] if count <= 1_000 else [dense_solve] if count <= 4_000 else []
    return [fedfilt_mix, fedfilt_float64, superlu, *small, pygsp_chebyshev]


def compare(name, graph, mu, repetitions):
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((graph.count, COLUMNS[graph.count])).astype(np.float32)
    few = signal[:, :8]
    exact = superlu(graph, mu)(few)
    prepared, setup, best = {}, {}, {}
    for rival in rivals(graph.count):
        start = time.perf_counter()
        prepared[rival.__name__] = rival(graph, mu)
        setup[rival.__name__] = time.perf_counter() - start
    for _ in range(repetitions):
        for rival, run in prepared.items():
            start = time.perf_counter()
            run(signal)
            taken = (time.perf_counter() - start) / signal.shape[1] * 1e3
            best[rival] = min(best.get(rival, math.inf), taken)
    results = {}
    for rival, run in prepared.items():
        error = np.linalg.norm(np.asarray(run(few)).reshape(exact.shape) - exact) / np.linalg.norm(exact)
        results[rival] = best[rival], error
        print(
            f"{name:9} {graph.count:>7} {mu:>4g}  {rival:16} {best[rival]:>10.4f} "
            f"{best[rival] / best['fedfilt_mix']:>8.2f}x {error:>9.1e} {setup[rival]:>9.2f}",
            flush=True,
        )
    _prepare.cache_clear()
    return results


def peak_memory():
    """Peak resident memory of a process that filters a large signal in place, as a share of what is allowed."""
    code = """
import resource, numpy as np, fedfilt
from fedfilt.filters import Tikhonov
graph = fedfilt.Graph.nearest(np.random.default_rng(0).random((100_000, 2)), 6)
signal = np.empty((100_000, 2_000), np.float32)
for rows in np.array_split(signal, 100):
    rows[:] = np.random.default_rng(1).standard_normal(rows.shape, np.float32)
fedfilt.mix(graph, Tikhonov(10.0), signal, out=signal)
print(signal.nbytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    size, peak = map(int, subprocess.check_output([sys.executable, "-c", code]).split())
    print(f"\nmemory: signal {size / 1e9:.2f} GB, peak {peak / 1e9:.2f} GB, limit {(1.5 * size + 2e9) / 1e9:.2f} GB")
    return (1.5 * size + 2e9) / peak


def whole_model():
    """CPU seconds of filtering the paper's CNN of 10,000 devices (2.1 GB), after preparation."""
    graph = fedfilt.Graph.nearest(np.random.default_rng(0).random((10_000, 2)), 6)
    signal = np.ones((10_000, 53_002), np.float32)
    signal[::2] = 0
    fedfilt.mix(graph, Tikhonov(1.0), signal[:, :8].copy())
    start = time.process_time()
    fedfilt.mix(graph, Tikhonov(1.0), signal, out=signal)
    return time.process_time() - start


def main():
    warnings.simplefilter("ignore")
    quick = "--quick" in sys.argv[1:]
    heading("scipy", "pygsp")
    print(f"{'graph':9} {'K':>7} {'mu':>4}  {'method':16} {'ms/column':>10} {'ratio':>9} {'error':>9} {'prepare s':>9}")
    rng = np.random.default_rng(0)
    cases = [("paper", fedfilt.Graph.paper())]
    for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000):
        cases.append(("6-nearest", fedfilt.Graph.nearest(rng.random((count, 2)), 6)))
    cases.append(("expander", fedfilt.Graph.from_networkx(networkx.random_regular_graph(6, 4_000, seed=0))))
    found = {}
    for name, graph in cases:
        for mu in (1.0, 10.0):
            found[graph.count, mu] = compare(name, graph, mu, repetitions=2 if quick else 7)

    checks = []
    for mu in (1.0, 10.0):
        ours, double, lu, peer = (
            found[10_000, mu][m] for m in ("fedfilt_mix", "fedfilt_float64", "superlu", "pygsp_chebyshev")
        )
        case = f"K = 10,000, mu = {mu:g}:"
        checks += [
            (f"{case} x as fast as SuperLU", lu[0] / ours[0], 4.0),
            (f"{case} x as fast as PyGSP's Chebyshev", peer[0] / ours[0], 10.0),
            (f"{case} float64 x as fast as PyGSP's Chebyshev", peer[0] / double[0], 3.0),
            (f"{case} float64 x as exact as PyGSP's Chebyshev", peer[1] / double[1], 10.0),
            (f"{case} error below 1e-6", 1e-6 / ours[1], 1.0),
        ]
        if not quick:
            growth = math.log(found[100_000, mu]["fedfilt_mix"][0] / found[1_000, mu]["fedfilt_mix"][0], 100)
            print(f"mu = {mu:g}: cost per column grows as K^{growth:.2f} from 1,000 to 100,000 devices")
            checks.append((f"mu = {mu:g}: grows no steeper than K^1.2", 1.2 / growth, 1.0))
    if not quick:  # before anything large is in this process, whose size a new one would report as its own
        checks.append(("K = 100,000: peak memory below 1.5 x signal + 2 GB", peak_memory(), 1.0))
    print(f"10,000 devices x 53,002 parameters, mu = 1, in place: {whole_model():.2f} CPU-s")
    conclude(checks)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
