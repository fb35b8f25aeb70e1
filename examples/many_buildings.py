"""Many buildings that are one graph, without a server that holds all of it; docs/scale.md derives what happens here.

Each building's edge server eliminates the devices that are linked within the building only. The cloud solves for border
devices, those with a link to another building, and each edge server then finds its other devices from them. The result
is that of fedfilt.mix on the whole graph: V = (N + mu L)^-1 N G.

python examples/many_buildings.py                                                # 5 buildings of 40 devices: a second
python examples/many_buildings.py --buildings 50 --devices 200 --parameters 2000 # half a minute, 1.5 GB
"""

import argparse
import time

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

import fedfilt
from fedfilt.filters import Tikhonov


class EdgeServer:
    """A building: its devices, the links between them, and which of them have links to other buildings."""

    def __init__(self, graph: fedfilt.Graph, mass: np.ndarray, border: np.ndarray, mu: float) -> None:
        self.mass, self.border = mass[:, None], border
        self.inner = np.setdiff1d(np.arange(graph.count), border)
        system = (sp.diags_array(mass) + mu * graph.laplacian).tocsr()
        self.links = system[border][:, self.inner]
        self.factor = splu(system[self.inner][:, self.inner].tocsc())
        self.follow = -self.factor.solve(self.links.T.toarray())  # (inner, border): how inner devices follow the border
        self.schur = system[border][:, border].toarray() + self.links @ self.follow

    def reduce(self, models: np.ndarray) -> np.ndarray:
        """A row per border device for the cloud."""
        weighted = self.mass * models
        self.own = self.factor.solve(weighted[self.inner])  # what inner devices would be if the border were zero
        return (weighted[self.border] - self.links @ self.own).astype(models.dtype)

    def finish(self, rows: np.ndarray) -> np.ndarray:
        """All mixed models of the building, from those of its border devices."""
        mixed = np.empty((len(self.mass), rows.shape[1]), rows.dtype)
        mixed[self.border] = rows
        mixed[self.inner] = self.own + self.follow @ rows
        return mixed


class Cloud:
    """The links between buildings, and from each building the Schur complement of its border devices."""

    def __init__(self, links: sp.sparray, servers: list[EdgeServer], mu: float) -> None:
        self.ends = np.cumsum([len(server.border) for server in servers])[:-1]
        self.factor = splu((sp.block_diag([server.schur for server in servers]) + mu * links).tocsc())

    def solve(self, reduced: list[np.ndarray]) -> list[np.ndarray]:
        """The mixed models of each building's border devices."""
        rows = np.concatenate(reduced)
        return np.split(self.factor.solve(rows.astype(np.float64)).astype(rows.dtype), self.ends)


def prepare(graph: fedfilt.Graph, sizes: list[int], weights: np.ndarray, mu: float) -> tuple[list[EdgeServer], Cloud]:
    """Cut a graph into buildings of so many devices, numbered one building after the other."""
    building = np.repeat(np.arange(len(sizes)), sizes)
    across = graph.adjacency.tocoo(copy=True)
    across.data[building[across.row] == building[across.col]] = 0
    between = fedfilt.Graph(across)
    border, mass = np.unique(between.edges), weights / np.mean(weights)  # buildings must agree on the mean
    servers = []
    for own in np.split(np.arange(graph.count), np.cumsum(sizes)[:-1]):
        servers.append(EdgeServer(graph.subgraph(own), mass[own], np.flatnonzero(np.isin(own, border)), mu))
    return servers, Cloud(between.laplacian[border][:, border], servers, mu)


def mix(servers: list[EdgeServer], cloud: Cloud, models: list[np.ndarray]) -> list[np.ndarray]:
    """A round: only what `reduce` and `solve` give leaves a building, or comes to it."""
    rows = cloud.solve([server.reduce(own) for server, own in zip(servers, models, strict=True)])
    return [server.finish(own) for server, own in zip(servers, rows, strict=True)]


def street(buildings: int, devices: int, links: int = 5, seed: int = 0) -> fedfilt.Graph:
    """Buildings in a ring. Devices are linked with the nearest of their building, and some with the next building."""
    rng = np.random.default_rng(seed)
    parts = [fedfilt.Graph.nearest(rng.random((devices, 3)), min(4, devices - 1)).adjacency for _ in range(buildings)]
    first = devices * np.arange(buildings).repeat(links) + rng.integers(0, devices, buildings * links)
    second = devices * ((np.arange(buildings).repeat(links) + 1) % buildings) + rng.integers(0, devices, len(first))
    pairs = np.unique(np.sort(np.column_stack([first, second]), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] // devices != pairs[:, 1] // devices]  # one building has no next one
    between = fedfilt.Graph.from_edges(buildings * devices, pairs).adjacency
    return fedfilt.Graph(sp.block_diag(parts, format="csr") + between)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buildings", type=int, default=5)
    parser.add_argument("--devices", type=int, default=40, help="of each building")
    parser.add_argument("--parameters", type=int, default=500, help="of each model")
    parser.add_argument("--mu", type=float, default=1.0)
    given = parser.parse_args()
    graph, rng = street(given.buildings, given.devices), np.random.default_rng(1)
    weights = rng.integers(0, 900, graph.count)  # samples of every device
    signal = rng.standard_normal((graph.count, given.parameters))

    start = time.perf_counter()
    servers, cloud = prepare(graph, [given.devices] * given.buildings, weights, given.mu)
    print(f"{given.buildings} buildings: {graph}; prepared in {time.perf_counter() - start:.2f} s")
    for kind in (np.float64, np.float32):
        models = signal.astype(kind)
        start = time.perf_counter()
        mixed = np.concatenate(mix(servers, cloud, np.split(models, given.buildings)))
        seconds = time.perf_counter() - start
        whole = fedfilt.mix(graph, Tikhonov(given.mu), models.astype(np.float64), weights)
        error = abs(mixed - whole).max() / abs(whole).max()
        print(f"{kind.__name__}: {seconds:.2f} s, at most {error:.1e} off the whole graph's filter")

    border, row = sum(len(server.border) for server in servers), 4 * given.parameters
    once = sum(8 * server.schur.size for server in servers)
    print(f"cloud of border rows: {border * row:,} bytes up and as many down each round; {once:,} bytes once")
    print(f"cloud of all models: {graph.count * row:,} bytes up and as many down each round")


if __name__ == "__main__":
    main()
