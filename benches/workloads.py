"""The trees that are measured."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

Tree = dict[str, Any]


def layers(nbytes: int, *, count: int = 12, seed: int = 0) -> Tree:
    """Returns a GPT-2-like float32 tree of about `nbytes` bytes, 12 arrays a layer."""
    rng = np.random.default_rng(seed)
    # A layer of width d has 12 d² + 13 d elements.
    width = int((nbytes / 4 / count / 12) ** 0.5) // 8 * 8

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    def layer() -> Tree:
        d = width
        return {
            "ln_1": {"scale": array(d), "bias": array(d)},
            "attn": {
                "c_attn": {"kernel": array(d, 3 * d), "bias": array(3 * d)},
                "c_proj": {"kernel": array(d, d), "bias": array(d)},
            },
            "ln_2": {"scale": array(d), "bias": array(d)},
            "mlp": {
                "c_fc": {"kernel": array(d, 4 * d), "bias": array(4 * d)},
                "c_proj": {"kernel": array(4 * d, d), "bias": array(d)},
            },
        }

    return {"transformer": {f"h_{i}": layer() for i in range(count)}}


def gpt2() -> Tree:
    """Returns the parameters of a GPT-2 of 124 million float32, half a gigabyte."""
    rng = np.random.default_rng(0)
    tree = layers(85_054_464 * 4)  # its twelve layers, which are 768 wide
    tree["wte"] = {"embedding": rng.standard_normal((50257, 768), dtype=np.float32)}
    tree["wpe"] = {"embedding": rng.standard_normal((1024, 768), dtype=np.float32)}
    return tree


def many_small() -> Tree:
    """Returns 20,000 arrays of 64 float32, four levels deep."""
    values = iter(np.random.default_rng(0).standard_normal((20_000, 64), dtype=np.float32))
    return {
        f"a{i}": {
            f"b{j}": {f"c{k}": {f"d{m}": next(values) for m in range(10)} for k in range(10)}
            for j in range(10)
        }
        for i in range(20)
    }


def in_tuples(tree: Any) -> Any:
    """Returns a tree of dicts with the innermost of them as tuples."""
    if all(isinstance(child, dict) for child in tree.values()):
        return {key: in_tuples(child) for key, child in tree.items()}
    return tuple(tree.values())


def policy() -> Tree:
    """Returns 12 arrays of 1.2 MB together, the size of a small policy network."""
    rng = np.random.default_rng(0)
    return {
        f"layer_{i}": {
            "kernel": rng.standard_normal((224, 224), dtype=np.float32),
            "bias": rng.standard_normal(224, dtype=np.float32),
        }
        for i in range(6)
    }


def as_jax_bfloat16(tree: Any) -> Any:
    """Returns a float32 tree as jax arrays of bfloat16 of the same total size."""
    if isinstance(tree, dict):
        return {key: as_jax_bfloat16(value) for key, value in tree.items()}
    return jnp.concatenate([jnp.asarray(tree, jnp.bfloat16)] * 2).block_until_ready()


def train_state(nbytes: int) -> Any:
    """Returns a flax TrainState with adamw of about `nbytes` bytes, of NumPy arrays."""
    import jax
    import optax
    from flax.training.train_state import TrainState

    params = layers(nbytes // 3)
    state = TrainState.create(apply_fn=None, params=params, tx=optax.adamw(1e-3))
    return jax.tree.map(np.asarray, state)


def arrays(tree: Any) -> list[Any]:
    """Returns the arrays in nested dicts."""
    if isinstance(tree, dict):
        return [array for value in tree.values() for array in arrays(value)]
    return [tree]


def nbytes(tree: Any) -> int:
    """Returns the bytes of all arrays in nested dicts."""
    return sum(array.nbytes for array in arrays(tree))
