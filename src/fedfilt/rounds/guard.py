"""Bounded influence: no single device decides what others learn, and a spoilt run recovers.

Everything is relative to the median of the devices that trained in a round, so it holds as long as most of them are
honest. When nothing is over a limit, updates pass with the same bits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedfilt._checks import check_choice, check_count, check_number
from fedfilt._types import Array
from fedfilt.rounds.robust import HOW, Robust
from fedfilt.rounds.types import Happening, Rule, State, Updates
from fedfilt.training.sgd import Diverged

FEW = 3  # devices that must have trained before one can stand out
GROWTH = 2.0  # factor by which the median may grow from one round to the next
FADED = 1.0  # share of the longest median so far: being over the limit only because others shrink is no offence
WORSE = 2.0, 1.0  # a device has collapsed if its loss exceeds this times the old one, plus this
LONGEST = 6  # most times that a quarantine doubles
SOON = 10  # rounds within which a second setback goes back further


@dataclass(frozen=True)
class Guard:
    """Limits on what one device can do to the others: the table [guard]; `on = false` or `guard = false` disables it.

    * `clip`: updates longer than this multiple of their round's median length are shortened to it (0: never); a device
      that was given more work than the median may send proportionally more;
    * `cap`: largest absolute value of a trained model's parameters (0: no limit);
    * `samples`: no device counts for more than this multiple of the median number of samples (0: no limit);
    * `strikes`: each time a device exceeds `clip`, also by the longest median so far, its weight is halved; after this
      many rounds it is quarantined for `quarantine` rounds, in which it counts for nothing but still gets its model.
      Then it is on probation for as long: one more offence doubles the quarantine (0: no quarantine);
    * `kept`: number of good states to keep. When more than half of the devices diverge or collapse at once, the models
      return to the last good state, and the senders of the previous round's largest updates are quarantined (0: never);
    * `robust`: "filter" also limits what any device does to any other; "geometric" takes the geometric median of what a
      device is mixed from; `reach` is the filter's limit, in median distances. See `fedfilt.rounds.robust`.

    >>> updates = Updates(np.array([[3.0], [4.0], [3.0], [90.0]]), np.ones(4))
    >>> seen = Guard().watch(State(0, np.zeros((4, 1))), updates)
    >>> seen.updates.rows.ravel().tolist(), [(event.device, event.what) for event in seen.events]
    ([3.0, 4.0, 3.0, 10.5], [(3, 'clipped')])
    """

    on: bool = True  # false switches it off, as guard = false does
    clip: float = 3.0  # an update longer than this many times the round's median is shortened to that length; 0: never
    cap: float = 1e6  # largest absolute value of any parameter of a trained model; 0: no limit
    samples: float = 10.0  # no device counts for more than this many times the median number of samples; 0: no limit
    strikes: int = 3  # rounds over `clip` after which a device is in quarantine; it counts half after each; 0: never
    quarantine: int = 10  # rounds in which it counts nothing, and of probation after them; 0: nobody is in quarantine
    kept: int = 2  # good states to go back to when more than half of the devices diverge or collapse at once; 0: none
    # "none", "filter" (bounds what a device does to any other) or "geometric" (a geometric median)
    robust: str = "none"
    reach: float = 2.0  # bound of "filter", in median distances

    def __post_init__(self) -> None:
        for name in ("clip", "cap", "samples"):
            check_number(f"guard.{name}", getattr(self, name), low=0)
        for name in ("strikes", "quarantine", "kept"):
            check_count(f"guard.{name}", getattr(self, name), low=0)
        if 0 < self.clip < 1 or 0 < self.samples < 1:
            raise ValueError(f"guard.clip and guard.samples must be 0 or at least 1, got {self.clip}, {self.samples}")
        check_choice("guard.robust", self.robust, HOW)
        check_number("guard.reach", self.reach, low=0, above=True)

    def rule(self, rule: Rule) -> Rule:
        """The rule itself, or a robust rule around it."""
        return Robust(rule, self.robust, self.reach) if self.on and self.robust != "none" else rule

    def watch(
        self,
        state: State,
        updates: Updates,
        losses: Array | None = None,
        diverged: Mapping[int, str] | None = None,
        work: Array | None = None,
        size: int = 0,
    ) -> "Watched":
        """The updates of the round after `state`, within limits, and what to remember.

        (K,) `losses` are NaN if unknown; `diverged` names devices whose model is no longer finite; (K,) `work` is how
        much work each device was given, if not all the same; `size` is how many numbers of a row count for its length
        (0: all), because what travels only in some rounds has no usual length.
        """
        diverged, count = diverged or {}, len(updates.weights)
        now = _Memory.of(state)
        known = np.full(count, np.nan) if losses is None else losses
        if self.on and self.kept and now.good and now.spoilt(updates.weights > 0, known, diverged):
            return self._go_back(state, updates, now, diverged)
        if diverged and not updates.weights.any():
            raise Diverged(next(iter(diverged.values())))
        if not self.on:
            return Watched(updates, state.memory)
        now = now._replace(losses=np.where(np.isfinite(known), known, now.losses))
        return self._bound(state, updates, now, np.ones(count) if work is None else work, size or None)

    def _bound(self, state: State, updates: Updates, now: "_Memory", work: Array, size: int | None) -> "Watched":
        """The outcome of a round in which most devices are well."""
        round, trained = state.round + 1, updates.weights > 0
        events = [*self._released(round, now)]
        away = now.until >= round
        norms = np.array([_length(row) if row.any() else 0.0 for row in updates.rows[:, :size]])
        sound = trained & ~away & (norms > 0)
        median = float(np.median(norms[sound])) if sound.any() else 0.0
        if now.reference > 0:
            median = min(median, GROWTH * float(now.reference))
        usual = float(np.median(work[sound])) if sound.any() else 1.0
        fair = median * np.maximum(work / usual if usual > 0 else 1.0, 1.0)  # (K,) what a device may send
        limits = self.clip * fair
        over = sound & (limits > 0) & (norms > limits)
        peak = max(float(now.peak), median)
        far = over & (
            norms > self.clip * np.maximum(fair, FADED * peak)
        )  # honest updates become short, some sooner than others
        strikes = np.maximum(now.strikes + np.where(far, 1, np.where(sound, -1, 0)), 0)
        judged = bool(self.strikes and self.quarantine) and int(sound.sum()) >= FEW
        caught = far & (strikes >= np.where(now.times > 0, 1, self.strikes)) & judged
        for device in map(int, np.flatnonzero(over)):
            times = float(f"{norms[device] / fair[device]:.3g}")
            if caught[device]:
                events.append(self._shut(round, device, now, times))
            else:
                details = {"times": times, **({"strike": int(strikes[device])} if judged and far[device] else {})}
                events.append(Happening(round, device, "clipped", details))
        strikes[caught] = 0
        kept = (state.models, *now.good)[: self.kept]
        now = now._replace(strikes=strikes, norms=np.where(trained, norms, 0.0), good=kept)
        now = now._replace(reference=np.array(median), peak=np.array(peak))
        rows = self._rows(state.models, updates.rows, norms, limits, (now.until >= round) | ~trained, size)
        weights = self._weights(updates.weights, strikes, now.until >= round)
        return Watched(Updates(rows, weights), now.named(), tuple(events))

    def _rows(self, models: Array, rows: Array, norms: Array, limits: Array, none: Array, size: int | None) -> Array:
        """(K, B) the updates within their limits, zeros for devices in `none`; the same array if nothing changes."""
        found: dict[int, Array] = {}
        for device in map(int, np.flatnonzero(norms > 0)):
            row, model = rows[device], models[device]
            if none[device]:
                found[device] = np.zeros_like(row)
                continue
            if 0 < limits[device] < norms[device]:
                row = row.copy()
                row[:size] = row[:size].astype(np.float64) * (limits[device] / norms[device])
                found[device] = row
            with np.errstate(over="ignore"):
                trained = model + row
            if self.cap and not (trained.max() <= self.cap and trained.min() >= -self.cap):
                found[device] = np.clip(trained, -self.cap, self.cap) - model
        if not found:
            return rows
        bounded = rows.copy()
        for device, row in found.items():
            bounded[device] = row
        return bounded

    def _weights(self, weights: Array, strikes: Array, away: Array) -> Array:
        """(K,) each device's weight: at most a multiple of the median, halved after each strike but the first."""
        fair = np.where(away, 0.0, weights)
        if self.samples and fair.any():
            fair = np.minimum(fair, self.samples * np.median(fair[fair > 0]))
        return fair * 0.5 ** np.maximum(strikes - 1, 0) if self.strikes else fair

    def _shut(self, round: int, device: int, now: "_Memory", times: float) -> Happening:
        """Quarantine a device, each time for twice as long."""
        now.until[device] = round + self.quarantine * 2 ** min(int(now.times[device]), LONGEST)
        now.times[device] += 1
        return Happening(round, device, "quarantined", {"times": times, "until": int(now.until[device])})

    def _released(self, round: int, now: "_Memory") -> Iterator[Happening]:
        """Devices whose quarantine is over; those that have behaved well since then also end their probation."""
        for device in np.flatnonzero((now.times > 0) & (now.until == round - 1)):
            yield Happening(round, int(device), "released")
        now.times[(now.times > 0) & (now.until + self.quarantine < round)] = 0

    def _go_back(self, state: State, updates: Updates, now: "_Memory", diverged: Mapping[int, str]) -> "Watched":
        """The last good models; devices that sent the previous round's largest updates are quarantined."""
        round = state.round + 1
        again = now.setbacks > 0 and round - now.setback <= max(self.quarantine, SOON)
        setbacks = int(now.setbacks) + 1 if again else 1
        times = now.norms / now.reference if now.reference > 0 else now.norms
        suspects = self._suspects(times)
        if setbacks > len(now.good):
            raise Diverged(_gave_up(round, times, suspects, diverged))
        events = [Happening(round, None, "setback", {"suspects": suspects, "back": setbacks})]
        for device in suspects if self.quarantine else ():
            events.append(self._shut(round, device, now, float(f"{times[device]:.3g}")))
        now = now._replace(setbacks=np.array(setbacks), setback=np.array(round))
        nothing = Updates(np.zeros_like(updates.rows), updates.weights)
        return Watched(nothing, now.named(), tuple(events), back=now.good[setbacks - 1])

    def _suspects(self, times: Array) -> list[int]:
        """Devices with the largest updates: those over the limit, at least one, fewer than half of all."""
        order = [int(device) for device in np.argsort(-times, kind="stable") if times[device] > 0]
        far = [device for device in order if times[device] > (self.clip or 3.0)]
        return (far or order[:1])[: max(1, (len(order) - 1) // 2)]


class Watched(NamedTuple):
    """The guard's result for a round."""

    updates: Updates
    memory: Mapping[str, Array]
    events: tuple[Happening, ...] = ()
    back: Array | None = None  # (K, B) the models to go back to, instead of mixing


class _Memory(NamedTuple):
    """What the guard remembers from round to round; in `State.memory` under names that start with "guard."."""

    strikes: Array  # (K,) rounds over the limit, minus those within it
    until: Array  # (K,) last round of quarantine; 0: none yet
    times: Array  # (K,) quarantines in a row; 0: in none, and not on probation
    norms: Array  # (K,) lengths of the previous round's updates
    losses: Array  # (K,) last known
    reference: Array  # () median length in the previous round; 0: none yet
    peak: Array  # () largest median so far
    setbacks: Array  # () in a row
    setback: Array  # () round of the last
    good: tuple[Array, ...]  # (K, B) models from which most devices trained well, newest first

    @classmethod
    def of(cls, state: State) -> "_Memory":
        """Copies, which may be changed, except for models, which never are."""
        count, named = len(state.models), state.memory
        whole, number = np.zeros(count, np.int64), np.zeros((), np.int64)
        nothing = [
            whole,
            whole,
            whole,
            np.zeros(count),
            np.full(count, np.nan),
            np.zeros(()),
            np.zeros(()),
            number,
            number,
        ]
        found = (named.get(f"guard.{name}", array) for name, array in zip(cls._fields, nothing, strict=False))
        good = (named[name] for number in range(1, len(named) + 1) if (name := f"guard.good.{number}") in named)
        return cls._make([*(array.copy() for array in found), tuple(good)])

    def named(self) -> dict[str, Array]:
        """Its entries for `State.memory`."""
        arrays = {f"guard.{name}": array for name, array in self._asdict().items() if name != "good"}
        return arrays | {f"guard.good.{number}": models for number, models in enumerate(self.good, start=1)}

    def spoilt(self, trained: Array, losses: Array, diverged: Mapping[int, str]) -> bool:
        """Whether more than half of the devices that trained diverged or have a far higher loss than before."""
        times, more = WORSE
        with np.errstate(invalid="ignore"):
            worse = trained & (losses > times * self.losses + more)
        return 2 * (int(worse.sum()) + len(diverged)) > int(trained.sum()) + len(diverged)


def _length(row: Array) -> float:
    return float(np.linalg.norm(row.astype(np.float64)))


def _gave_up(round: int, times: Array, suspects: Sequence[int], diverged: Mapping[int, str]) -> str:
    """Why a run that went back, perhaps several times, cannot continue, and which devices are the likely cause."""
    who = f"{len(diverged)} devices diverged" if diverged else "most devices are far worse than before"
    largest = ", ".join(f"device {device} ({times[device]:.3g} times the median)" for device in suspects[:5])
    why = next(iter(diverged.values()), "lower training.learning_rate")
    return (
        f"{who} in round {round}, and going back did not help; the largest updates of the previous round came from "
        f"{largest or 'no device'}: check these first, or {why[why.find('lower ') :]}"
    )
