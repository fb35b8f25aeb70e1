"""Every method against its paper's algorithm, written down in plain PyTorch with one autograd call a step."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn import functional

from fedfilt import Evaluation, Experiment, Graph, State, Training, Updates, _parts, native, play
from fedfilt._draws import Key, RoundKey, generator
from fedfilt.aggregators import IFCA as IFCARule
from fedfilt.aggregators import SFL, Attention, EmpiricalBayes, FedAvg, FedU, GFedFilt, RoomAverage
from fedfilt.aggregators import FedAMP as FedAMPRule
from fedfilt.aggregators import FedDyn as FedDynRule
from fedfilt.aggregators import Local as LocalRule
from fedfilt.aggregators import Scaffold as ScaffoldRule
from fedfilt.clients import (
    APFL,
    IFCA,
    Averaged,
    Ditto,
    FedAMP,
    FedBN,
    FedDyn,
    FedPer,
    FedProx,
    FedRep,
    FineTune,
    LabelPrior,
    LGFedAvg,
    PerFedAvg,
    PFedMe,
    Plain,
    Scaffold,
    TwoLevel,
)
from fedfilt.engines.local import Local
from fedfilt.filters import Tikhonov
from fedfilt.mixing.bayes import empirical_bayes
from fedfilt.models import MLP
from fedfilt.populations import Paper
from fedfilt.schedulers import Everything
from fedfilt.training.client import TESTING, travels
from fedfilt.training.sgd import orders
from helpers import Odd, some_data

ROUNDS, EPOCHS, RATE, BATCH, SEED = 3, 2, 0.1, 8, 5
DATA = some_data(devices=3, shape=(1, 3, 2), sizes=(20, 9, 13))
HIDDEN = 7
SIZES = (HIDDEN * 6, HIDDEN, 3 * HIDDEN, 3)
HEAD = torch.arange(sum(SIZES)) >= SIZES[0] + SIZES[1]


# --- the definition ---------------------------------------------------------------------------------------------------


def loss(row, batch, device):
    """Cross-entropy of a row on some samples of a device."""
    w1, b1, w2, b2 = row.split(SIZES)
    own = DATA.train[device][batch]
    hidden = (torch.from_numpy(DATA.x[own]).flatten(1) @ w1.view(HIDDEN, 6).T + b1).relu()
    return functional.cross_entropy(hidden @ w2.view(3, HIDDEN).T + b2, torch.from_numpy(DATA.y[own]))


def slope(row, batch, device):
    row = row.detach().requires_grad_()
    return torch.autograd.grad(loss(row, batch, device), row)[0]


def batches(round, device, epochs=EPOCHS, first=0):
    held = len(DATA.train[device])
    chosen, draws = orders(SEED, round, device, held, held, epochs, first)
    for draw in draws:
        for start in range(0, held, BATCH):
            yield chosen[draw[start : start + BATCH]]


def descend(row, drawn, device, extra=lambda w: 0.0, rate=RATE, where=1.0):
    for batch in drawn:
        row = row - rate * where * (slope(row, batch, device) + extra(row))
    return row


def plain(my, w, round, device):
    return descend(w, batches(round, device), device)


def fedprox(my, w, round, device):
    return descend(w, batches(round, device), device, lambda v: 0.3 * (v - w))


def ditto(my, w, round, device):
    own = my.setdefault("personal", w)
    my["personal"] = descend(own, batches(round, device, first=EPOCHS), device, lambda v: 0.5 * (v - w))
    return plain(my, w, round, device)


def pfedme(my, w, round, device):
    theta = w
    for batch in batches(round, device):
        for _ in range(3):
            theta = theta - RATE * (slope(theta, batch, device) + 2.0 * (theta - w))
        w = w - 0.1 * (w - theta)
    my["personal"] = theta
    return w


def scaffold(my, w, round, device):
    w, c = w
    own = my.setdefault("control", torch.zeros_like(w))
    drawn = list(batches(round, device))
    y = descend(w, drawn, device, lambda v: c - own)
    my["control"] = own - c + (w - y) / (len(drawn) * RATE)
    return y, c + my["control"] - own


def feddyn(my, w, round, device):
    g = my.setdefault("gradient", torch.zeros_like(w))
    found = descend(w, batches(round, device), device, lambda v: 0.4 * (v - w) - g)
    my["gradient"] = g - 0.4 * (found - w)
    return found


def fedper(my, w, round, device, keep=HEAD):
    row = torch.where(keep, my.setdefault("kept", w), w)
    my["kept"] = descend(row, batches(round, device), device)
    return torch.where(keep, w, my["kept"])


def lg_fedavg(my, w, round, device):
    return fedper(my, w, round, device, ~HEAD)


def fedrep(my, w, round, device):
    row = torch.where(HEAD, my.setdefault("kept", w), w)
    row = descend(row, batches(round, device, 3), device, where=HEAD.float())
    row = descend(row, batches(round, device, first=3), device, where=1 - HEAD.float())
    my["kept"] = row
    return torch.where(HEAD, w, row)


def apfl(my, w, round, device):
    v = my.setdefault("own", w)
    for batch in batches(round, device):
        blend = 0.3 * v + 0.7 * w
        w, v = w - RATE * slope(w, batch, device), v - RATE * 0.3 * slope(blend, batch, device)
    my["own"] = v
    return w


def per_fedavg(my, w, round, device):
    drawn = list(batches(round, device, 2 * EPOCHS))
    for first, second in zip(drawn[::2], drawn[1::2], strict=True):
        w = w - RATE * slope(w - 0.05 * slope(w, first, device), second, device)
    return w


def fedamp(my, u, round, device):
    own = my.setdefault("own", u)
    my["own"] = descend(own, batches(round, device), device, lambda w: 0.3 * (w - u))
    return my["own"]


def ifca(my, w, round, device):
    everything = torch.arange(len(DATA.train[device]))
    my["chosen"] = int(torch.stack([loss(one, everything, device) for one in w]).argmin())
    return my["chosen"], descend(w[my["chosen"]], batches(round, device), device)


def closest(my, w, round, device):
    ifca(my, w, round, device)
    return w[my["chosen"]]


def prior(my, w, round, device):
    labels = DATA.y[DATA.train[device]]
    shares = torch.tensor([((labels == c).sum() + 0.5) / (len(labels) + 1.5) for c in range(3)], dtype=torch.float32)
    return torch.cat([w[:-3], w[-3:] + shares.log()])


def tuned(my, w, round, device, epochs=4, share=0.5, rate=RATE):
    drawn = batches(round, device, epochs, TESTING)
    return w + share * (descend(w, drawn, device, rate=rate, where=HEAD.float()) - w)


def adapted(my, w, round, device):
    return descend(w, batches(round, device, 2, TESTING), device, rate=0.05)


def personal(my, w, round, device):
    return my["personal"]


def headed(my, w, round, device):
    return torch.where(HEAD, my["kept"], w)


METHODS = {  # client, what a device does, what it decides with
    "plain": (Plain(), plain, None),
    "fedprox": (FedProx(0.3), fedprox, None),
    "ditto": (Ditto(0.5), ditto, personal),
    "pfedme": (PFedMe(2.0, 3, 0.1), pfedme, personal),
    "scaffold": (Scaffold(), scaffold, None),
    "feddyn": (FedDyn(0.4), feddyn, None),
    "fedper": (FedPer(), fedper, headed),
    "fedrep": (FedRep(head_epochs=3), fedrep, headed),
    "lg_fedavg": (LGFedAvg(), lg_fedavg, lambda my, w, *_: torch.where(HEAD, w, my["kept"])),
    "apfl": (APFL(0.3), apfl, lambda my, w, *_: 0.3 * my["own"] + 0.7 * w),
    "per_fedavg": (PerFedAvg(0.05, 2), per_fedavg, adapted),
    "finetune": (FineTune(4, ("head",), 0.5), plain, tuned),
    "fedamp": (FedAMP(0.3), fedamp, lambda my, *_: my["own"]),
    "ifca": (IFCA(3), ifca, closest),
    "label_prior": (LabelPrior(0.5), plain, prior),
}


RULES = {  # of the others, FedAvg
    "feddyn": FedDynRule(0.4),
    "scaffold": ScaffoldRule(),
    "fedamp": FedAMPRule(0.6, sigma=2.0),
    "ifca": IFCARule(3),
}


def reference(client, step, decides, first):
    """(shared models, models that devices decide with) after some rounds of FedAvg, or of FedDyn's own rule."""
    sizes = np.array([len(rows) for rows in DATA.train])
    shares = torch.from_numpy((sizes / sizes.sum()).astype(np.float32))
    w, c, h, mine = first, torch.zeros_like(first), torch.zeros_like(first), [{} for _ in sizes]
    for round in range(1, ROUNDS + 1):
        given = (w, c) if isinstance(client, Scaffold) else w
        sent = [step(my, given, round, device) for device, my in enumerate(mine)]
        if isinstance(client, Scaffold):
            c = torch.stack([part for _, part in sent]).mean(0)
            sent = [part for part, _ in sent]
        if isinstance(client, FedDyn):
            h = h - 0.4 * sum(row - w for row in sent) / len(sent)
            w = torch.stack(sent).mean(0) - h / 0.4
        else:
            w = shares @ torch.stack(sent)
    decided = [w if decides is None else decides(my, w, ROUNDS, device) for device, my in enumerate(mine)]
    return w, torch.stack(decided)


