"""The same rules on another model, a small perceptron."""

from fedfilt.paper._cases import TABLE, Case, Scope
from fedfilt.paper._items import Item
from fedfilt.paper._printed import ACCURACY, WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import differences, spread, table

place = "sec. Experimental setup: a different model"
order = 128


def case_of(scope: Scope, rule: str) -> Case:
    """MNIST_2 with one hidden layer of 64 neurons, 50,890 numbers, trained as the CNN is."""
    return Case("mnist_2", rule, scope.small, scope.rounds, model="mlp")


def cases(scope: Scope) -> list[Case]:
    """The rules of the tables."""
    return [one for rule in TABLE for one in scope.seeds(case_of(scope, rule))]


def make(results: Results) -> Item:
    """Both tests beside those of the paper's CNN."""
    scope, rows = results.scope, []
    for rule in TABLE:
        row = [WORDS[rule]]
        for test in ("local", "global"):
            row.append(f"{ACCURACY[test]['mnist_2', rule][0]:.1f}")
            for case in (Case("mnist_2", rule, scope.small, scope.rounds), case_of(scope, rule)):
                row.append(spread(results.values(case, test, "mean").values()))
        rows.append(row)
    head = ["rule"]
    for test in ("local", "global"):
        head += [f"{test}: paper", "CNN", "perceptron"]
    text = table(head, rows)
    if not results.seeds(case_of(scope, "mu=1")):
        return Item(f"{text}\n\n`fedfilt paper other_model` computes what is missing.")
    gain = {}
    for test in ("local", "global"):
        one, base = (results.values(case_of(scope, rule), test, "mean") for rule in ("mu=1", "fedavg"))
        gain[test] = spread(differences(one, base), 2, sign=True)
    text += (
        f"\n\nMNIST_2, {scope.small} samples, one hidden layer of 64 neurons. With μ = 1 the perceptron is "
        f"{gain['local']} points from FedAvg on the local test and {gain['global']} on the global one. It "
        "has 50,890 numbers, the CNN 53,002: that a more complex model is more accurate is not tested."
    )
    return Item(text)
