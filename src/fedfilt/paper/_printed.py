"""The numbers that the paper prints, in percent and seconds."""

from fedfilt.paper._cases import TABLE

WORDS = {
    "mnist_10": "MNIST_10",
    "mnist_4": "MNIST_4",
    "mnist_2": "MNIST_2",
    "writers": "digits by writer, similar writers share a room (the paper: EMNIST)",
    "writers_at_random": "digits by writer, writers placed at random",
    "emnist": "EMNIST digits",
    "femnist": "FEMNIST, digits by writer",
    "setup_1": "Setup 1",
    "fedavg": "FedAvg",
    "local": "purely personal",
    **{f"mu={mu}": f"μ = {mu}" for mu in ("0.1", "1", "10", "100")},
    "mu=1e4": "μ = 10⁴",
}


def _table(text: str, columns: tuple[str, ...]) -> dict[tuple[str, str], tuple[float, ...]]:
    """(column, rule) -> (mean, std over devices) from a row of means and stds per rule."""
    rows = [[float(word) for word in line.split()] for line in text.strip().splitlines()]
    size = len(rows[0]) // len(columns)
    return {
        (column, rule): tuple(row[i * size : (i + 1) * size])
        for rule, row in zip(TABLE, rows, strict=True)
        for i, column in enumerate(columns)
    }


_SETS = ("mnist_10", "mnist_4", "mnist_2", "writers")

# Tables local_test and global_test: mean and std over the 20 devices after 200 rounds, printed for 450 samples
ACCURACY = {
    "local": _table(
        """
        86.12 4.84  88.37 4.95  79.50 10.32  95.99 6.79
        79.74 7.91  92.74 4.34  95.62  9.52  96.58 6.44
        84.37 5.55  91.12 4.20  92.37  8.14  97.41 6.48
        85.50 6.25  89.87 4.43  83.49  9.54  96.16 6.84
        85.75 5.37  89.35 4.82  80.49 10.64  95.59 6.84
        """,
        _SETS,
    ),
    "global": _table(
        """
        85.05 0.00  77.27 0.00  76.04 0.00  87.21 0.00
        80.55 6.56  72.33 4.78  49.03 7.45  80.59 2.02
        84.49 1.25  77.27 1.73  73.07 5.38  87.38 0.52
        86.02 0.18  77.75 0.34  78.45 0.24  88.09 0.15
        85.57 0.15  78.04 0.07  74.95 0.08  88.14 0.01
        """,
        _SETS,
    ),
}

# Table F1, MNIST_2: precision, recall, F1
SCORES = _table(
    """
    71.99 77.70 74.74  72.07 75.03 73.52
    92.85 93.72 93.29  34.93 43.17 38.61
    87.14 89.68 88.39  66.53 73.20 69.70
    74.58 81.78 78.01  71.73 74.41 73.04
    73.91 79.36 76.54  72.51 75.49 73.96
    """,
    ("local", "global"),
)

# Table sysHetResults: H -> (accuracy, desynchronisation, latency) after 200 and after 400 rounds
BEFORE = {
    0.31: ((86.66, 167.30, 349.18), (88.01, 319.8, 680.34)),
    0.54: ((86.66, 453.00, 661.78), (88.01, 921.51, 1332.92)),
    0.65: ((86.66, 861.59, 1009.50), (88.01, 1706.69, 2004.61)),
}
AFTER = {
    0.31: ((84.52, 0.62, 181.87), (87.65, 1.11, 356.46)),
    0.54: ((82.24, 12.68, 220.04), (86.25, 25.82, 443.17)),
    0.65: ((74.41, 55.09, 201.90), (83.05, 108.23, 399.04)),
}
LESS_COMPUTATION = 70.21  # abstract: "up to", in percent
HIGHEST_FREQUENCY = 8.06  # of the experiment graph, in the text

# What the paper's figures show, by its captions and text, for the picture here that stands for each
FIGURES = {
    "architecture": "smart homes and the devices in them, each with a model; links within homes blue, between homes "
    "red, both dashed.",
    "filter_response": "the response for μ = 5 alone, the 20 graph frequencies as lines.",
    "graph_filtering": "100 devices coloured by the first number of their update, before and after filtering with "
    "H₂, H₁ and H₀, of which it names only H₀, μ = 10⁴.",
    "experiment_graph": "the 20 devices and their links; distances mean nothing.",
    "fedavg_limit": "accuracy of the two rules on EMNIST's global test against rounds, not exactly overlapping.",
    "convergence": "the same four panels over 200 rounds, local tests left, global ones right, a curve per rule.",
    "two_setups": "the same four curves on the local test; its axis begins at 0.6 too.",
    "time_plan": "an illustration of devices that end at different times, and together after optimization.",
    "computation_cost": "billions of operations after 400 rounds for each heterogeneity, before and after.",
}