# --- ours -------------------------------------------------------------------------------------------------------------


def ours(client, rule, model=None, data=DATA, workers=1, graph=None):
    """The state after some rounds and the models that devices decide with."""
    model = MLP((1, 3, 2), 3, hidden=HIDDEN) if model is None else model
    training = Training(RATE, BATCH)
    with Local(data, model, training, SEED, workers, client=client) as engine:
        trainer = engine._table.desk.trainer
        row = trainer.start(1)
        wide = np.concatenate([row, *(np.zeros_like(row) for _ in travels(client))])
        held = np.array([len(rows) for rows in data.train])
        hardware = Paper().draw(held, 8, np.random.default_rng(0))
        graph, often = graph or Graph.from_edges(data.count, []), Evaluation(every=ROUNDS)
        experiment = Experiment(graph, rule, Everything(EPOCHS), engine, hardware, ROUNDS, 8, often, SEED)
        *_, (state, record) = play(State(0, np.tile(wide, (data.count, 1))), experiment)
        return SimpleNamespace(state=state, record=record, first=row, decided=engine.personal(state), trainer=trainer)


def messages(trained):
    """FedAMP's: W - α ∂/∂W Σ A(‖wᵢ - wⱼ‖²) over pairs, by autograd, with A(x) = 1 - exp(-x / σ) and σ = 2."""
    w = trained.double().requires_grad_()
    pairs = [(i, j) for i in range(len(w)) for j in range(i)]
    total = sum(1 - torch.exp(-((w[i] - w[j]) ** 2).sum() / 2.0) for i, j in pairs)
    alpha = 0.6 * 2.0 / (len(w) - 1) / 2  # half: the square's derivative is 2 (w - w'), the paper's α takes the 2 in
    return (w - alpha * torch.autograd.grad(total, w)[0]).detach().float()


