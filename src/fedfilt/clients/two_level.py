from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt._checks import check_choice, check_count, check_number
from fedfilt._types import Array
from fedfilt.training.client import Sent, Task


@dataclass(frozen=True)
class TwoLevel:
    """Two levels, one answer: the shared model by FedAvg, and a personal one mixed once from all devices' changes.

    It trains like `plain`. `before` rounds before the end (or in the first round of a shorter run), and with `every`
    also at that interval before, it fine-tunes the model it received for `epochs` on all of its samples and on two
    halves of them, and sends the three changes. The rule `empirical_bayes` mixes these into its personal model. It
    `answers` with the "average" of the shared and the personal model's probabilities, or with the "personal" or
    "shared" model alone. A device that did not take part in that round answers with the shared model.

    With `mu`, it trains a third model in all rounds, which the rule filters over the graph with that strength; the
    average is then of three. What travels is its difference from the shared model.

    >>> from fedfilt.training.client import example
    >>> client = TwoLevel(epochs=2, before=1)
    >>> task = example(client)
    >>> task.rounds = 1
    >>> [bool(change.any()) for change in client(task).travelling.values()]
    [True, True, True]
    >>> client.personal(example(client)).shape
    (2, 6)
    """

    epochs: int = 10  # of fine-tuning, in the round that personalises
    before: int = 10  # rounds before the end in which that is
    every: int = 0  # and in every so many rounds before that; 0: only then
    answers: str = "average"  # "average" of all models' probabilities, "personal" or "shared"
    mu: float = 0.0  # strength of a third model, filtered over the graph from the first round on; 0: none
    rule = "empirical_bayes"
    like = "plain"
    seldom: ClassVar = ("personal", "first", "second")
    search: ClassVar = {"epochs": (1, 30)}  # as of `finetune`

    def __post_init__(self) -> None:
        check_count("client.epochs", self.epochs)
        check_count("client.before", self.before)
        check_count("client.every", self.every, low=0)
        check_choice("client.answers", self.answers, ("average", "personal", "shared"))
        check_number("client.mu", self.mu, low=0)
        if self.mu and self.answers != "average":
            raise ValueError(f"client.mu adds a model to the average: answers must be 'average', got {self.answers!r}")

    @property
    def travels(self) -> tuple[str, ...]:
        """Names of what goes with the model, in the order that the rule reads them."""
        return ("filtered", *self.seldom) if self.mu else self.seldom

    @property
    def passes(self) -> float:
        """It trains a second model in every round if there is a third to be filtered."""
        return 2.0 if self.mu else 1.0

    def due(self, round: int, rounds: int) -> bool:
        """Whether devices personalise in a round; if the number of rounds is unknown, at every interval."""
        last = max(rounds - self.before + 1, 1) if rounds else 0
        if round == last or not self.every:
            return round == last
        return (not rounds or round < last) and (last - round) % self.every == 0

    def extra(self, round: int, rounds: int) -> float:
        """Epochs on all samples and on two halves, in rounds that personalise."""
        return 2.0 * self.epochs if self.due(round, rounds) else 0.0

    def __call__(self, task: Task) -> Sent:
        given, travelling = task.model.copy(), dict(task.travelling)
        loss = task.train(task.model)
        if self.due(task.round, task.rounds):
            for name, among in zip(self.seldom, (None, *task.halves()), strict=True):
                row = given.copy()
                task.train(row, epochs=self.epochs, among=among)
                travelling[name] = travelling[name] + (row - given)
        if self.mu:
            filtered = given + travelling["filtered"]
            task.train(filtered)
            travelling["filtered"] = filtered - task.model
        return Sent(task.model, loss, travelling=travelling)

    def personal(self, task: Task) -> Array:
        """The personal, the shared and the filtered model, or one of them."""
        own = task.travelling["personal"]
        own = own if own.any() and self.answers != "shared" else task.model
        if self.answers != "average":
            return own.copy()
        third = [task.model + task.travelling["filtered"]] if self.mu else []
        return np.stack([own, task.model, *third])
