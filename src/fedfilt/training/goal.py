"""What a model predicts, which sums a test takes on the device, and which scores follow from them.

A device tells sums over its samples, never samples:

* labels: one of C, as integers, (n,) or (n, T) for each of T tokens, where -100 is a token without a label. A test
  counts true label by guess: (C, C).
* choices: yes or no to each of d questions, as 0 and 1, (n,) or (n, d). A test counts probabilities: (d, 2, BINS), by
  question, truth and bin. Bins are an eighth of a logit wide, so AUROC takes answers that are nearer as equal.
* numbers: (n,) or (n, d). A test adds up (d, 5): 1, e², |e|, y and y², where e is the error of a target y.

With a metric of one's own, (samples, sum of the metric) comes after these, all in one flat array.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedfilt import _parts
from fedfilt._checks import check_choice
from fedfilt._types import Array

# Losses by name, and the kind of targets that each is of
LOSSES = {"cross_entropy": "labels", "smoothed": "labels", "mse": "numbers", "mae": "numbers", "bce": "choices"}
NO_LABEL = -100  # of a token that does not count, as torch has it
REACH, WIDTH = 12.0, 0.125  # logits that are told apart, and how finely
EDGES = 1 / (1 + np.exp(-np.arange(WIDTH - REACH, REACH, WIDTH)))
BINS = len(EDGES) + 1
TERMS = 5  # sums of a number


class Metric(NamedTuple):
    """A score: its name in files, in words, whether less is better, and how it is written."""

    key: str
    words: str
    lower: bool = False
    form: str = ".1%"

    def text(self, value: float) -> str:
        """A score as it is shown.

        >>> METRICS["accuracy"].text(0.9), METRICS["rmse"].text(0.9)
        ('90.0%', '0.9')
        """
        return format(value * (abs(value) > 1e-12), self.form) if math.isfinite(value) else "–"

    def best(self, values: Any, **more: Any) -> Any:
        """The best of some scores, as `max` finds the largest."""
        return (min if self.lower else max)(values, **more)

    @property
    def share(self) -> bool:
        """Whether it is a share, from 0 to 1."""
        return self.form.endswith("%")

    @property
    def ticks(self) -> str:
        """How an axis of it is written."""
        return "~%" if self.share else ""


METRICS = {
    one.key: one
    for one in (
        Metric("accuracy", "accuracy"),
        Metric("precision", "precision"),
        Metric("recall", "recall"),
        Metric("f1", "F1"),
        Metric("auroc", "AUROC", form=".3f"),
        Metric("rmse", "RMSE", lower=True, form=".4g"),
        Metric("mae", "MAE", lower=True, form=".4g"),
        Metric("r2", "R2", form=".3f"),
    )
}
ACCURACY = METRICS["accuracy"]
# Scores of a kind; the first is shown where no other is asked for
SCORES = {
    "labels": ("accuracy", "precision", "recall", "f1"),
    "choices": ("accuracy", "f1", "auroc"),
    "numbers": ("rmse", "mae", "r2"),
}


@dataclass(frozen=True)
class Goal:
    """The kind of targets, and the score that is shown; `own` is the function of a metric of one's own.

    >>> Goal.of("mse").metric.words
    'RMSE'
    """

    kind: str = "labels"
    metric: Metric = ACCURACY
    own: Callable[[Array, Array], Any] | None = None

    @classmethod
    def of(cls, loss: Any, metric: Any = "", targets: Array | None = None) -> "Goal":
        """The goal of a loss; one of one's own leaves the kind to the targets: integers, true or false, or floats."""
        kind = LOSSES.get(loss) if isinstance(loss, str) else None
        if kind is None:
            kind = "labels" if targets is None else {"b": "choices", "f": "numbers"}.get(targets.dtype.kind, "labels")
        if targets is not None:
            check_targets(kind, loss, targets)
        if callable(metric) or ":" in metric:
            own = _parts.function("training.metric", metric)
            name = getattr(own, "__name__", "")
            name = name if name.isidentifier() and name not in METRICS else "own_metric"
            return cls(kind, named(name, bool(getattr(own, "lower_is_better", False))), own)
        found = check_choice(f"training.metric for the loss {loss}", metric or SCORES[kind][0], SCORES[kind])
        return cls(kind, METRICS[found])

    def nothing(self, outputs: int) -> Array:
        """The sums of a test without samples, for a model with `outputs` outputs."""
        shapes = {"labels": (outputs, outputs), "choices": (outputs, 2, BINS), "numbers": (outputs, TERMS)}
        sums = np.zeros(shapes[self.kind], np.float64 if self.kind == "numbers" else np.int64)
        return sums if self.own is None else np.zeros(sums.size + 2)

    def parts(self, sums: Array) -> tuple[Array, float]:
        """(sums of this kind of goal, the mean of one's own metric)."""
        usual, (count, total) = sums[:-2], sums[-2:]
        outputs = {"labels": math.isqrt(usual.size), "choices": usual.size // (2 * BINS)}.get(
            self.kind, usual.size // TERMS
        )
        return usual.reshape(Goal(self.kind).nothing(outputs).shape), float(total / count) if count else math.nan

    def counted(self, sums: Array) -> float:
        """How many targets are behind sums that somebody tells; NaN if they cannot be those of a test."""
        usual = sums if self.own is None else self.parts(sums)[0]
        counts = usual[:, :1] if self.kind == "numbers" else usual
        positive = usual[:, [0, 1, 2, 4]] if self.kind == "numbers" else usual
        return float(counts.sum(dtype=float)) if np.isfinite(sums).all() and positive.min() >= 0 else math.nan

    def sums(self, targets: Array, outputs: Array, count: int) -> Array:
        """What a test of some samples adds up; the outputs are probabilities or numbers, `count` of them a target.

        >>> Goal("numbers").sums(np.array([1.0, 2.0]), np.array([[1.0], [4.0]]), 1).tolist()
        [[2.0, 4.0, 2.0, 3.0, 5.0]]
        """
        found = _SUMS[self.kind](targets, outputs, count)
        if self.own is None:
            return found
        values = np.asarray(self.own(targets, outputs), float)
        if values.shape != (len(targets),) or not np.isfinite(values).all():
            raise ValueError(
                f"training.metric must return {len(targets)} finite numbers, one per sample, got shape {values.shape}"
            )
        return np.append(found.ravel().astype(float), [len(values), values.sum()])