def apart(name, client, step, decides, first, trainer):
    """(rows, models that devices decide with) after some rounds of a method whose devices get rows of their own."""
    sizes = torch.tensor([len(rows) for rows in DATA.train], dtype=torch.float32)
    mine, w = [{} for _ in sizes], first.tile(3, 1)
    if name == "ifca":
        drawn = [int(generator(SEED, Key.STARTS, number).integers(2**62)) for number in (1, 2)]
        w = torch.stack([first, *(torch.from_numpy(trainer.start(seed)) for seed in drawn)])
    for round in range(1, ROUNDS + 1):
        if name == "ifca":
            sent = [step(my, w, round, device) for device, my in enumerate(mine)]
            new = w.clone()
            for cluster in {chosen for chosen, _ in sent}:
                members = [device for device, (chosen, _) in enumerate(sent) if chosen == cluster]
                new[cluster] = sum(sizes[d] * sent[d][1] for d in members) / sizes[members].sum()
            w = new
        else:
            trained = torch.stack([step(my, w[device], round, device) for device, my in enumerate(mine)])
            w = messages(trained) if name == "fedamp" else attended(trained, w, sizes)
    rows = [w if name == "ifca" else w[device] for device in range(3)]
    if decides is None:
        return w, w
    return w, torch.stack([decides(my, rows[device], ROUNDS, device) for device, my in enumerate(mine)])


def attended(trained, before, sizes, strength=0.7):
    """The rows of pFedGraph's problem for each device, solved by a general solver for its few weights."""
    p, found = (sizes / sizes.sum()).double().numpy(), []
    updates = (trained - before).double()
    alike = functional.cosine_similarity(updates[:, None], updates[None], dim=2).numpy()
    for own in alike:
        start = {"x0": p, "method": "SLSQP", "bounds": [(0, 1)] * len(p), "options": {"ftol": 1e-14}}
        whole = {"type": "eq", "fun": lambda x: x.sum() - 1}
        result = minimize(lambda x, own=own: ((x - p) ** 2).sum() - 2 * strength * own @ x, **start, constraints=whole)
        found.append(result.x)
    return torch.from_numpy(np.array(found)).float() @ trained


