"""Numbers of runs in other formats, read back with the programs that people use."""

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedfilt import _parts
from fedfilt.export import _writing
from fedfilt.export._writing import export
from fedfilt.export.latex import escaped
from fedfilt.runs.compare import compare
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.records import find_runs
from helpers import SMALL, call, finish

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload``")  # MLflow, of SQLAlchemy 2.1

RUNS = [(rule, seed) for rule in ("fedavg", "mu=10") for seed in (0, 1)]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two rules with two seeds, tested as mixed and as trained."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    config = from_table({**SMALL, "rounds": 3, "evaluation": {"every": 1, "trained": True}})
    for _ in compare(config, ["fedavg", "mu=10"], [0, 1], folder):
        pass
    return folder


def lines(comparison: Path, rule: str, seed: int) -> list[dict[str, Any]]:
    """metrics.jsonl of a run, read without fedfilt's readers."""
    text = (comparison / rule / f"seed-{seed}" / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def mlflow_client(base: Path) -> Any:
    """MLflow's own reader; it is loaded after an export has switched its telemetry off."""
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{base}")


def read_csv(path: Path) -> Any:
    exact = {} if int(pd.__version__.partition(".")[0]) > 2 else {"float_precision": "round_trip"}
    return pd.read_csv(path, keep_default_na=False, **exact)


def numbers_in(value: Any, key: str = "") -> int:
    """How many numbers there are in a line, other than in lists of devices and confusion matrices."""
    if key in ("round", "late", "confusion"):
        return 0
    if isinstance(value, dict):
        return sum(numbers_in(inner, name) for name, inner in value.items())
    return sum(map(numbers_in, value)) if isinstance(value, list) else isinstance(value, int | float)


def test_pandas_reads_the_numbers_of_metrics_jsonl(comparison, tmp_path):
    assert export("csv", [comparison], str(tmp_path / "all.csv")) == [str(tmp_path / "all.csv")]
    frame = read_csv(tmp_path / "all.csv")
    assert set(zip(frame["rule"], frame["seed"], strict=True)) == set(RUNS)
    for (rule, seed, round), rows in frame.groupby(["rule", "seed", "round"]):
        assert len(rows) == numbers_in(lines(comparison, rule, seed)[round - 1])
    table = frame.set_index(["rule", "seed", "round", "stage", "test", "device", "score"])["value"].sort_index()
    assert table.index.is_unique
    for rule, seed in RUNS:
        for line in lines(comparison, rule, seed):
            here = table.loc[rule, seed, line["round"]]
            assert here["", "", "mean", "loss"] == line["loss"]
            assert here["", "", "all", "bytes"] == line["time"]["bytes"]
            for stage in ("mixed", "trained"):
                for test, found in line[stage].items():
                    for which in ("mean", "std", "worst"):
                        assert here[stage, test, which, "accuracy"] == found[which]
                    assert [here[stage, test, str(d), "accuracy"] for d in range(20)] == found["devices"]
                    assert here[stage, test, "all", "I_4"] == found["I_4"]
            for score in ("compute_seconds", "bytes", "epochs"):
                assert [here["", "", str(d), score] for d in range(20)] == line["time"]["devices"][score]


def test_parquet_holds_the_same_table(comparison, tmp_path):
    for form in ("csv", "parquet"):
        export(form, [comparison], str(tmp_path / form), devices="3,7")
    one, other = read_csv(tmp_path / "csv"), pd.read_parquet(tmp_path / "parquet")
    pd.testing.assert_frame_equal(one.astype(other.dtypes), other)
    assert set(other["device"]) == {"all", "mean", "std", "worst", "3", "7"}


def test_tensorboard_reads_the_numbers_of_metrics_jsonl(comparison):
    [folder] = export("tensorboard", [comparison], devices="5")
    assert folder == str(comparison / "tensorboard")
    for rule, seed in RUNS:
        read = EventAccumulator(f"{folder}/{rule}-seed-{seed}", size_guidance={"scalars": 0})
        read.Reload()
        written = lines(comparison, rule, seed)
        wanted = {
            "local/accuracy/mean": [line["mixed"]["local"]["mean"] for line in written],
            "trained/global/accuracy/worst": [line["trained"]["global"]["worst"] for line in written],
            "global/accuracy/device-005": [line["mixed"]["global"]["devices"][5] for line in written],
            "round/loss/mean": [line["loss"] for line in written],
            "round/joules": [line["time"]["joules"] for line in written],
        }
        for tag, values in wanted.items():
            scalars = read.Scalars(tag)
            assert [scalar.step for scalar in scalars] == [1, 2, 3]
            assert [scalar.value for scalar in scalars] == [float(np.float32(value)) for value in values], tag
        times = [scalar.wall_time for scalar in read.Scalars("round/seconds")]
        assert np.allclose(np.diff(times), [line["seconds"] for line in written[1:]], atol=1e-5)
        assert not [tag for tag in read.Tags()["scalars"] if "device-006" in tag]
    with pytest.raises(ValueError, match=r"events.out.tfevents.fedfilt exists already; --force"):
        export("tensorboard", [comparison])
    export("tensorboard", [comparison], force=True)


def test_mlflow_reads_the_numbers_of_metrics_jsonl(comparison, tmp_path):
    base = tmp_path / "mlflow.db"
    [said] = export("mlflow", [comparison], str(base))
    assert said == f"4 runs in the experiment 'small' of sqlite:///{base}"
    client = mlflow_client(base)
    experiment = client.get_experiment_by_name("small").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert sorted(runs) == [f"{rule} seed {seed}" for rule, seed in RUNS]
    for rule, seed in RUNS:
        run, written = runs[f"{rule} seed {seed}"], lines(comparison, rule, seed)
        for key, values in {
            "global/accuracy/std": [line["mixed"]["global"]["std"] for line in written],
            "round/loss/mean": [line["loss"] for line in written],
            "round/bytes": [line["time"]["bytes"] for line in written],
        }.items():
            history = client.get_metric_history(run.info.run_id, key)
            assert [(metric.step, metric.value) for metric in history] == list(enumerate(values, start=1))
        assert run.data.params["seed"] == str(seed)
        assert run.data.params["aggregator.name"] == {"fedavg": "fedavg", "mu=10": "gfedfilt"}[rule]
        assert run.data.params["training.learning_rate"] == "0.1"
        place = comparison / rule / f"seed-{seed}"
        assert (
            run.data.tags["fedfilt.models_sha256"] == json.loads((place / "result.json").read_text())["models_sha256"]
        )
        assert run.info.status == "FINISHED"


def test_mlflow_holds_a_run_once(tmp_path):
    base, folder = tmp_path / "mlflow.db", tmp_path / "run"
    finish(folder, rounds=2)
    assert "1 runs" in export("mlflow", [folder], str(base))[0]
    (tmp_path / "elsewhere").mkdir()
    moved = folder.rename(tmp_path / "elsewhere" / "run")
    assert "0 runs" in export("mlflow", [moved], str(base))[0]
    client = mlflow_client(base)
    [first] = client.search_runs(["1"])
    client.delete_tag(first.info.run_id, "fedfilt.holds")  # as if the export had been killed
    assert "1 runs" in export("mlflow", [moved], str(base))[0]
    with (moved / "metrics.jsonl").open("a") as file:  # a run that has gone on
        file.write(json.dumps({**read_lines(moved)[-1], "round": 3}) + "\n")
    assert "1 runs" in export("mlflow", [moved], str(base))[0]
    [last] = client.search_runs(["1"])
    assert [metric.step for metric in client.get_metric_history(last.info.run_id, "round/samples")] == [1, 2, 3]


def test_latex_has_mean_and_spread_over_seeds(comparison, tmp_path):
    export("latex", [comparison], str(tmp_path / "table.tex"))
    text = (tmp_path / "table.tex").read_text()
    for rule in ("fedavg", "mu=10"):
        last = [lines(comparison, rule, seed)[-1]["mixed"] for seed in (0, 1)]
        cells = [rule, "3"]
        for test in ("local", "global"):
            for which in ("mean", "worst"):
                one, other = (100 * found[test][which] for found in last)
                cells.append(f"${(one + other) / 2:.1f} \\pm {abs(one - other) / math.sqrt(2):.1f}$")
        assert " & ".join(cells) + " \\\\ % 2 seeds" in text
    assert text.count("{") == text.count("}")
    assert r"rule & round & local accuracy (\%) & worst device (\%) & global" in text


def test_other_scores_than_accuracy(tmp_path):
    finish(tmp_path / "run", rounds=2)
    for line in read_lines(tmp_path / "run"):
        found = {"mean": 2.5, "std": 0.5, "worst": 3.0, "metric": "rmse", "lower": True, "devices": [2.0, 3.0]}
        found |= {"scores": {"r2": 0.25, "own score": 7.0}, "loss": 1.5, "worst_device": 1}
        line["mixed"] = {"local": found}
        with (tmp_path / "run" / "metrics.jsonl").open("w" if line["round"] == 1 else "a") as file:
            file.write(json.dumps(line) + "\n")
    export("csv", [tmp_path / "run"])
    frame = read_csv(tmp_path / "run" / "metrics.csv")
    tested = frame[(frame["test"] == "local") & (frame["round"] == 2)]
    assert dict(zip(zip(tested["device"], tested["score"], strict=True), tested["value"], strict=True)) == {
        ("mean", "rmse"): 2.5,
        ("std", "rmse"): 0.5,
        ("worst", "rmse"): 3.0,
        ("0", "rmse"): 2.0,
        ("1", "rmse"): 3.0,
        ("all", "r2"): 0.25,
        ("all", "own score"): 7.0,
        ("mean", "loss"): 1.5,
        ("all", "worst_device"): 1.0,
    }
    export("latex", [tmp_path / "run"])
    assert "mu=1 & 2 & $2.5$ & $3$ " in (tmp_path / "run" / "summary.tex").read_text()


def test_names_of_strangers_do_nothing(tmp_path):
    folder = tmp_path / "run"
    finish(folder, rounds=1, evaluation={"every": 1})
    config = (folder / "config.toml").read_text()
    evil = '=HYPERLINK("x")\\\\input{/etc/passwd}%../../$'
    (folder / "config.toml").write_text(config.replace('name = "gfedfilt"', f"name = '{evil}'", 1))
    [run] = find_runs([folder])
    assert run.rule == evil
    for form in ("csv", "latex", "tensorboard"):
        export(form, [folder])
    frame = read_csv(folder / "metrics.csv")
    assert set(frame["rule"]) == {f"'{evil}"}
    text = (folder / "summary.tex").read_text()
    assert escaped(evil) in text
    assert r"\input" not in text.replace(r"\textbackslash{}input", "")
    written = list(tmp_path.rglob("*tfevents*"))
    assert [path.parent.parent for path in written] == [folder / "tensorboard"]


def test_odd_lines_of_strangers_are_passed_over(tmp_path):
    folder = tmp_path / "run"
    finish(folder, rounds=1, evaluation={"every": 1})
    [line] = read_lines(folder)
    line |= {"huge": 10**400, "text": "x", "yes": True, "l" * 70: 1.0, "list": [1, 2], "table": {"a": 1}, "fine": 4}
    line["time"]["devices"] |= {"odd": "text", "bandwidth_hz": [math.nan, None, 3.0, {}]}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    export("csv", [folder])
    frame = read_csv(folder / "metrics.csv")
    assert set(frame["score"]) & {"huge", "text", "yes", "list", "table", "odd", "l" * 70} == set()
    assert frame[frame["score"] == "fine"]["value"].tolist() == [4]
    assert frame[frame["score"] == "bandwidth_hz"]["device"].tolist() == ["2"]


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command(comparison, tmp_path):
    done = call("export", comparison / "fedavg", "--csv", "--latex")
    assert done.returncode == 0, done.stderr
    where = comparison / "fedavg"
    assert done.stdout.splitlines() == [f"csv: {where / 'metrics.csv'}", f"latex: {where / 'summary.tex'}"]
    before = (where / "metrics.csv").read_bytes()
    for words, said in {
        (where, "--csv"): f"{where / 'metrics.csv'} exists already; --force replaces it",
        (where,): "say which format: --c, --csv, --latex, --mlflow, --onnx, --parquet, --tensorboard",
        (where, "--csv", "--latex", "--out", "x"): "--out takes one format, got --csv, --latex",
        (tmp_path / "nothing", "--csv"): f"there is no run folder {tmp_path / 'nothing'}",
        (tmp_path, "--csv"): f"nothing to export: {tmp_path} holds no run yet",
        (where, "--csv", "--out", tmp_path): f"{tmp_path} is a folder",
        (where, "--csv", "--device", "kitchen"): "device must be device numbers separated by commas, all or none",
    }.items():
        done = call("export", *words)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(f"error: {said}"), done.stderr
    assert (where / "metrics.csv").read_bytes() == before
    assert call("export", where, "--csv", "--force").returncode == 0
    assert (where / "metrics.csv").read_bytes() == before


def test_what_is_missing_is_named(comparison, monkeypatch):
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="tensorboard.compat")

    monkeypatch.setattr(_writing, "import_module", missing)
    with pytest.raises(ValueError, match=r"--tensorboard needs tensorboard: pip install 'fedfilt\[tensorboard\]'"):
        export("tensorboard", [comparison])


