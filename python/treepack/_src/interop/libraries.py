from __future__ import annotations

_PACKAGES = """
    blackjax brainstate brax chex clu cola coordax diffrax distrax distreqx dynamax e3nn_jax eformer
    equinox evosax flashbax flax flowjax gpjax gymnax haiku haliax interpax jax jax_dataclasses
    jax_md jaxley jaxlie jaxlib jaxopt jraph jumanji kfac_jax levanter lineax matfree mctx mujoco
    netket numpyro objax optax optimistix orbax ott paramax penzai pgx quax quaxed qwix rlax scico
    simple_pytree tensorflow_probability tinygp torax tree_math treescope unxt zodiax
"""

_LIBRARIES = frozenset(_PACKAGES.split())


def library_at(path: str) -> str | None:
    library = path.partition(".")[0]
    return library if library in _LIBRARIES else None


def library_of_type(ty: type) -> str | None:
    return library_at(str(ty.__module__))


def is_marker(value: object) -> bool:
    """Returns whether a value is a library's object without data, such as diffrax's.

    Objects of compiled types are larger.
    """
    ty = type(value)
    return (
        ty.__basicsize__ == PLAIN_BYTES
        and library_of_type(ty) not in (None, "jax", "jaxlib")
        and getattr(value, "__dict__", None) == {}
    )


class _Plain:
    pass


PLAIN_BYTES = _Plain.__basicsize__
"""The size of an object of a plain class, without its attributes."""