@pytest.fixture(params=["native", "torch"])
def backend(request, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "" if request.param == "native" else "off")
    return request.param


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_its_papers_algorithm(name, backend):
    client, step, decides = METHODS[name]
    rule = RULES.get(name, FedAvg())
    found = ours(client, rule)
    if found.trainer.backend != backend:
        pytest.skip("fedfilt was built without its native core: no C++ compiler")
    if name in ("fedamp", "ifca"):
        rows, decided = apart(name, *METHODS[name], torch.from_numpy(found.first), found.trainer)
        if name == "fedamp":
            np.testing.assert_allclose(found.state.models, rows, atol=1e-5)
        assert len({row.numpy().tobytes() for row in decided}) > 1
        np.testing.assert_allclose(found.decided, decided, atol=1e-5)
        return
    shared, decided = reference(client, step, decides, torch.from_numpy(found.first))
    size = len(shared)
    np.testing.assert_allclose(found.state.models[0, :size], shared, atol=1e-5)
    np.testing.assert_allclose(found.decided, decided, atol=1e-5)
    assert (abs(shared - torch.from_numpy(found.first)) > 1e-3).any(), "it learnt something"


def over_room(n, links):
    return np.array([[n[0], n[1], 0], [n[0], n[1], 0], [0, 0, n[0] + n[1]]]) / (n[0] + n[1])


def filtered(n, links, mu=3.0):
    return np.linalg.solve(np.diag(n / n.mean()) + mu * (np.diag(links.sum(0)) - links), np.diag(n / n.mean()))


def convolved(n, links):
    some = (links + np.eye(3)) * n
    return np.linalg.matrix_power(some / some.sum(axis=1, keepdims=True), 2)


MATRICES = {  # the rule, and what it makes of trained models, from numbers of samples and weights of links
    "local": (LocalRule(), lambda n, links: np.eye(3)),
    "room_average": (RoomAverage(), over_room),
    "fedu": (FedU(0.1, 2.0), lambda n, links: np.eye(3) - 0.2 * (np.diag(links.sum(0)) - links)),
    "sfl": (SFL(2), convolved),
    "gfedfilt": (GFedFilt(Tikhonov(3.0)), filtered),
}


@pytest.mark.parametrize("name", MATRICES)
def test_a_rule_on_the_graph_mixes_by_its_matrix_in_every_round(name, backend):
    rule, matrix = MATRICES[name]
    links = np.array([[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]])
    found = ours(Plain(), rule, graph=Graph.from_adjacency(links, rooms=[0, 0, 1]))
    if found.trainer.backend != backend:
        pytest.skip("fedfilt was built without its native core: no C++ compiler")
    mixing = torch.from_numpy(matrix(np.array([len(rows) for rows in DATA.train], float), links).astype(np.float32))
    rows = torch.from_numpy(found.first).tile(3, 1)
    for round in range(1, ROUNDS + 1):
        rows = mixing @ torch.stack([plain({}, row, round, device) for device, row in enumerate(rows)])
    np.testing.assert_allclose(found.decided, rows, atol=1e-5)
    assert len({row.tobytes() for row in found.decided}) == (2 if name == "room_average" else 3)


def test_attention_is_pfedgraphs_problem():
    found = ours(Plain(), Attention(0.7))
    rows, _ = apart("attention", Plain(), plain, None, torch.from_numpy(found.first), found.trainer)
    np.testing.assert_allclose(found.state.models, rows, atol=1e-5)
    assert len({row.tobytes() for row in found.state.models}) == 3


@pytest.mark.parametrize("weights", ["projected", "softmax"])
def test_attention_without_strength_is_fedavg_and_with_much_of_it_local(weights):
    rng = np.random.default_rng(0)
    models, updates = rng.standard_normal((2, 5, 9)), Updates(rng.standard_normal((5, 9)), np.arange(1.0, 6))
    graph, updates = Graph.from_edges(5, []), Updates(updates.rows, updates.weights)
    shared = Attention(0.0, weights)(models[0], updates, graph)
    np.testing.assert_allclose(shared, FedAvg()(models[0], updates, graph), atol=1e-12)
    own = Attention(1e6, weights)(models[0], updates, graph)
    np.testing.assert_allclose(own, models[0] + updates.rows, atol=1e-9)
    still = Attention(1.0, weights)(models[0], updates._replace(rows=0 * updates.rows), graph)
    np.testing.assert_allclose(still, FedAvg()(models[0], updates._replace(rows=0 * updates.rows), graph), atol=1e-12)


