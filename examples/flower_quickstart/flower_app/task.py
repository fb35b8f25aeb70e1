"""Model, data and training: nothing here depends on Flower."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional


def make_model():
    """A small network for pictures of 8 x 8 pixels."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(part, parts):
    """(training, test) samples of one device: only three digits, different ones for each device."""
    pictures, labels = load_digits(return_X_y=True)
    own = [(3 * part + step) % 10 for step in range(3)]
    mine = [i for i, label in enumerate(labels) if label in own][part::parts]
    x, y = torch.tensor(pictures[mine] / 16, dtype=torch.float32), torch.tensor(labels[mine])
    half = len(y) // 2
    return (x[:half], y[:half]), (x[half:], y[half:])


def train(model, data, epochs, rate):
    """Plain gradient descent; returns the last loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(epochs):
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(data[0]), data[1])
        loss.backward()
        optimiser.step()
    return loss.item()


def test(model, data):
    """Accuracy."""
    with torch.no_grad():
        return (model(data[0]).argmax(dim=1) == data[1]).float().mean().item()


test.__test__ = False  # not a test of pytest's
