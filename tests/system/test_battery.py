"""The battery of this machine, as Linux tells it in files."""

from fedfilt.system.battery import battery


def supply(folder, name, **files):
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / file).write_text(f"{text}\n")


def test_the_fullest_battery_of_the_machine_counts(tmp_path):
    assert battery(tmp_path / "missing") is None
    supply(tmp_path, "AC", type="Mains", online=1)
    assert battery(tmp_path) is None
    supply(tmp_path, "mouse", type="Battery", scope="Device", capacity=99)
    supply(tmp_path, "broken", type="Battery", capacity="?")
    supply(tmp_path, "odd", type="Battery")
    assert battery(tmp_path) is None
    supply(tmp_path, "BAT0", type="Battery", capacity=42)
    supply(tmp_path, "BAT1", type="Battery", scope="System", capacity=57)
    assert battery(tmp_path) == 0.57
    supply(tmp_path, "BAT2", type="Battery", capacity=250)
    assert battery(tmp_path) == 1.0
