"""A state sharded over eight devices is loaded under other meshes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np, treepack
from jax.sharding import NamedSharding, PartitionSpec as P

folder = sys.argv[1]
assert jax.device_count() == 8
mesh = jax.make_mesh((4, 2), ("data", "model"))
value = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
state = {
    "kernel": jax.device_put(value, NamedSharding(mesh, P("data", "model"))),
    "bias": jax.device_put(value[0], NamedSharding(mesh, P("model"))),
    "step": 3,
}
treepack.save(f"{folder}/file.treepack", state)
treepack.save(f"{folder}/directory", state, sharded=True)
other = jax.make_mesh((2, 4), ("data", "model"))
new = {
    "kernel": NamedSharding(other, P("model", "data")),
    "bias": NamedSharding(other, P(("data", "model"))),
    "step": None,
}
template = {
    name: jax.ShapeDtypeStruct(state[name].shape, state[name].dtype, sharding=new[name])
    for name in ("kernel", "bias")
} | {"step": 0}
for path in (f"{folder}/file.treepack", f"{folder}/directory"):
    for loaded in (
        treepack.load(path, template),
        treepack.load(path, jax.eval_shape(lambda: state), sharding=new),
        treepack.load(path, sharding=lambda path, leaf: new[path]),
    ):
        np.testing.assert_array_equal(loaded["kernel"], value)
        for name in ("kernel", "bias"):
            assert loaded[name].sharding == new[name], (path, name, loaded[name].sharding)
        assert loaded["step"] == 3
    one = treepack.load(path, device=jax.devices()[5], select="kernel")["kernel"]
    assert one.devices() == {jax.devices()[5]}
"""


@pytest.mark.campaign
def test_other_meshes(tmp_path: Path) -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, **flags}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
