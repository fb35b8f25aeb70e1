import numpy as np
import pytest

from fedfilt import Building
from fedfilt.topologies.distance import Distance, least_reach
from helpers import sure


def test_the_papers_building():
    building = Building.generate(devices=20, seed=3)
    assert building.count == 20
    assert len(building.room_names) == 4
    counts = np.bincount(building.rooms)
    assert counts.min() >= 4
    assert counts.max() <= 7
    boxes = sure(building.boxes)[building.rooms]
    lower, upper = boxes[:, 0], boxes[:, 1]
    assert (building.positions >= lower).all()
    assert (building.positions <= upper).all()
    np.testing.assert_array_equal(upper - lower, np.full((20, 3), 10.0))


def test_same_seed_same_building():
    one, two, other = (Building.generate(devices=20, seed=seed).positions for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_counts_follow_the_conditional_distribution():
    # 2 rooms, 1..3 devices each, 4 in all: (1,3), (2,2), (3,1) are equally likely
    first = [np.bincount(Building.generate(2, 4, (1, 3), seed=s).rooms)[0] for s in range(600)]
    np.testing.assert_allclose(np.bincount(first, minlength=4)[1:] / 600, 1 / 3, atol=0.07)


def test_counts_can_be_far_from_the_mean():
    assert Building.generate(rooms=600, devices=2400, seed=0).count == 2400
    assert Building.generate(rooms=200, devices=801, seed=0).count == 801


def test_floors_stack_rooms():
    building = Building.generate(rooms=6, floors=3, size=(4, 5, 2.5), seed=0)
    assert sorted(set(sure(building.boxes)[:, 0, 2].tolist())) == [0.0, 2.5, 5.0]
    corners = {tuple(box[0]) for box in sure(building.boxes)}
    assert len(corners) == 6


def test_graph_of_a_building_knows_rooms_and_positions():
    building = Building.generate(devices=20)
    graph = building.graph(reach=6.0)
    np.testing.assert_array_equal(graph.rooms, building.rooms)
    np.testing.assert_array_equal(graph.positions, building.positions)


def test_from_csv_and_toml(tmp_path):
    (tmp_path / "home.csv").write_text("device,room,x,y,z\ntv,hall,1,2,0.5\nwatch,attic,3,4,6\nphone,hall,0,0,1\n")
    (tmp_path / "home.toml").write_text(
        '[[rooms]]\nname = "hall"\norigin = [0, 0, 0]\nsize = [4, 4, 3]\n'
        '[[rooms]]\nname = "attic"\norigin = [0, 0, 3]\nsize = [4, 4, 3]\n'
        '[[devices]]\nname = "tv"\nroom = "hall"\nposition = [1, 2, 0.5]\n'
        '[[devices]]\nname = "watch"\nroom = "attic"\nposition = [3, 4, 6]\n'
        '[[devices]]\nname = "phone"\nroom = "hall"\nposition = [0, 0, 1]\n'
    )
    (tmp_path / "excel.csv").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "home.csv").read_bytes())
    for name in ("home.csv", "excel.csv", "home.toml"):
        building = Building.from_table(tmp_path / name)
        assert building.names == ("tv", "watch", "phone")
        assert building.room_names == ("hall", "attic")
        assert building.rooms.tolist() == [0, 1, 0]
        assert building.positions.tolist() == [[1, 2, 0.5], [3, 4, 6], [0, 0, 1]]
    assert sure(building.boxes)[1].tolist() == [[0, 0, 3], [4, 4, 6]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "device,room,x,y\ntv,hall,1,2\n", "missing z"),
        ("a.csv", "device,room,x,y,z\n", "at least one device"),
        ("a.csv", "device,room,x,y,z\ntv,hall,1,two,3\n", "line 2: must be three finite numbers"),
        ("a.csv", "device,room,x,y,z\ntv,hall,1,nan,3\n", "three finite numbers"),
        ("a.csv", "device,room,x,y,z\ntv,hall,1,2\n", "three finite numbers"),
        ("a.csv", "device,room,x,y,z\ntv,hall,1,2,3\ntv,hall,1,2,3\n", "'tv' twice"),
        ("a.toml", "[[devices]\n", "not valid TOML"),
        ("a.toml", '[[devices]]\nname = "tv"\n', "devices need name, room and position"),
        ("a.toml", "devices = 3\n", "devices need name"),
        (
            "a.toml",
            '[[rooms]]\nname="a"\norigin=[0,0,0]\nsize=[1,1,1]\n[[devices]]\nname="tv"\nroom="b"\nposition=[0,0,0]\n',
            "in room 'b', allowed: a",
        ),
        ("a.xlsx", "", "must end in .csv or .toml"),
    ],
)
def test_bad_tables(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        Building.from_table(tmp_path / name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rooms": 0}, "rooms must be"),
        ({"rooms": 4, "devices": 15}, "devices must be from 16 to 28"),
        ({"floors": 5}, "floors must be a whole number from 1 to 4"),
        ({"size": (1, 2, 0)}, "size must be a finite number > 0"),
        ({"size": (1, 2)}, "size must be"),
        ({"per_room": (3, 2)}, "per_room"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Building.generate(**options)


@pytest.mark.parametrize("seed", range(5))
def test_by_default_the_reach_is_the_least_that_connects_the_papers_building(seed):
    positions = Building.generate(rooms=4, devices=20, seed=seed).positions
    apart = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    graph = Distance(devices=20)(seed)
    assert graph.components.max() == 0
    longest = max(apart[a, b] for a, b in graph.edges)
    assert Distance(devices=20, reach=longest)(seed).components.max() > 0  # links are between devices nearer than that
    assert 20 <= len(graph.edges) <= 100


def test_devices_at_one_place_and_too_many_devices():
    assert least_reach(np.zeros((3, 3))) > 0
    assert least_reach(np.zeros((1, 3))) > 0
    with pytest.raises(ValueError, match="reach must be given for more than 4000 devices, got 4001"):
        least_reach(np.zeros((4001, 3)))
