"""`treepack ls` of the directory of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

import treepack
from commands import call, refused, run
from treepack import checkpoints
from treepack._src.printable import size_text


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    series = treepack.Series("run")
    for step in range(1, 4):
        series.save(step, {"w": np.zeros(1000)}, metrics={"loss": 1 / step})
    series.keep(2)
    Path(series.path(3)).write_bytes(b"")
    treepack.Series("run", sharded=True).save(10, {"w": np.zeros(1000)})
    (tmp_path / "run" / "step_11").mkdir()
    treepack.save("run/step_4", {"w": np.zeros(10)})
    return tmp_path / "run"


def test_the_checkpoints_of_a_run_are_listed(made: Path) -> None:
    title, *rows = run("ls", "run").splitlines()
    assert title.startswith("run: 4 of 6 checkpoints are complete, ")
    assert title.endswith(" (leaves not verified)")
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == [f"step_{step}" for step in (1, 2, 3, 4, 10, 11)]
    assert cells[0][1:3] == ["8.2", "KiB"]
    assert cells[0][5:] == ["UTC", "loss=1"]
    assert cells[1][5:] == ["UTC", "pinned", "loss=0.5"]
    assert "not whole: " in rows[2]
    assert "KiB" not in rows[2]
    assert "UTC" not in rows[3]
    assert "not whole: its save has not ended" in rows[5]


def test_files_of_earlier_steps_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    series = treepack.Series("run", unchanged="link")
    for step in (1, 2):
        series.save(step, {"w": np.zeros(1000), "n": np.full(100, step)})
    _, first, second = run("ls", "run").splitlines()
    assert "added" not in first
    assert " KiB added " in second
    rows = json.loads(call("ls", "run", "--json"))["checkpoints"]
    assert rows[0]["added"] == rows[0]["nbytes"]
    assert rows[1]["added"] < rows[1]["nbytes"] / 2
    (shared,) = Path("run/step_1").glob("*-00000.treepack")
    assert f"linked      {size_text(shared.stat().st_size)} of earlier steps: {shared.name}" in run(
        "info", "run/step_2"
    )
    assert "linked" not in run("info", "run/step_1")
    linked = json.loads(call("info", "run/step_2", "--json"))["linked"]
    assert linked == {shared.name: shared.stat().st_size}


def test_programs_get_all_of_it(made: Path) -> None:
    found = json.loads(call("ls", "run", "--json"))
    assert found["run"] == "run"
    rows = {row["step"]: row for row in found["checkpoints"]}
    assert rows[1] == {
        **{"step": 1, "name": "step_1", "nbytes": Path("run/step_1").stat().st_size},
        **{
            "added": rows[1]["nbytes"],
            "saved": rows[1]["saved"],
            "metrics": {"loss": 1.0},
            "pinned": False,
            "damage": None,
        },
    }
    assert rows[10]["nbytes"] < sum(it.stat().st_size for it in Path("run/step_10").iterdir())
    assert rows[2]["pinned"]
    assert "(0 bytes)" in rows[3]["damage"]


def test_series_of_flax_and_managers_of_orbax_are_listed(folder: Path) -> None:
    for step in (9, 10):
        checkpoints.save_checkpoint("series", {"w": np.zeros(9)}, step, keep=2)
    with ocp.CheckpointManager(folder / "manager") as manager:
        for step in (9, 10):
            manager.save(step, args=ocp.args.StandardSave({"w": np.zeros(9)}))
    for name, begin in (("series", "checkpoint_"), ("manager", "")):
        title, *rows = call("ls", name).splitlines()
        assert title.startswith(f"{name}: 2 of 2 ")
        assert [row.split()[0] for row in rows] == [f"{begin}9", f"{begin}10"]
    assert "such as manager/10" in refused("info", "manager")
    assert "1 leaf" in call("ls", "manager/10/default")  # it has a directory for each number
    Path("dates/2024").mkdir(parents=True)
    assert "not a checkpoint" in refused("ls", "dates")


def test_a_run_has_a_prefix(made: Path) -> None:
    treepack.Series("run", prefix="ema_").save(5, {"w": 1})
    assert "1 of 1 checkpoints" in call("ls", "run", "--prefix", "ema_")
    assert "1 leaf" in call("ls", "run/step_1")
    assert "1 leaf" in call("ls", "run/step_10")
    assert "no manifest" in refused("ls", "run", "--prefix", "other_")