def test_no_link_in_the_folder_of_a_stranger_is_followed(tmp_path):
    folder = tmp_path / "run"
    finish(folder, rounds=1)
    (tmp_path / "target").mkdir()
    (folder / "metrics.csv").symlink_to(tmp_path / "target" / "file")
    (folder / "tensorboard").symlink_to(tmp_path / "target")
    (folder / "onnx").symlink_to(tmp_path / "target")
    for form in ("csv", "tensorboard", "onnx"):
        with pytest.raises(ValueError, match="is a link or behind one"):
            export(form, [folder], force=True)
    assert not list((tmp_path / "target").iterdir())


def test_nothing_is_left_half_written(comparison, tmp_path, monkeypatch):
    def broken(run: Any, devices: Any) -> Any:
        yield from list(import_module("fedfilt.runs.numbers").numbers(run, devices))[:5]
        raise OSError("no space left on device")

    monkeypatch.setattr("fedfilt.export.csv.numbers", broken)
    with pytest.raises(OSError, match="no space left"):
        export("csv", [comparison], str(tmp_path / "all.csv"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", _parts.names("export"))
def test_every_format_is_complete(form):
    module = import_module(f"fedfilt.export.{form}")
    assert sure_line(module.__doc__)
    assert callable(getattr(module, "content", None) or module.write)
    assert (module.OUT, module.SUFFIX) if hasattr(module, "content") else isinstance(module.DEVICES, bool)


def sure_line(text: str | None) -> bool:
    """Whether a help is one sentence on one line."""
    return bool(text) and len(text.splitlines()) == 1 and text.endswith(".")
