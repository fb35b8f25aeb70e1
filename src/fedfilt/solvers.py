"""How a filter is applied to a block of columns: dense on small graphs, by a sparse factor or a series on large ones.

Every method computes W x with W = h(M⁻¹S), M = diag(mass) and S the stiffness of `Graph.pencil`. Where some masses are
zero W is the limit of vanishing mass: a device without mass contributes nothing and takes the harmonic average
of its neighbours. None of the methods for large graphs builds a dense (K, K) matrix or an eigendecomposition.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy.fft
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from fedfilt.checks import Array, Response
from fedfilt.graph import spectrum

Apply: TypeAlias = Callable[[Array], Array]  # (K, b) -> (K, b)

TOLERANCE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}  # of the iterative methods, relative
FILL_LIMIT = 0.15  # mean bandwidth / K above which a factor is taken to fill in
LARGEST_MU_LAMBDA = 1e12  # beyond this the solve equals the limit μ → ∞ in float64


def respond(response: Response, frequencies: Array) -> Array:
    """The response at the given frequencies, checked: one finite number each."""
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


def dense_matrix(stiffness: Array, mass: Array, response: Response) -> Array:
    """W of one connected component: Fourier transform, scale, inverse."""
    present = mass > 0
    if not present.all():
        return _with_relays(stiffness, mass, present, response)
    frequencies, modes = spectrum(stiffness, mass)
    gains = respond(response, frequencies)
    if (gains == 1).all():
        return np.eye(len(mass))  # exactly
    matrix: Array = (modes * gains) @ modes.T * mass
    return matrix


def _with_relays(stiffness: Array, mass: Array, present: Array, response: Response) -> Array:
    """W when devices without mass only relay: they are eliminated, and follow their neighbours harmonically."""
    inner = np.ix_(present, present)
    coupling = stiffness[np.ix_(~present, present)]
    follow = -np.linalg.solve(stiffness[np.ix_(~present, ~present)], coupling)
    kept = dense_matrix(stiffness[inner] + coupling.T @ follow, mass[present], response)
    highest = _gain_without_mass(response)
    matrix = np.zeros_like(stiffness)
    matrix[inner] = kept
    matrix[np.ix_(~present, present)] = follow @ kept - highest * follow
    matrix[~present, ~present] = highest
    return matrix


def sparse_method(stiffness: Any, mass: Array, response: Response, dtype: Any) -> Apply:
    """The method for a large graph: solve where the response has partial fractions, else a Chebyshev series."""
    fractions = getattr(response, "partial_fractions", None)
    if fractions is None:
        return chebyshev(stiffness, mass, response, dtype)
    constant, terms = fractions()
    constant += sum(share for share, mu in terms if mu == 0)
    terms = [(share, mu) for share, mu in terms if mu > 0]
    if terms and fills_in(stiffness):
        solves = [(share, conjugate_gradients(stiffness, mass, mu, dtype)) for share, mu in terms]
    else:
        solves = [(share, factored(stiffness, mass, mu, dtype)) for share, mu in terms]

    def apply(block: Array) -> Array:
        result = block * dtype(constant)
        for share, solve in solves:
            result += dtype(share) * solve(block)
        return result

    return apply


def fills_in(stiffness: Any) -> bool:
    """Guess whether a sparse factor would be nearly dense: the graph is wide even in its narrowest known order.

    The mean bandwidth in reverse Cuthill-McKee order, as a share of K, falls with K on graphs drawn in space
    (K^-1/2 in the plane, K^-1/3 in space) and stays near 0.3 on expanders, whose factors fill in.
    """
    count = stiffness.shape[0]
    order = reverse_cuthill_mckee(sp.csr_array(stiffness), symmetric_mode=True)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    links = stiffness.tocoo()
    first = np.arange(count)
    np.minimum.at(first, place[links.row], place[links.col])
    return float((np.arange(count) - first).mean()) > FILL_LIMIT * count


def frequency_bound(stiffness: Any, mass: Array) -> float:
    """A safe upper bound of all frequencies (Gershgorin): max over devices of Σ_j |S_ij| / m_i."""
    return float((np.asarray(abs(stiffness).sum(axis=1)).ravel() / mass).max())


def _system(stiffness: Any, mass: Array, mu: float, dtype: Any) -> tuple[Any, Array]:
    """M + μS and M as a column, in float64 where float32 would lose too much."""
    largest = float(stiffness.diagonal().max()) * 2 or 1.0
    mu = min(mu, LARGEST_MU_LAMBDA / largest)
    precision = np.float64 if mu * largest > 1e4 else dtype
    matrix = (sp.diags_array(mass) + mu * stiffness).astype(precision)
    return matrix, mass.astype(precision)[:, None]


def factored(stiffness: Any, mass: Array, mu: float, dtype: Any) -> Apply:
    """x ↦ (M + μS)⁻¹ M x by one sparse factorisation."""
    matrix, weights = _system(stiffness, mass, mu, dtype)
    options = {"SymmetricMode": True}
    factor = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)

    def apply(block: Array) -> Array:
        return factor.solve(np.asfortranarray(block * weights)).astype(dtype, copy=False)

    return apply


def conjugate_gradients(stiffness: Any, mass: Array, mu: float, dtype: Any) -> Apply:
    """x ↦ (M + μS)⁻¹ M x by conjugate gradients with the diagonal as preconditioner, all columns at once.

    Stops when every column's residual, in the norm of the preconditioner, is below TOLERANCE of its right-hand side.
    """
    matrix, weights = _system(stiffness, mass, mu, dtype)
    matrix = matrix.tocsr()
    inverse = (1 / matrix.diagonal())[:, None]
    tolerance = TOLERANCE[np.dtype(dtype)]

    def apply(block: Array) -> Array:
        residual = weights * block
        result = np.zeros_like(residual)
        direction = inverse * residual
        size = np.einsum("ij,ij->j", residual, direction)
        goal = tolerance**2 * size
        for _ in range(10_000):
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
        raise ArithmeticError(f"conjugate gradients did not reach {tolerance:g} in 10,000 steps at mu = {mu:g}")

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
            return -inverse.solve(np.asfortranarray(coupling @ rows, dtype=np.float64)).astype(dtype)

    inner = stiffness[present][:, present]
    bound = max(frequency_bound(inner, mass[present]), 1e-30)
    series = chebyshev_series(response, bound, TOLERANCE[np.dtype(dtype)]).astype(dtype)
    operator = (sp.diags_array(2 / (bound * mass[present])) @ inner).astype(dtype)
    back = (sp.diags_array(2 / (bound * mass[present])) @ coupling.T).astype(dtype) if follow else None

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
        if follow is None:
            return evaluate(block)
        result = np.empty_like(block)
        result[present] = evaluate(block[present])
        result[~present] = follow(result[present]) + dtype(highest) * (block[~present] - follow(block[present]))
        return result

    return apply


def chebyshev_series(response: Response, bound: float, tolerance: float, longest: int = 2_000) -> Array:
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
    series = scipy.fft.dct(respond(response, bound / 2 * (1 + np.cos(angles))), type=2) / nodes
    series[0] /= 2
    tails = np.cumsum(abs(series[::-1]))[::-1]  # tails[k] = Σ_{j >= k} |c_j| bounds the error of stopping before k
    length = int(np.argmax(tails < tolerance))
    if not 0 < length <= longest:
        raise ValueError(
            f"response is too steep for a graph of this size: a series of {longest} terms is off by "
            f"{tails[longest]:.1g}, allowed {tolerance:g}; use a smoother response, or one with partial_fractions()"
        )
    return series[: max(length, 2)]