def named(key: str, lower: bool = False) -> Metric:
    """A known metric, or one of somebody's own."""
    return METRICS.get(key) or Metric(key, key.replace("_", " "), lower, ".4g")


def metric_in(test: Mapping[str, Any]) -> Metric:
    """The score of a test, as a line of metrics.jsonl or a result tells it.

    >>> metric_in({"mean": 0.9}).words, metric_in({"mean": 2.0, "metric": "rmse", "lower": True}).lower
    ('accuracy', True)
    """
    return named(test.get("metric", "accuracy"), bool(test.get("lower")))


def outputs_of(kind: str, y: Array, classes: int) -> int:
    """Numbers that a model must give for a sample (for a token, where each has a label)."""
    return classes if kind == "labels" else math.prod(y.shape[1:])


def class_axis(shape: Sequence[int], tokens: Sequence[int]) -> int:
    """Where the labels are in a model's outputs: (n, C), or (n, T, C) or (n, C, T) of T tokens; if both fit, the first.

    >>> class_axis((8, 3), ()), class_axis((8, 5, 3), (5,)), class_axis((8, 3, 5), (5,))
    (1, 2, 1)
    """
    wanted, found = tuple(tokens), tuple(shape)
    if not wanted and len(found) == 2:
        return 1
    if len(wanted) == 1 and len(found) == 3 and wanted[0] in found[1:]:
        return 2 if found[1] == wanted[0] else 1
    each = f" for each of {wanted[0]} tokens" if wanted else ""
    raise ValueError(f"model must return one number per label{each}, got shape {found}")


def check_targets(kind: str, loss: Any, y: Array) -> None:
    """Refuse targets that a loss is not of."""
    name, whole = getattr(loss, "__name__", loss), y.dtype.kind in "iu"
    if kind == "labels" and not whole:
        raise ValueError(f"training.loss = {name} needs integer labels, got targets of {y.dtype}; use mse, mae or bce")
    if kind == "choices" and not np.isin(y, (0, 1)).all():
        raise ValueError(f"training.loss = {name} needs targets of 0 and 1, got {y.min():g} to {y.max():g}")


def _labels(targets: Array, outputs: Array, count: int) -> Array:
    known = targets.ravel() != NO_LABEL
    places = (targets.ravel() * count + outputs.reshape(-1, count).argmax(axis=1))[known]
    return np.bincount(places, minlength=count * count).reshape(count, count)


