"""How a filter is applied to a block of columns: dense on small graphs, by a sparse factor or a series on large ones.

Every method computes W x with W = h(M⁻¹S), M = diag(mass) and S the stiffness of `Graph.pencil`. Where some masses are
zero W is the limit of vanishing mass: a device without mass contributes nothing and takes the harmonic average
of its neighbours. None of the methods for large graphs builds a dense (K, K) matrix or an eigendecomposition.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.fft
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from fedfilt import native
from fedfilt._types import Array, Response
from fedfilt.graph.graph import Graph, spectrum

Apply: TypeAlias = Callable[[Array], Array]  # (K, b) -> (K, b)
Filter: TypeAlias = Callable[[Array, Array], None]  # of a whole signal (K, B) into another array, or into itself

TOLERANCE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}  # of the iterative methods, relative
FILL_LIMIT = 0.1  # mean bandwidth / size of component above which a factor is taken to fill in
SMALL = 512  # devices; a component up to this size is factored however dense its factor
STEPS = 2_000  # of conjugate gradients before a factor is tried


def respond(response: Response, frequencies: Array) -> Array:
    """The response at the given frequencies, checked: one finite number each."""
    if not callable(response) or isinstance(response, type):
        raise ValueError(f"response must be a function of frequency such as Tikhonov(mu=1.0), got {response!r}")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        gains = np.asarray(response(frequencies), dtype=np.float64)
    if gains.shape != frequencies.shape or not np.isfinite(gains).all():
        raise ValueError(
            f"response must give one finite number per frequency (also as it grows without bound when some weights are "
            f"zero), got shape {gains.shape} for {frequencies.shape}: {gains!r}"
        )
    return gains


def _gain_without_mass(response: Response) -> float:
    """The response at infinite frequency: what a device without mass keeps of its own."""
    return float(respond(response, np.array([1e300])).round(15)[0])


def dense_matrix(stiffness: Array, mass: Array, lowest: Array, response: Response) -> Array:
    """W of one connected component, by solving where the response has partial fractions, else by its modes."""
    respond(response, np.zeros(1))
    fractions = partial_fractions(response)
    if fractions is not None:
        constant, terms = fractions
        matrix = constant * np.eye(len(mass))
        for share, mu in terms:
            matrix += share * _dense_solve(stiffness, mass, lowest, mu)
        return matrix
    present = mass > 0
    if not present.all():
        return _with_relays(stiffness, mass, lowest, present, response)
    frequencies, modes = spectrum(stiffness, mass, lowest)
    gains = respond(response, frequencies)
    if (gains == 1).all():
        return np.eye(len(mass))  # exactly
    filtered: Array = (modes * gains) @ (modes.T * mass)  # Fourier transform, scale, inverse
    return filtered


def _dense_solve(stiffness: Array, mass: Array, lowest: Array, mu: float) -> Array:
    """(M + μS)⁻¹ M. What it does to the lowest mode is known; a rank-one term keeps the rest well posed for any μ."""
    scale = max(mu, 1.0)
    kept = np.outer(lowest, mass * lowest) / (mass * lowest**2).sum()  # projection on the lowest mode
    bordered = np.diag(mass / scale) + mu / scale * stiffness
    weight = mass * lowest / np.linalg.norm(mass * lowest)
    bordered += bordered.diagonal().max() * np.outer(weight, weight)
    rest = np.linalg.solve(bordered, np.diag(mass / scale) - (mass / scale)[:, None] * kept)
    return kept + rest - kept @ rest


def _with_relays(stiffness: Array, mass: Array, lowest: Array, present: Array, response: Response) -> Array:
    """W when devices without mass only relay: they are eliminated, and follow their neighbours harmonically."""
    inner = np.ix_(present, present)
    coupling = stiffness[np.ix_(~present, present)]
    follow = -np.linalg.solve(stiffness[np.ix_(~present, ~present)], coupling)
    kept = dense_matrix(stiffness[inner] + coupling.T @ follow, mass[present], lowest[present], response)
    highest = _gain_without_mass(response)
    matrix = np.zeros_like(stiffness)
    matrix[inner] = kept
    matrix[np.ix_(~present, present)] = follow @ kept - highest * follow
    matrix[~present, ~present] = highest
    return matrix


def partial_fractions(response: Response) -> tuple[float, list[tuple[float, float]]] | None:
    """(c, [(r, μ > 0), ...]) with h(λ) = c + Σ r / (1 + μλ), where the response can say so."""
    if not hasattr(response, "partial_fractions"):
        return None
    constant, terms = response.partial_fractions()
    constant += sum(share for share, mu in terms if mu == 0)
    return constant, [(share, mu) for share, mu in terms if mu > 0 and share != 0]


def sparse_method(graph: Graph, mass: Array, stiffness: Any, response: Response, dtype: Any) -> Apply:
    """The method for a large graph, on blocks without lowest mode: solve what has partial fractions, else a series."""
    respond(response, np.zeros(1))
    fractions = partial_fractions(response)
    if fractions is None:
        return chebyshev(stiffness, mass, response, dtype)
    constant, terms = fractions
    method = conjugate_gradients if terms and fills_in(graph) else factored
    solves = [(share, method(graph, mass, stiffness, mu, dtype)) for share, mu in terms]

    def apply(block: Array) -> Array:
        result = block * dtype(constant)
        for share, solve in solves:
            result += dtype(share) * solve(block)
        return result

    return apply


def fills_in(graph: Graph) -> bool:
    """Guess whether a sparse factor would be nearly dense: components are wide even in their narrowest known order.

    The mean bandwidth in reverse Cuthill-McKee order, as a share of the component, falls with its size on graphs drawn
    in space (K^-1/2 in the plane, K^-1/3 in three dimensions) and stays near 0.3 on expanders, whose factors fill in.
    """
    order = reverse_cuthill_mckee(graph.adjacency, symmetric_mode=True)
    place = np.empty(graph.count, dtype=np.int64)
    place[order] = np.arange(graph.count)
    links = graph.adjacency.tocoo()
    first = np.arange(graph.count)
    np.minimum.at(first, place[links.row], place[links.col])
    size = np.bincount(graph.components)[graph.components[order]]
    width = np.where(size > SMALL, (np.arange(graph.count) - first) / size, 0)
    return bool(width.mean() > FILL_LIMIT)


def frequency_bound(stiffness: Any, mass: Array) -> float:
    """A safe upper bound of all frequencies (Gershgorin): max over devices of Σ_j |S_ij| / m_i."""
    return float((np.asarray(abs(stiffness).sum(axis=1)).ravel() / mass).max())


def _precision(mass: Array, stiffness: Any, mu: float, dtype: Any) -> Any:
    """The dtype, or float64 where a system is so stiff that float32 would lose too much."""
    steepest = (stiffness.diagonal()[mass > 0] / mass[mass > 0]).max()
    return np.float64 if 2 * mu * steepest > 300 else dtype


def _system(mass: Array, stiffness: Any, mu: float, dtype: Any) -> tuple[Any, Array]:
    """(M + μS) / max(μ, 1) and M / max(μ, 1) as a column."""
    scale, precision = max(mu, 1.0), _precision(mass, stiffness, mu, dtype)
    matrix = (sp.diags_array(mass / scale) + (mu / scale) * stiffness).astype(precision)
    return matrix, (mass / scale).astype(precision)[:, None]


class Grounded(NamedTuple):
    """A sparse factor of M + μS with one device of every component tied to zero, which keeps it well posed as μ → ∞.

    Its solutions differ from the one wanted by a multiple of z = (M + μS)⁻¹ e, scaled to 1 at the tied device:
    as much of z is added as makes the lowest mode vanish. For x without lowest mode,
    (M + μS)⁻¹ M x = y - pull · Σ sense · y  with  y = factor⁻¹ scale · x, the sum over a component.
    """

    factor: Any  # SuperLU
    scale: Array  # (K,)
    pull: Array  # (K,) z, scaled
    sense: Array  # (K,) what must vanish, scaled so that Σ sense · lowest = 1


def grounded(graph: Graph, mass: Array, stiffness: Any, mu: float, dtype: Any) -> Grounded:
    """Factor the system of one term of a filter."""
    matrix, weights = _system(mass, stiffness, mu, dtype)
    tied = np.array([nodes[mass[nodes].argmax()] for nodes in graph.members()])
    free = np.ones(graph.count, dtype=matrix.dtype)
    free[tied] = 0
    links = matrix @ sp.csc_array(
        (np.ones(len(tied), matrix.dtype), (tied, np.arange(len(tied)))), (graph.count, len(tied))
    )
    tight = (sp.diags_array(free) @ matrix @ sp.diags_array(free) + sp.diags_array(1 - free)).tocsc()
    factor = splu(tight, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    pull = -factor.solve(np.asarray(links.sum(axis=1)).ravel() * free).astype(np.float64)
    pull[tied] = 1
    sense = scaled_sense(graph, mass)
    reach = np.bincount(graph.components, weights=sense * pull)[graph.components]
    return Grounded(factor, free * weights.ravel(), pull / reach, sense)


def scaled_sense(graph: Graph, mass: Array) -> Array:
    """(K,) s with Σ s · x over a component = its share of the lowest mode in x."""
    sense = mass * graph.lowest
    return sense / np.bincount(graph.components, weights=sense * graph.lowest)[graph.components]


def factored(graph: Graph, mass: Array, stiffness: Any, mu: float, dtype: Any) -> Apply:
    """x ↦ (M + μS)⁻¹ M x by one sparse factorisation, for x without lowest mode."""
    system = grounded(graph, mass, stiffness, mu, dtype)
    added = sp.csr_array((system.sense, (np.arange(graph.count), graph.components)))
    column, scale = system.pull.astype(dtype)[:, None], system.scale[:, None]

    def apply(block: Array) -> Array:
        rest = system.factor.solve(np.asfortranarray(block * scale)).astype(dtype, copy=False)
        lack = (rest.T.astype(np.float64, copy=False) @ added).astype(dtype).T
        rest -= column * lack[graph.components]
        return rest

    return apply


def natively(graph: Graph, mass: Array, stiffness: Any, response: Response, dtype: Any, level: str) -> Filter | None:
    """The filter in the native core, where the response is one term c + r / (1 + μλ)."""
    fractions = partial_fractions(response)
    if fractions is None or len(fractions[1]) != 1 or fills_in(graph):
        return None
    constant, [(share, mu)] = fractions
    precision = _precision(mass, stiffness, mu, dtype)  # in which numbers are kept; the arithmetic is float64
    system = grounded(graph, mass, stiffness, mu, np.float64)
    order = np.argsort(system.factor.perm_c)  # device of each row of the factor
    if not np.array_equal(system.factor.perm_r, system.factor.perm_c):
        return None
    lower, upper = sp.tril(system.factor.L, k=-1, format="csr"), sp.triu(system.factor.U, k=1, format="csr")
    arrays = [a.astype(np.int32) for a in (lower.indptr, lower.indices, upper.indptr, upper.indices)]
    arrays += [lower.data.astype(precision), upper.data.astype(precision), 1 / system.factor.U.diagonal()]
    arrays += [order.astype(np.int32), graph.components[order].astype(np.int32)]
    arrays += [a[order].astype(np.float64) for a in (system.scale, system.sense, system.pull, graph.lowest)]
    held = [np.ascontiguousarray(a) for a in arrays]
    count = int(graph.components.max()) + 1
    factor = native.Factor(graph.count, count, *(a.ctypes.data for a in held), constant, share)

    def filter(signal: Array, out: Array) -> None:
        assert held  # the factor points into them
        native.solve(factor, precision, signal, out, level)

    return filter


def conjugate_gradients(graph: Graph, mass: Array, stiffness: Any, mu: float, dtype: Any) -> Apply:
    """x ↦ (M + μS)⁻¹ M x by conjugate gradients with the diagonal as preconditioner, all columns at once.

    Stops when every column's residual, in the norm of the preconditioner, is below TOLERANCE of its right-hand side;
    a system too hard for it is factored after all.
    """
    matrix, weights = _system(mass, stiffness, mu, dtype)
    matrix = matrix.tocsr()
    inverse = (1 / matrix.diagonal())[:, None]
    tolerance = TOLERANCE[np.dtype(dtype)]
    fallback = cache(lambda: factored(graph, mass, stiffness, mu, dtype))

    def apply(block: Array) -> Array:
        residual = weights * block
        result = np.zeros_like(residual)
        direction = inverse * residual
        size = np.einsum("ij,ij->j", residual, direction)
        goal = tolerance**2 * size
        for _ in range(STEPS):
            if (size <= goal).all():
                return result.astype(dtype, copy=False)
            ahead = matrix @ direction
            energy = np.einsum("ij,ij->j", direction, ahead)
            step = np.divide(size, energy, out=np.zeros_like(size), where=energy > 0)
            result += step * direction
            residual -= step * ahead
            scaled = inverse * residual
            new = np.einsum("ij,ij->j", residual, scaled)
            direction = scaled + np.divide(new, size, out=np.zeros_like(size), where=size > 0) * direction
            size = new
        return fallback()(block)

    return apply


def chebyshev(stiffness: Any, mass: Array, response: Response, dtype: Any) -> Apply:
    """x ↦ h(M⁻¹S) x by a Chebyshev series on [0, bound], cut where its tail is below TOLERANCE."""
    present = mass > 0
    follow: Apply | None = None
    if not present.all():  # devices without mass are eliminated: S_pp - S_pz S_zz⁻¹ S_zp has frequencies below S_pp's
        relays = stiffness[~present]
        inverse = splu(relays[:, ~present].tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
        coupling = relays[:, present]
        highest = _gain_without_mass(response)

        def follow(rows: Array) -> Array:
            return -inverse.solve(np.asfortranarray(coupling @ rows))

    inner = stiffness[present][:, present]
    bound = max(frequency_bound(inner, mass[present]), 1e-30)
    series = chebyshev_series(response, bound, TOLERANCE[np.dtype(dtype)])
    scale = sp.diags_array(2 / (bound * mass[present]))
    operator = (scale @ inner).tocsr()
    back = (scale @ coupling.T).tocsr() if follow else None

    def shifted(rows: Array) -> Array:  # 2/bound M⁻¹S - I, with frequencies in [-1, 1]
        result: Array = operator @ rows - rows
        return result + back @ follow(rows) if follow else result

    def evaluate(rows: Array) -> Array:
        before, now = rows, shifted(rows)
        result = series[0] * before
        for gain in series[1:]:
            result += gain * now
            before, now = now, 2 * shifted(now) - before
        return result

    def apply(block: Array) -> Array:
        rows = np.ascontiguousarray(block, dtype=np.float64)
        if follow is None:
            return evaluate(rows).astype(dtype)
        result = np.empty(block.shape, dtype)
        inside = evaluate(rows[present])
        result[present] = inside
        result[~present] = follow(inside) + highest * (rows[~present] - follow(rows[present]))
        return result

    return apply


def chebyshev_series(response: Response, bound: float, tolerance: float, longest: int = 5_000) -> Array:
    """Chebyshev coefficients of the response on [0, bound]; the dropped ones sum to less than `tolerance`.

    >>> import numpy as np
    >>> series = chebyshev_series(lambda x: 1 / (1 + x), bound=8.0, tolerance=1e-6)
    >>> x = np.linspace(0, 8, 100)
    >>> error = np.polynomial.chebyshev.chebval(x / 4 - 1, series) - 1 / (1 + x)
    >>> bool(abs(error).max() < 1e-6)
    True
    """
    nodes = 4 * longest
    angles = np.pi * (np.arange(nodes) + 0.5) / nodes
    gains = respond(response, bound / 2 * (1 + np.cos(angles)))
    series = scipy.fft.dct(gains, type=2) / nodes
    series[0] /= 2
    series[abs(series) < 1e-15 * abs(gains).max()] = 0  # rounding of the transform
    tails = np.append(
        np.cumsum(abs(series[::-1]))[::-1], 0
    )  # tails[k] = Σ_{j >= k} |c_j| bounds the error of stopping at k
    length = int(np.argmax(tails < tolerance))
    low = np.concatenate([np.geomspace(1e-16, 1, 400), np.linspace(0.001, 1, 400)])  # features too narrow for the nodes
    off = abs(np.polynomial.chebyshev.chebval(2 * low - 1, series[: max(length, 1)]) - respond(response, bound * low))
    if length > longest or off.max() > 10 * tolerance:
        raise ValueError(
            f"response is too steep for a graph of this size: a series of {longest} terms is off by "
            f"{max(off.max(), tails[longest]):.1g}, allowed {tolerance:g}; use a smoother response, or one with "
            "partial_fractions()"
        )
    return series[: max(length, 2)]
