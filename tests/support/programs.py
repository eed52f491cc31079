"""Programs of several processes that save a sharded checkpoint, for `processes.py`."""

from __future__ import annotations

# Devices of this process are as many as jax has; those of others are made for a test.
TREE = """
import json
def mesh(*shape):
    return Mesh(np.array(jax.devices()).reshape(shape), ("x", "y")[:len(shape)])

def put(value, sharding):
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

W = np.arange(48 * 24, dtype=np.float32).reshape(48, 24)
B = (np.arange(24) / 7).astype(jnp.bfloat16)

def make(mesh):
    spec = lambda *axes: NamedSharding(mesh, P(*axes))
    return {
        "params": {
            "w": put(W, spec(*mesh.axis_names)),
            "b": put(B, spec()),
            "t": put(W.T, spec("x")),
        },
        "layers": [put(W * k, spec(None, "x")) for k in range(3)],
        "key": jax.random.key(7),
        "host": np.arange(1000.0),
        "count": np.int32(5),
        "step": 3,
        "name": "model",
        "empty": {},
        "none": None,
    }

def check(tree):
    def same(found, expected):
        assert found.dtype == expected.dtype, (found, expected)
        if isinstance(found, np.ndarray):
            return np.testing.assert_array_equal(found, expected)
        for shard in found.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])

    same(tree["params"]["w"], W), same(tree["params"]["b"], B), same(tree["params"]["t"], W.T)
    assert type(tree["layers"]) is list
    for k, layer in enumerate(tree["layers"]):
        same(layer, W * k)
    same(tree["host"], np.arange(1000.0))
    key = jax.random.key_data(tree["key"]).tolist()
    assert key == jax.random.key_data(jax.random.key(7)).tolist()
    rest = {name: tree[name] for name in ("step", "name", "empty", "none", "count")}
    assert rest == {"step": 3, "name": "model", "empty": {}, "none": None, "count": 5}
"""

SAVE = (
    TREE
    + """
path, shape = args[0], json.loads(args[1])
tree = make(mesh(*shape))
background = len(args) > 2
saving = treepack.save(path, tree, metadata={"step": 3}, background=background, sharded=True)
if background:
    saving.result()
check(treepack.load(path, tree))
print("saved")
"""
)
