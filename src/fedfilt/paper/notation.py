"""The paper's notation and the names used here."""

from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import table

place = "tabs. notations and notations_2"
order = 32
GENERAL = [
    ("A_i × B_i × C_i", "size of a room", "`size` of `Building.generate`"),
    ("𝒩, N", "rooms, and their number", "`Graph.rooms`; `graph.rooms`"),
    ("𝒦_c, K_c", "devices in a room, and their number", "devices with that room in `Graph.rooms`"),
    ("s_{i,c}", "device i in room c", "a device, counted from 0 over the building"),
    ("K", "number of devices", "`Graph.count`, K in comments on shapes"),
    ("𝒢, 𝒱, ℰ", "graph, devices, links", "`Graph`, `Graph.edges`"),
    ("𝒜_s", "neighbours of a device", "a row of `Graph.adjacency`"),
    ("A, D, L", "adjacency, degrees, L = D - A", "`Graph.adjacency`, `Graph.degrees`, `Graph.laplacian`"),
    ("𝒟_s, D_s", "data of a device, and how much", "`FederatedData.train`; `samples.train`"),
    ("𝒳, 𝒴", "inputs and labels", "`Samples.x`, `Samples.y`"),
    ("F_s(·)", "model of a device", "`[model]`; its row of `State.models`"),
    ("κ_s", "weight of a device", '`Updates.weights`; `weights = "held"` is the paper\'s'),
    ("L(·), L̃(·)", "loss of a sample, of a device", "`training.loss`; `Record.losses`"),
    ("L^g(·)", "collaborative loss Σ κ L̃", "`loss` in metrics.jsonl"),
    ("g_s, G", "update of a device, of all", "`Reply.update`, `Updates.rows`"),
    ("R", "rounds", "`rounds`"),
    ("α_s", "local epochs", "`Plan.epochs`"),
    ("V, v_i, λ_i, Λ", "modes and frequencies", "`Graph.modes`, `Graph.frequencies`"),
]
ALGORITHMS = [
    ("d_ij, d_max", "distance between devices, and the largest of a link", "`Building.positions`; `graph.reach`"),
    ("h_s(·, μ_s)", "graph filter", "`filters.Tikhonov`"),
    ("μ_s", "its parameter", "`aggregator.filter.mu`"),
    ("Ĝ", "filtered updates", "what a rule returns"),
    ("H", "filter as a matrix", "`fedfilt.mixing_matrix`"),
    ("ℬ_s, β_s", "mini-batches", "`training.batch_size`; drawn in `training/sgd.py`"),
    ("Δ_s", "gradient of a step", "inside `Trainer.train`"),
    ("ω_s", "weights of a model", "a row of `State.models`"),
    ("η_s", "learning rate", "`training.learning_rate`"),
    ("z_s", "sparsification", "`Plan.density`, of the bytes"),
    ("q_s", "share of the data used", "`Plan.data_fraction`"),
    ("Th_s", "sparsification threshold", "none: `top_k` sends the largest values that fit"),
    ("T", "deadline of a round", "`Schedule.deadline`"),
    ("ρ_s, f_s", "cycles per sample, per second", "`Hardware.cycles_per_sample`, `clock_hz`"),
    ("ς", "switched capacitance", "in `system/radio.py`"),
    ("b_s, p_s, ξ_s", "bandwidth, power, gain", "`Hardware.bandwidth_hz`, `transmit_watts`, `gain_db`"),
    ("n₀", "noise", "`radio.NOISE_DBM_PER_HZ`"),
    ("r_s", "rate", "`Hardware.send_seconds` uses it"),
    ("E^comp, E^tran", "joules", "`Hardware.compute_joules`, `send_joules`"),
    ("μ₁, μ₂, μ₃", "weights of P''", "`scheduler.importance`"),
    ("χ(φ(·; z))", "size of the sparse update", "`sparsifier.full_bytes`, bytes with positions"),
    ("ψ(·; q)", "samples trained on", "`Plan.samples`, rounded down"),
    ("τ^comp, τ^tran", "seconds", "`Cost.compute_seconds`, `send_seconds`"),
    ("H (eq. H)", "heterogeneity", "`system.hardware.heterogeneity`, of full settings"),
    ("I_1 .. I_4", "accuracy, precision, recall, F1", "the same in metrics.jsonl"),
    ("I_5, I_6, I_7", "FLOPs, latency, desynchronisation", "`flops`, `latency`, `desync` in metrics.jsonl"),
]


def make(results: Results) -> Item:
    """Both tables."""
    head = ["paper", "what it is", "here"]
    one, two = table(head, GENERAL), table(head, ALGORITHMS)
    return Item(
        f"**General**\n\n{one}\n\n**Algorithms**\n\n{two}\n\nA letter that the paper uses twice is listed once."
    )
