"""Arrays of a program that runs in several processes, each with devices of its own."""

from __future__ import annotations

import pytest

import processes

PROGRAM = """
from flax import serialization as flax

mesh = Mesh(np.array(jax.devices()), "x")
assert len(jax.devices()) == 2 * len(jax.local_devices())
value = np.arange(8.0, dtype=np.float32)

def array(spec):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

replicated, sharded = array(P()), array(P("x"))
assert not replicated.is_fully_addressable
assert treepack.serialization.to_bytes({"w": replicated}, align=1) == flax.to_bytes({"w": value})
assert treepack.serialization.validate_serializable({"w": replicated}) == (True, [])
for save in (treepack.serialization.to_bytes, treepack.serialization.msgpack_serialize):
    try:
        save({"a": {"w": sharded}})
    except ValueError as error:
        assert "a/w" in str(error) and "other processes" in str(error), error
    else:
        raise AssertionError("no error")
valid, issues = treepack.serialization.validate_serializable({"a": {"w": sharded}})
assert not valid and issues[0].startswith("a/w: ") and "other processes" in issues[0], issues
print("done")
"""


@pytest.mark.campaign
def test_replicated_arrays_are_saved_and_sharded_ones_refused() -> None:
    assert "done" in processes.run(PROGRAM, 2)
