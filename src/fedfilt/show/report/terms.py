"""The words of a report, explained where they first appear."""

from html import escape

GLOSSARY = {
    "local test": "How well a device's own model does on data like its own: only the labels that the device holds.",
    "global test": "How well a device's own model does on everybody's data, all labels.",
    "fine-tuned": "The local test of a device's model after it has trained on its own data and before mixing: what it "
    "would have if it went on by itself. Recorded with evaluation.trained = true.",
    "worst device": "The device with the lowest accuracy: a mean can hide it.",
    "mu": "The strength μ of mixing. μ = 0 keeps purely personal models, μ → ∞ gives one shared model.",
    "fedavg": "One shared model: the mean of all devices' models, weighted by their samples. The paper's baseline.",
    "local": "Purely personal models: nobody learns from anybody.",
    "G-Fedfilt": "The paper's rule: models pass a low-pass filter on the graph of the devices, so that devices that "
    "are linked learn more from each other.",
    "graph frequency": "λ, an eigenvalue of the graph's Laplacian: 0 for what all linked devices share, large for what "
    "differs between neighbours.",
    "filter response": "h(λ) = 1 / (1 + μλ) for the paper's filter: how much is kept of each graph frequency.",
    "mixing matrix": "Row i says what device i's new model is made of: its share of every device's trained model.",
    "deadline": "T, the moment by which a round's updates are to be there.",
    "plan outcome": "How the scheduler could fill the time: sync (ready exactly at the deadline), idle_saturated (does "
    "all it may and waits), idle_energy, idle_integer, infeasible_energy and infeasible_time (left out).",
    "latency": "I_6, seconds (simulated, unless devices are real) until all rounds ended.",
    "paired difference": "The score of a rule minus that of another with the same seed, so with the same data, start "
    "and batches. The interval holds the true mean difference with 95 % confidence (Student's t over seeds): if it "
    "crosses 0, the seeds do not tell the two apart.",
    "desynchronisation": "I_7, seconds between the first and the last device, summed over rounds.",
    "I_1 .. I_4": "Accuracy, macro precision, macro recall and F1 of the summed confusion matrix.",
    "joules, bytes": "Energy of computing and sending, and bytes sent, of all devices; all simulated.",
}


def term(term: str, words: str = "") -> str:
    """A word with a link to its meaning, if the glossary has it."""
    text = escape(words or term)
    return f"<a href='#{anchor(term)}'>{text}</a>" if term in GLOSSARY else text


def anchor(term: str) -> str:
    return "term-" + "".join(c if c.isalnum() else "-" for c in term.lower())
