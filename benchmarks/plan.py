"""Planning a round (problem P'') for a million devices, and against CVXPY, in one run.

CVXPY solves the same problem as a linear program per number of epochs: for each device, as the paper does it, and for
10,000 devices at once, which spreads its set-up. Usage: python benchmarks/plan.py
"""

import math
import subprocess
import sys
import time

import cvxpy
import numpy as np
from threadpoolctl import threadpool_limits

from common import conclude, heading
from fedfilt.system.planning import solve

DEADLINE = 3.0


def instances(count):
    rng = np.random.default_rng(0)
    seconds, joules = 10 ** rng.uniform(-1, 1, (2, count)), 10 ** rng.uniform(-1, 1, (2, count))
    return (*seconds, DEADLINE, *joules, 10 ** rng.uniform(-1, 1.5, count))


def with_cvxpy(a, t, end, e_a, e_t, limit):
    best = np.full(len(a), -np.inf)
    for epochs in range(1, 6):
        able = (epochs * 0.3 * a + 0.1 * t <= end) & (epochs * 0.3 * e_a + 0.1 * e_t <= limit)
        if not able.any():
            continue
        q, s = cvxpy.Variable(able.sum()), cvxpy.Variable(able.sum())
        time_used = cvxpy.multiply(epochs * a[able], q) + cvxpy.multiply(t[able], s)
        energy = cvxpy.multiply(epochs * e_a[able], q) + cvxpy.multiply(e_t[able], s)
        constraints = [q >= 0.3, q <= 1, s >= 0.1, s <= 1, time_used <= end, energy <= limit[able]]
        cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(0.4 * q + 0.2 * s)), constraints).solve(solver=cvxpy.HIGHS)
        best[able] = np.maximum(best[able], 0.4 * epochs / 5 + 0.4 * q.value + 0.2 * s.value)
    return best


def one_by_one(a, t, end, e_a, e_t, limit):
    """As the paper does it: a solver call per device."""
    one = [np.array([value]) for value in (a[0], t[0], e_a[0], e_t[0], limit[0])]
    return with_cvxpy(one[0], one[1], end, *one[2:])


def peak_memory():
    """Peak resident memory of a process that plans a million devices."""
    code = (
        "import resource, runpy\n"
        f"instances = runpy.run_path({__file__!r})['instances']\n"
        "from fedfilt.system.planning import solve\n"
        "solve(*instances(1_000_000))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    return int(subprocess.check_output([sys.executable, "-c", code]))


def main():
    heading("cvxpy", "highspy")
    sizes = {"fedfilt": 1_000_000, "CVXPY, 10,000 devices in one program": 10_000, "CVXPY, a program per device": 1}
    runs = dict(zip(sizes, (solve, with_cvxpy, one_by_one), strict=True))
    cases = {name: instances(max(count, 2)) for name, count in sizes.items()}
    best = dict.fromkeys(sizes, math.inf)
    for _ in range(3):
        for name, run in runs.items():
            start = time.perf_counter()
            run(*cases[name])
            best[name] = min(best[name], time.perf_counter() - start)
    each = {name: best[name] / sizes[name] for name in sizes}
    for name in sizes:
        ratio = each[name] / each["fedfilt"]
        print(f"{name:38} {best[name]:8.3f} s   {each[name] * 1e6:12.2f} us a device   {ratio:10.0f}x")
    utility = solve(*cases["CVXPY, 10,000 devices in one program"]).utility
    other = with_cvxpy(*cases["CVXPY, 10,000 devices in one program"])
    found = np.isfinite(other)
    print(f"\nlargest difference in utility: {abs(utility[found] - other[found]).max():.1e}")
    peak = peak_memory()
    slowest = each["CVXPY, a program per device"] / each["fedfilt"]
    print(f"peak memory {peak / 1e9:.2f} GB")
    conclude(
        [
            ("10^6 devices in under 5 s", 5 / best["fedfilt"], 1.0),
            ("10^6 devices in under 1 GB", 1e9 / peak, 1.0),
            ("x as fast per device as CVXPY", slowest, 1000.0),
        ]
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