def _choices(targets: Array, outputs: Array, count: int) -> Array:
    bins = np.searchsorted(EDGES, outputs.reshape(-1, count), side="right")
    truth = targets.reshape(-1, count).astype(np.int64)
    places = (2 * np.arange(count) + truth) * BINS + bins
    return np.bincount(places.ravel(), minlength=count * 2 * BINS).reshape(count, 2, BINS)


def _numbers(targets: Array, outputs: Array, count: int) -> Array:
    y = targets.reshape(-1, count).astype(float)
    error = outputs.reshape(-1, count) - y
    return np.stack([np.ones_like(y), error**2, abs(error), y, y**2], axis=-1).sum(axis=0)


_SUMS = {"labels": _labels, "choices": _choices, "numbers": _numbers}


class Scores(NamedTuple):
    """Accuracy, macro precision, macro recall and F1 of a confusion matrix."""

    accuracy: float
    precision: float
    recall: float
    f1: float


def scores(confusion: Array) -> Scores:
    """I_1 .. I_4 of a confusion matrix (true label by row); labels that never occur do not count.

    F1 is the harmonic mean of the macro precision and the macro recall, as in the paper.

    >>> [round(value, 4) for value in scores(np.array([[8, 2], [1, 9]]))]
    [0.85, 0.8535, 0.85, 0.8518]
    """
    hits = np.diagonal(confusion).astype(float)
    given, true = confusion.sum(axis=0), confusion.sum(axis=1)
    occurs = true > 0
    if not occurs.any():
        return Scores(*[float("nan")] * 4)
    precision = float((hits / np.where(given > 0, given, 1))[occurs].mean())
    recall = float((hits / np.where(true > 0, true, 1))[occurs].mean())
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return Scores(float(hits.sum() / true.sum()), precision, recall, f1)


def all_scores(goal: Goal, sums: Array) -> dict[str, float]:
    """Every score of a goal, by name; NaN where there is nothing to tell it by.

    RMSE = √(Σe² / n), MAE = Σ|e| / n, R2 = 1 - Σe² / (Σy² - (Σy)² / n); of choices, F1 and AUROC, where answers in one
    bin count as equal. Where there are several outputs: their mean.

    >>> all_scores(Goal("numbers"), np.array([[2.0, 8.0, 2.0, 3.0, 5.0]]))
    {'rmse': 2.0, 'mae': 1.0, 'r2': -15.0}
    """
    if goal.own is not None:
        usual, mean = goal.parts(sums)
        return {**all_scores(Goal(goal.kind), usual), goal.metric.key: mean}
    if goal.kind == "labels":
        return scores(sums)._asdict()
    return _scores_of_numbers(sums) if goal.kind == "numbers" else _scores_of_choices(sums)


def _scores_of_numbers(sums: Array) -> dict[str, float]:
    count, squares, absolute, total, total_squares = sums.T
    if not count.all():
        return dict.fromkeys(("rmse", "mae", "r2"), math.nan)
    around = total_squares - total**2 / count
    r2 = np.where(around > 0, 1 - squares / np.where(around > 0, around, 1), np.nan)
    return {
        "rmse": float(np.sqrt(squares / count).mean()),
        "mae": float((absolute / count).mean()),
        "r2": float(r2.mean()),
    }


def _scores_of_choices(sums: Array) -> dict[str, float]:
    sums = sums.astype(float)  # (d, 2, BINS)
    no, yes = sums[:, 0], sums[:, 1]
    wrong, right = no[:, BINS // 2 :].sum(axis=1), yes[:, BINS // 2 :].sum(axis=1)  # of answers that say yes
    absent, there = no.sum(axis=1), yes.sum(axis=1)
    if not (absent + there).all():
        return dict.fromkeys(("accuracy", "f1", "auroc"), math.nan)
    below = np.cumsum(no, axis=1) - no / 2  # answers to a no that are lower; half of the equal ones
    both = (absent > 0) & (there > 0)
    areas = (yes * below).sum(axis=1)[both] / (absent * there)[both]
    f1 = 2 * right / np.maximum(right + wrong + there, 1)
    return {
        "accuracy": float((right + absent - wrong).sum() / (absent + there).sum()),
        "f1": float(f1.mean()),
        "auroc": float(areas.mean()) if both.any() else math.nan,
    }