def test_fedamp_takes_its_sigma_from_the_round_and_equal_models_stay():
    rows = np.array([[0.0], [1.0], [3.0]])
    graph = Graph.from_edges(3, [])
    given = FedAMPRule(0.5, sigma=4.0)(np.zeros((3, 1)), Updates(rows, np.ones(3)), graph)  # of 1, 4 and 9
    np.testing.assert_allclose(FedAMPRule(0.5)(np.zeros((3, 1)), Updates(rows, np.ones(3)), graph), given)
    same = FedAMPRule()(np.ones((3, 1)), Updates(np.zeros((3, 1)), np.ones(3)), graph)
    np.testing.assert_allclose(same, 1)


def test_every_client_has_a_reference():
    assert {*METHODS, "fedbn", "two_level", "averaged"} == set(_parts.names("clients"))


def halves(round, device):
    held = len(DATA.train[device])
    drawn = generator(SEED, round - 1, device, RoundKey.HALVES).permutation(held)
    drawn = np.array(sorted(drawn, key=lambda place: DATA.y[DATA.train[device][place]]))  # a label after the other
    return drawn[: held // 2 * 2 : 2], drawn[1 : held // 2 * 2 : 2]


def some_batches(round, device, among, epochs, first):
    for draw in orders(SEED, round, device, len(among), len(among), epochs, first)[1]:
        for start in range(0, len(among), BATCH):
            yield among[draw[start : start + BATCH]]


@pytest.mark.parametrize("answers", ["average", "personal", "shared"])
def test_two_level_is_fedavg_and_personal_models_mixed_once(backend, answers):
    """From the model that the second of three rounds begins with, in plain PyTorch."""
    client = TwoLevel(epochs=4, before=2, answers=answers)
    found = ours(client, EmpiricalBayes())
    if found.trainer.backend != backend:
        pytest.skip("fedfilt was built without its native core: no C++ compiler")
    first = torch.from_numpy(found.first)
    shared, _ = reference(client, plain, None, first)
    sizes = np.array([len(rows) for rows in DATA.train])
    w = torch.from_numpy((sizes / sizes.sum()).astype(np.float32)) @ torch.stack(
        [plain({}, first, 1, d) for d in range(3)]
    )
    changes: list[list[torch.Tensor]] = [[], [], []]
    for device in range(3):
        parts = (np.arange(sizes[device]), *halves(2, device))
        for place, among in enumerate(parts):
            drawn = some_batches(2, device, among, 4, EPOCHS + 4 * place)
            changes[place].append(descend(w, drawn, device) - w)
    d, a, b = (torch.stack(rows).numpy() for rows in changes)
    own = w.numpy() + empirical_bayes(d, a, b, sizes)[0] @ d
    wanted = {
        "average": np.stack([own, np.tile(shared, (3, 1))], axis=1),
        "personal": own,
        "shared": np.tile(shared, (3, 1)),
    }[answers]
    np.testing.assert_allclose(found.decided, wanted, atol=1e-5)
    size = len(shared)
    assert not found.state.models[:, 2 * size :].any()  # halves are sent, never handed out
    assert abs(own - shared.numpy()).max() > 0.01


def test_a_third_model_of_two_level_is_filtered_over_the_graph_in_every_round(backend):
    """Trained from the first round on after the shared one, then (N + mu L)⁻¹ N of the trained models."""
    client, mu = TwoLevel(epochs=4, before=3, mu=2.0), 2.0
    found = ours(client, EmpiricalBayes(mu=mu), graph=Graph.from_edges(3, [(0, 1), (1, 2)]))
    if found.trainer.backend != backend:
        pytest.skip("fedfilt was built without its native core: no C++ compiler")
    w = torch.from_numpy(found.first)
    sizes = np.array([len(rows) for rows in DATA.train])
    n, laplacian = np.diag(sizes / sizes.mean()), np.array([[1, -1, 0], [-1, 2, -1], [0, -1, 1]])
    mixing = torch.from_numpy(np.linalg.solve(n + mu * laplacian, n).astype(np.float32))
    own = [w] * 3
    for round in range(1, ROUNDS + 1):
        first = EPOCHS + (3 * 4 if round == 1 else 0)  # epochs that it trained before, also of its changes
        trained = [descend(own[d], batches(round, d, first=first), d) for d in range(3)]
        own = list(mixing @ torch.stack(trained))
    np.testing.assert_allclose(found.decided[:, 2], torch.stack(own), atol=1e-5)
    plainly = ours(TwoLevel(epochs=4, before=3), EmpiricalBayes())
    np.testing.assert_array_equal(found.decided[:, :2], plainly.decided)


def test_answers_are_averaged():
    """Of the row that it was given and the client's model: the mean of the probabilities, and its cross-entropy."""
    tuned, both = ours(FineTune(4), FedAvg()), ours(Averaged(FineTune(4)), FedAvg())
    np.testing.assert_array_equal(both.state.models, tuned.state.models)
    np.testing.assert_array_equal(both.decided[:, 1], tuned.state.models)
    np.testing.assert_array_equal(both.decided[:, 0], tuned.decided)
    x, y = DATA.x[DATA.global_test], DATA.y[DATA.global_test]
    for device in range(3):
        rows = both.decided[device]
        chances = torch.stack([torch.from_numpy(found_by(row, x)) for row in rows]).mean(0)
        np.testing.assert_allclose(both.trainer.predict(rows, x), chances, atol=1e-6)
        counts = np.zeros((3, 3), int)
        np.add.at(counts, (y, chances.argmax(dim=1).numpy()), 1)
        np.testing.assert_array_equal(both.record.mixed.global_test[device], counts)
        loss = functional.nll_loss(chances.log(), torch.from_numpy(y))
        assert both.record.mixed.global_loss[device] == pytest.approx(float(loss), rel=1e-5)


def found_by(row, x):
    w1, b1, w2, b2 = torch.from_numpy(row).split(SIZES)
    hidden = (torch.from_numpy(x).flatten(1) @ w1.view(HIDDEN, 6).T + b1).relu()
    return (hidden @ w2.view(3, HIDDEN).T + b2).softmax(dim=1).numpy()


def test_fedbn_keeps_normalisation_and_shares_the_rest():
    data = some_data(devices=3, sizes=(20, 18, 13))
    found = ours(FedBN(), FedAvg(), Odd(), data)
    layout = found.trainer.layout
    norms = layout.columns(["norm"])
    assert 0 < norms.sum() < layout.size
    assert sum(slot.stop - slot.start for slot in layout.slots if "running" in slot.name) > 0
    np.testing.assert_array_equal(found.state.models[:, norms], np.tile(found.first[norms], (3, 1)))  # nobody sent any
    for device in range(3):
        np.testing.assert_array_equal(found.decided[device, norms], found.state.clients[device]["kept"])
        np.testing.assert_array_equal(found.decided[device, ~norms], found.state.models[device, ~norms])
    assert len({row[norms].tobytes() for row in found.decided}) == 3
    with pytest.raises(ValueError, match="normalisation layers"):
        FedBN().check(ours(Plain(), FedAvg()).trainer.layout)


@pytest.mark.parametrize("name", METHODS)
def test_workers_change_nothing(name):
    client = METHODS[name][0]
    rule = RULES.get(name, FedAvg())
    one, two = ours(client, rule), ours(client, rule, workers=2)
    np.testing.assert_array_equal(one.state.models, two.state.models)
    np.testing.assert_array_equal(one.decided, two.decided)
    for device, kept in one.state.clients.items():
        for key, array in kept.items():
            np.testing.assert_array_equal(array, two.state.clients[device][key])
    np.testing.assert_array_equal(one.record.mixed.global_test, two.record.mixed.global_test)


def test_what_is_kept_is_reported_in_bytes():
    found = ours(Ditto(), FedAvg())
    assert found.record.kept.tolist() == [4 * len(found.first)] * 3
    assert ours(Plain(), FedAvg()).record.kept is None


def test_own_and_everybodys_test_are_of_the_model_that_decides():
    found = ours(Ditto(0.0), FedAvg())
    own = DATA.train[1]
    counts, _ = found.trainer.test(found.decided[1], DATA.x, DATA.y, DATA.global_test, 3)
    np.testing.assert_array_equal(found.record.mixed.global_test[1], counts)
    assert len(own)
    assert not math.isnan(found.record.losses[0])
