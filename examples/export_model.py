"""Exports a model, saves it with its parameters, and calls both in another process.

The second process imports only `model_types.py`: neither the code of the model, nor the libraries
that trained it. Run it with `make example NAME=export_model`.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parent))
from model_types import Activation, Dense, Prediction

import treepack

Params = dict[str, list[Dense]]

CALL = """
import sys
import numpy as np
import model_types, treepack

exported, params = treepack.load_exported(sys.argv[1])
images = np.load(sys.argv[2])
prediction = exported.call(params, images)
first = params["layers"][0]
print(f"  its parameters have layers of type {type(first).__name__}, with {first.activation}")
print(f"  a {type(prediction).__name__} of {len(prediction.label)} labels")
np.save(sys.argv[3], np.stack(prediction))
"""


def init(sizes: list[int], key: jax.Array) -> Params:
    """Returns random parameters of layers of these sizes."""
    keys = jax.random.split(key, len(sizes))
    layers = []
    for index, (before, after) in enumerate(itertools.pairwise(sizes)):
        kernel = jax.random.normal(keys[index], (before, after)) * np.sqrt(2 / before)
        last = index == len(sizes) - 2
        layers.append(Dense(kernel, jnp.zeros(after), None if last else Activation.RELU))
    return {"layers": layers}


def logits(params: Params, images: jax.Array) -> jax.Array:
    """Returns the logits of images, float32[batch, classes]."""
    x = images
    for layer in params["layers"]:
        x = x @ layer.kernel + layer.bias
        if layer.activation is not None:
            x = getattr(jax.nn, layer.activation.value)(x)
    return x


def predict(params: Params, images: jax.Array) -> Prediction:
    """Returns the most likely class of each image."""
    probabilities = jax.nn.softmax(logits(params, images))
    label = probabilities.argmax(-1)
    return Prediction(label.astype(jnp.int32), probabilities.max(-1))


def train(params: Params, images: jax.Array, labels: jax.Array, steps: int) -> Params:
    """Returns parameters after a number of steps of gradient descent."""

    def loss(params: Params) -> jax.Array:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(params, images)), labels[:, None], 1)
        return -chosen.mean()

    @jax.jit
    def step(params: Params) -> Params:
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, jax.grad(loss)(params))

    for _ in range(steps):
        params = step(params)
    return params


def main() -> None:
    """Trains, exports and saves a model, and calls it in another process."""
    images, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels)
    train_images, test_images, test_labels = images[:1500], images[1500:], labels[1500:]
    params = train(init([64, 64, 10], jax.random.key(0)), train_images, labels[:1500], 200)
    expected = predict(params, test_images)
    print(
        f"trained on 1500 digits: {(expected.label == test_labels).mean():.1%} of 297 others right"
    )

    # Any batch size: the dimension is symbolic.
    batch = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 64"), jnp.float32)
    exported = jax.export.export(jax.jit(predict))(params, batch)
    with tempfile.TemporaryDirectory() as folder:
        model, inputs, outputs = (Path(folder) / name for name in ("model", "x.npy", "y.npy"))
        treepack.save_exported(model, exported, params, metadata={"data": "digits", "steps": 200})
        found = treepack.abstract(model.read_bytes())["params"]["layers"][0]
        print(f"saved {model.stat().st_size} bytes; the first layer has {found.kernel}")
        np.save(inputs, test_images)
        print("another process, with the types alone:", flush=True)
        command = [sys.executable, "-c", CALL, str(model), str(inputs), str(outputs)]
        subprocess.run(command, check=True, cwd=Path(__file__).parent)
        same = np.array_equal(np.load(outputs), np.stack(expected))
    print(f"its predictions are {'the same' if same else 'DIFFERENT'}")
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
