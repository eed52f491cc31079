"""What the documentation says of flax, where no other test compares both."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import config, serialization, struct
from flax.training import checkpoints as flax_checkpoints

from treepack import checkpoints


@pytest.fixture
def without_orbax() -> Iterator[None]:
    """Lets flax save by itself."""
    with config.temp_flip_flag("use_orbax_checkpointing", False):
        yield


@pytest.mark.parametrize("prefix", ["run-", "run.", "x-1", "v.5"])
def test_flax_reads_a_sign_or_point_of_the_prefix_as_a_part_of_the_step(
    tmp_path: Path, prefix: str, without_orbax: None
) -> None:
    for module, newest in ((flax_checkpoints, 9), (checkpoints, 10)):
        folder = tmp_path / module.__name__
        for step in (10, 9) if module is flax_checkpoints else (9, 10):
            module.save_checkpoint(folder, {"a": 1}, step, prefix=prefix, keep=9)
        assert Path(module.latest_checkpoint(folder, prefix)).name == f"{prefix}{newest}"


@pytest.mark.parametrize("prefix", ["run1", "run_", "e", "run+"])
def test_other_prefixes_are_no_trouble_to_flax(
    tmp_path: Path, prefix: str, without_orbax: None
) -> None:
    for step in (9, 10):
        flax_checkpoints.save_checkpoint(tmp_path, {"a": 1}, step, prefix=prefix, keep=9)
    assert Path(flax_checkpoints.latest_checkpoint(tmp_path, prefix)).name == f"{prefix}10"


@pytest.mark.skipif(find_spec("tensorflow") is not None, reason="it handles URLs for flax")
def test_flax_takes_a_url_for_a_local_directory(
    tmp_path: Path, without_orbax: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flax_checkpoints.save_checkpoint("gs://bucket/run", {"a": 1}, 1)
    assert Path("gs:/bucket/run/checkpoint_1").is_file()


@struct.dataclass
class Pair:
    """A struct of flax."""

    x: Any
    y: Any


def test_flax_names_the_first_missing_field_or_the_keys_of_a_node() -> None:
    with pytest.raises(ValueError, match=r"Missing field x"):
        serialization.from_state_dict(Pair(1, 2), {})
    with pytest.raises(ValueError, match=r"'b', 'c'|'c', 'b'"):
        serialization.from_state_dict({"a": {"b": 1, "c": 1}, "d": {"e": 1}}, {"a": {}, "d": {}})


def test_flax_takes_any_plain_value() -> None:
    data = serialization.to_bytes({"s": "adam"})
    assert serialization.from_bytes({"s": 3}, data) == {"s": "adam"}


def test_flax_does_not_chunk_arrays_in_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 100)
    data = serialization.msgpack_serialize({"a": [np.ones(100)]})
    assert b"chunk" not in data
    assert serialization.msgpack_restore(data)["a"][0].shape == (100,)
