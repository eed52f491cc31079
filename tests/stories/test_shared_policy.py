"""A learner writes a policy into shared memory, actors view it."""

from multiprocessing import shared_memory

import jax
import jax.numpy as jnp
import numpy as np

import treepack
from treepack.serialization import msgpack_restore


def test_actors_view_what_the_learner_packs() -> None:
    policy = {"dense": {"b": np.arange(64.0), "w": jnp.ones((64, 64))}, "step": 3}
    memory = shared_memory.SharedMemory(create=True, size=treepack.packed_size(policy))
    try:
        size = treepack.pack_into(policy, memory.buf)
        actor = shared_memory.SharedMemory(memory.name)
        view = msgpack_restore(actor.buf[:size], copy=False)
        np.testing.assert_array_equal(view["dense"]["w"], policy["dense"]["w"])
        assert not view["dense"]["w"].flags.owndata

        policy = jax.tree.map(lambda x: x + 1, policy)
        assert treepack.pack_into(policy, memory.buf) == size
        assert view["dense"]["w"][0, 0] == 2  # without another read
        del view
        actor.close()
    finally:
        memory.close()
        memory.unlink()


def test_types_come_back_from_shared_memory() -> None:
    tree = {"pair": (jnp.ones(3), None), 1: np.arange(3)}
    memory = bytearray(treepack.packed_size(tree, described=True))
    size = treepack.pack_into(tree, memory, described=True)
    loaded = treepack.loads(memory[:size], copy=False)
    assert type(loaded["pair"]) is tuple
    assert loaded[1].tolist() == [0, 1, 2]
