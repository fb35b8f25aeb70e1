"""The simulation parameters in the paper and here."""

from fedfilt.paper._items import Item
from fedfilt.paper._results import Results
from fedfilt.paper._tables import seed_words, table

place = "tab. sim_param, and the text around it"
order = 31
ROWS = [
    ("room, A × B × C", "10³ m³", "10 m × 10 m × 10 m", "`Building.generate`; the runs use the published graph"),
    ("rooms, N", "4", "4", "`graph.rooms`"),
    ("devices in a room, K_c", "Du(4, 7), 20 in all", "5 each (published graph)", "4 to 7 in `Building.generate`"),
    ("noise, n₀", "-174 dBm/Hz", "-174 dBm/Hz", "`system/radio.py`"),
    ("cycles per sample, ρ", "U(1, 5)·10⁴; text: U(1, 3.5)", "U(1, 5)·10⁴", "`devices = paper`"),
    ("switched capacitance, ς", "10⁻²⁸", "10⁻²⁸", "`system/radio.py`"),
    ("clock, f", "U(1, 3.5) GHz", "U(1, 3.5) GHz", "`devices = paper`"),
    ("transmit power, p", "U(0.5, 1) W", "U(0.5, 1) W", "`devices = paper`"),
    ("channel gain, ξ", "U(1, 2) dB", "U(1, 2) dB", "minus `devices.path_loss_db`, 0 as printed"),
    ("bandwidth, β", "20 MHz, β/K each", "20 MHz, β/K each", '`scheduler.bandwidth` "equal"'),
    ("energy limit, E_max", "not given", "none", "`devices.energy_limit`"),
    ("devices of the schedule rows", "drawn as above for H = 0.31, 0.54, 0.65", "prescribed H and ratio", "see below"),
    ("rounds, R", "200 and 400", "200 and 400", "`rounds`"),
    ("local epochs, α", "3; 1 to 5 with a schedule", "3; 1 to 5 with a schedule", "`scheduler.epochs`"),
    ("q_min, z_min", "0.3, 0.1", "0.3, 0.1", "`scheduler.data_fraction_min`, `density_min`"),
    ("importance μ₁, μ₂, μ₃", "0.4, 0.4, 0.2", "0.4, 0.4, 0.2", "`scheduler.importance`"),
    ("training samples, D", "450", "450, and 45, which gives its level", "`samples.train`"),
    ("local and global test", "100 samples each", "all of MNIST's test set", "`samples.local_test`, `global_test`"),
    ("model", "CNN 32, 64, dense 128, 10; stride 2", "the same, 'same' padding", "`model = paper_cnn`"),
    ("learning rate, batch", "not given", "0.02, 32", "`training`"),
    ("filter strengths, μ_s", "0.1, 1, 10, 100; 10⁴", "the same", "`aggregator.filter.mu`"),
]


def make(results: Results) -> Item:
    """Every parameter that the paper prints or needs."""
    runs = ("simulation runs", "5", seed_words(results), "`fedfilt paper --seeds`")
    return Item(table(["parameter", "paper", "here", "where"], [*ROWS, runs]))
