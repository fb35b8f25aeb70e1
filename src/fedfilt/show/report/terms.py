"""The terms used in a report, with explanations."""

from html import escape

GLOSSARY = {
    "local test": "How well a device's own model does on data like its own, with only the labels the device holds.",
    "global test": "How well a device's own model does on everybody's data, with all labels.",
    "fine-tuned": "The local test of a device's model after it has trained on its own data and before mixing: the "
    "score it would have if it continued alone. Recorded with evaluation.trained = true.",
    "worst device": "The device with the lowest accuracy, which a mean can hide.",
    "mu": "The strength μ of mixing. μ = 0 keeps purely personal models, μ → ∞ gives one shared model.",
    "fedavg": "One shared model: the mean of all devices' models, weighted by samples. The paper's baseline.",
    "local": "Purely personal models: no device learns from another.",
    "G-Fedfilt": "The paper's rule: models pass through a low-pass filter on the graph of the devices, so that linked "
    "devices learn more from each other.",
    "graph frequency": "λ, an eigenvalue of the graph's Laplacian: 0 for what all linked devices share, large for what "
    "differs between neighbours.",
    "filter response": "How much of each graph frequency is kept: h(λ) = 1 / (1 + μλ) for the paper's filter.",
    "mixing matrix": "Row i shows what device i's new model is made of: its share of every device's trained model.",
    "deadline": "T, the time by which a round's updates must arrive.",
    "plan outcome": "How the scheduler fills a device's time: sync (ready exactly at the deadline), idle_saturated "
    "(does all it may, then waits), idle_energy, idle_integer, infeasible_energy and infeasible_time (the last two "
    "are left out of the round).",
    "latency": "I_6: seconds until all rounds have ended; simulated unless devices are real.",
    "paired difference": "The score of one rule minus that of another with the same seed, and so with the same data, "
    "initial models and batches. The interval holds the true mean difference with 95 % confidence (Student's t over "
    "seeds); if it crosses 0, the seeds cannot tell the two apart.",
    "desynchronisation": "I_7: seconds between the first and the last device, summed over rounds.",
    "I_1 .. I_4": "Accuracy, macro precision, macro recall and F1 of the summed confusion matrix.",
    "joules, bytes": "Energy for computing and sending, and bytes sent, by all devices; simulated.",
}


def term(term: str, words: str = "") -> str:
    """A term, linked to its meaning if the glossary has it."""
    text = escape(words or term)
    return f"<a href='#{anchor(term)}'>{text}</a>" if term in GLOSSARY else text


def anchor(term: str) -> str:
    return "term-" + "".join(c if c.isalnum() else "-" for c in term.lower())
