"""Limits on what a device's row reveals about other devices: clipping, noise, enough others, rounding.

All of it happens on the edge server, around the aggregation rule. `docs/privacy.md` has the proofs.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedfilt._checks import check_count, check_number
from fedfilt._draws import RoundKey, in_round
from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.rounds.accounting import check_accountant, epsilon, noise_for
from fedfilt.rounds.guard import Guard
from fedfilt.rounds.kinds import ByKind
from fedfilt.rounds.play import play_round
from fedfilt.rounds.shares import others, shares_of
from fedfilt.rounds.types import Experiment, Record, Rule, Script, State, Updates, interpolating

LEAST_NOISE = 1e-3
BLOCK = 4096  # columns of noise drawn at a time


@dataclass(frozen=True)
class Privacy:
    """The table [privacy]: protects a device's update from being read out of other devices' rows.

    `clip` is the length (L2 norm) to which longer updates are shortened. `noise` is the noise's standard deviation, in
    units of what one clipped update can change; this gives differential privacy, and every record has its epsilon at
    `delta`. `epsilon` instead chooses the noise that all rounds of the run need. `least_others` = n withholds a row if
    one other device makes up more than 1/n of what it takes from others; its device continues with its own trained
    model. `grid` rounds rows at random to its multiples. With `blind`, the edge server of a deployment mixes rows that
    it cannot read (`fedfilt.system.blind`), and so cannot do any of the above.

    >>> Privacy(clip=1.0, noise=0.5).multiplier(rounds=10)
    0.5
    """

    clip: float = 0.0  # length (L2 norm) to which longer updates are cut; 0: none is
    noise: float = 0.0  # standard deviation, in units of what one clipped update can change; 0: none
    epsilon: float = 0.0  # the budget of all rounds together; sets the noise. 0: use `noise`
    delta: float = 1e-5  # of the differential privacy
    # m: withholds a row in which one device has more than 1/m of all others' shares; 0: never
    least_others: int = 0
    grid: float = 0.0  # rows are rounded at random to multiples of it; 0: not at all
    blind: bool = False  # the edge server of a deployment mixes rows that it cannot read, and can do none of the above

    def __post_init__(self) -> None:
        for name in ("clip", "noise", "epsilon", "grid"):
            check_number(f"privacy.{name}", getattr(self, name), low=0)
        check_number("privacy.delta", self.delta, low=0, high=0.1, above=True)
        check_count("privacy.least_others", self.least_others, low=0)
        if self.least_others == 1:
            raise ValueError("privacy.least_others must be 0 (off) or at least 2, got 1: every mixed row has one other")
        if self.noise and self.epsilon:
            raise ValueError(f"privacy takes noise or epsilon, not both, got {self.noise:g} and {self.epsilon:g}")
        if self.noisy and not self.clip:
            raise ValueError("privacy.noise is in units of privacy.clip, which must be > 0, got 0")
        if 0 < self.noise < LEAST_NOISE:
            raise ValueError(f"privacy.noise must be 0 or at least {LEAST_NOISE:g}, got {self.noise:g}")
        if self.blind and (self.guards_rows or self.noisy):
            raise ValueError("privacy.blind = true: a server that cannot read rows can neither clip nor change them")

    @property
    def noisy(self) -> bool:
        """Whether updates are differentially private."""
        return bool(self.noise or self.epsilon)

    @property
    def guards_rows(self) -> bool:
        """Whether it changes the rows that devices receive."""
        return bool(self.clip or self.least_others or self.grid)

    def multiplier(self, rounds: int) -> float:
        """The noise in each of `rounds` rounds, in units of what one device can change."""
        return noise_for(self.epsilon, rounds, self.delta) if self.epsilon else self.noise

    def spent(self, noise: float, rounds: int) -> float:
        """Epsilon for a device after taking part in `rounds` rounds."""
        return epsilon(noise, rounds, self.delta)

    def check(self, learned: bool) -> None:
        """Refuse what voids the guarantee: no accountant, or a graph that depends on what devices learnt."""
        if self.noisy:
            check_accountant()
            if learned:
                raise ValueError(
                    "privacy.noise needs a graph that does not depend on the devices' data; this one is learned from "
                    "their first updates, which have no noise: name another [graph]"
                )

    def guard(self, guard: Guard) -> Guard:
        """The guard; off with noise, because its decisions depend on all updates, and no noise would hide them.

        With noise, `clip` limits what a device can do to others. A blind server sees nothing to judge: its devices
        limit their own updates.
        """
        return replace(guard, on=False) if self.noisy or self.blind else guard

    def script(self, script: Script | None, seed: int, rounds: int) -> Script | None:
        """A script for rounds with protected rows, around another if given; `seed` is for the noise."""
        return Protected(self, self.multiplier(rounds), seed, script) if self.guards_rows else script


@dataclass(frozen=True, eq=False)
class Protected:
    """Plays rounds whose rule returns protected rows. All draws depend only on the seed and the round."""

    privacy: Privacy
    noise: float  # multiplier
    seed: int
    within: Script | None = None

    def play_round(self, state: State, experiment: Experiment) -> tuple[State, Record]:
        """One round."""
        rng = in_round(self.seed, state.round + 1, RoundKey.PRIVACY)
        today = replace(experiment, aggregator=self.rule(experiment.aggregator, rng))
        return (play_round if self.within is None else self.within.play_round)(state, today)

    def rule(self, rule: Rule, rng: np.random.Generator) -> Rule:
        """The rule of a round. Different kinds of columns are mixed separately, so each part is protected by itself."""
        if isinstance(rule, ByKind):
            inner: Rule = replace(rule, rule=_Rows(rule.rule, self.privacy, self.noise, rng))
        else:
            inner = _Rows(rule, self.privacy, self.noise, rng)
        return _Clipped(inner, self.privacy.clip) if self.privacy.clip else inner


@dataclass(frozen=True, eq=False)
class _Clipped:
    """A rule that clips updates to the length `clip`."""

    rule: Rule
    clip: float

    def interpolating(self) -> "_Clipped":
        return replace(self, rule=interpolating(self.rule))

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        return self.rule(models, updates._replace(rows=clipped(updates.rows, self.clip)), graph)


@dataclass(frozen=True, eq=False)
class _Rows:
    """A linear rule that protects its rows, for the columns it is given."""

    rule: Rule
    privacy: Privacy
    noise: float
    rng: np.random.Generator

    def interpolating(self) -> "_Rows":
        """For devices without an update: mixes rows already handed out, so only enough others are required."""
        return replace(self, rule=interpolating(self.rule), privacy=replace(self.privacy, grid=0.0), noise=0.0)

    def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
        mixed = self.rule(models, updates, graph)
        if self.noise or self.privacy.least_others:
            shares = shares_of(self.rule, graph, updates.weights)
            few = too_few(shares, self.privacy.least_others)
            if self.noise:
                _check_linear(mixed, self.rule(models, _nothing(updates), graph), shares, updates)
            mixed[few] = models[few] + updates.rows[few]
            shares[few] = np.eye(len(shares))[few]
            shares[:, updates.weights == 0] = 0  # they sent nothing
            if self.noise:
                self._add_noise(mixed, shares)
        return rounded(mixed, self.privacy.grid, self.rng) if self.privacy.grid else mixed

    def _add_noise(self, mixed: Array, shares: Array) -> None:
        spread, sensitivity = factored(shares.tobytes(), len(shares))
        size = self.noise * self.privacy.clip * sensitivity
        for start in range(0, mixed.shape[1], BLOCK):
            columns = slice(start, start + BLOCK)
            drawn = self.rng.standard_normal((spread.shape[1], mixed[:, columns].shape[1]))
            mixed[:, columns] += (size * spread @ drawn).astype(mixed.dtype)


def clipped(rows: Array, clip: float) -> Array:
    """The rows, with longer ones shortened to the length `clip`.

    >>> clipped(np.array([[3.0, 4.0], [0.0, 0.5]]), clip=1.0)
    array([[0.6, 0.8],
           [0. , 0.5]])
    """
    length = np.linalg.norm(rows.astype(np.float64, copy=False), axis=1)
    return rows * (clip / np.maximum(length, clip)).astype(rows.dtype)[:, None]


def too_few(shares: Array, least_others: int) -> Array:
    """(K,) True for rows in which one other device has more than 1 / `least_others` of all others' shares.

    >>> too_few(np.array([[0.5, 0.4, 0.1], [0.2, 0.6, 0.2], [0.0, 0.0, 1.0]]), least_others=2)
    array([ True, False, False])
    """
    found = others(shares)
    return (found > 0) & (found < least_others * (1 - 1e-9))


def rounded(rows: Array, grid: float, rng: np.random.Generator) -> Array:
    """Every number rounded to one of its two neighbouring multiples of `grid`, at random, unchanged on average."""
    result = np.empty_like(rows)
    for row, given in zip(result, rows, strict=True):  # one row at a time: float64 for all would need too much memory
        row[:] = np.floor(given / grid + rng.random(len(given))) * grid
    return result


@lru_cache(maxsize=16)
def factored(shares: bytes, count: int) -> tuple[Array, float]:
    """Noise for a mixing matrix H: (B, d), where noise B z with standard normal z hides every column H_j to d.

    H = U S Vᵀ is split in the middle, B = U S^½ and C = S^½ Vᵀ, so that H g + d B z = B (C g + d z): device j changes
    the quantity under the noise by |C_j|, and d is the largest of these. For FedAvg with n devices, each row gets noise
    of 1/n instead of the 1/√n of noise on the updates, and for a symmetric H about H_ii.

    >>> spread, sensitivity = factored(np.full((4, 4), 0.25).tobytes(), 4)
    >>> spread.shape, (sensitivity * np.linalg.norm(spread, axis=1)).round(3)
    ((4, 1), array([0.25, 0.25, 0.25, 0.25]))
    """
    left, sizes, right = np.linalg.svd(np.frombuffer(shares).reshape(count, count))
    kept = sizes > 1e-12 * max(sizes.max(), np.finfo(float).tiny)
    root = np.sqrt(sizes[kept])
    moved = np.linalg.norm(root[:, None] * right[kept], axis=0)  # |C_j| of every device
    return left[:, kept] * root, float(moved.max())


def _nothing(updates: Updates) -> Updates:
    return updates._replace(rows=np.zeros_like(updates.rows))


def _check_linear(mixed: Array, without: Array, shares: Array, updates: Updates) -> None:
    """Check linearity: the noise is sized by what one update can change, known beforehand only for linear rules."""
    change = shares.astype(mixed.dtype) @ updates.rows
    allowed = 1e-3 * np.abs(change).max(initial=0.0) + 1e-5 * np.abs(mixed).max(initial=0.0)
    if np.abs(mixed - without - change).max(initial=0.0) > allowed:
        raise ValueError("privacy.noise needs an aggregation rule that is linear in the updates; this one is not")
