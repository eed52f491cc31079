"""Hostile files of safetensors."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np


def packed(header: Any, body: bytes, length: int | None = None) -> bytes:
    """The bytes of a file of safetensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


# Dtypes of packed elements, and the bytes of an element.
PACKED = [("F4", 0.5), ("F6_E2M3", 0.75), ("F6_E3M2", 0.75)]


def mutated(random: random.Random, known: str = "abcd") -> bytes:
    """A file of safetensors with some things wrong, or none; its arrays have `known` names."""
    header: dict[str, Any] = {"__metadata__": {"k": "v"}} if random.random() < 0.3 else {}
    body = 0
    for name in random.sample(known, random.randrange(4)):
        dtype, size = random.choice([("F32", 4), ("BF16", 2), ("BOOL", 1), *PACKED])
        shape = [random.randrange(4) for _ in range(random.randrange(3))]
        stop = body + int(size * int(np.prod(shape)))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [body, stop]}
        body = stop
    names = random.sample(list(header), len(header))
    header = {name: header[name] for name in names}
    for _ in range(random.randrange(3)):
        entry: Any = header.get(random.choice(known), {})
        if "shape" not in entry:
            continue
        number = random.choice([-1, 0, 1, 2, 4, 8, 2**31, 2**63, 2**64 - 1, 2**64, 1.0, None, "1"])
        which = random.choice(["data_offsets", "data_offsets", "shape", "dtype", "more", "gone"])
        if which == "data_offsets":
            entry[which][random.randrange(2)] = number
        elif which == "shape":
            entry[which].insert(0, number)
        elif which == "dtype":
            entry[which] = random.choice(
                ["F16", "U8", "C64", "F8_E8M0", "F8_E4M3FNUZ", "F4", "F6_E3M2", "f32", "", None, 1]
            )
        elif which == "more":
            entry[random.choice(["x", "Shape"])] = number
        else:
            del entry[random.choice(["dtype", "shape", "data_offsets"])]
            break
    text = bytearray(json.dumps(header).encode() + b" " * random.randrange(3))
    if random.random() < 0.3 and text:
        text[random.randrange(len(text))] = random.choice(b'0123456789-.eE{}[]",:ab \\\xff\0')
    length, wrong = (
        len(text) + random.choice([0] * 20 + [-1, 1]),
        random.choice([0] * 20 + [-1, 1]),
    )
    return packed(bytes(text), random.randbytes(max(0, body + wrong)), length)


def repository(random: random.Random) -> dict[str, bytes]:
    """The files of a directory of safetensors with some things wrong, or none."""
    names = [f"model-{at + 1:05}-of-00002.safetensors" for at in range(2)]
    known = random.choice([["abcd", "efgh"]] * 4 + [["abcd", "abcd"]])
    files = {name: mutated(random, keys) for name, keys in zip(names, known, strict=True)}
    if random.random() < 0.05:
        del files[names[0]]
    if random.random() < 0.3:
        return files
    weight_map: Any = {name: random.choice(names) for name in random.sample("abcd", 3)}
    kind = random.choice(["right", "right", "as it is", "name", "file", "other"])
    if kind == "right":
        weight_map = {}
        for file, data in files.items():
            for name in "abcdefgh":
                if f'"{name}":'.encode() in data:
                    weight_map[name] = file
    elif kind == "name":
        weight_map[random.choice(["", "a.b", ".", "\ud800", "__metadata__", "a" * 300])] = names[0]
    elif kind == "file":
        weight_map["a"] = random.choice(
            ["../x.safetensors", "/dev/zero", "", ".", "\0", "\ud800", 1]
        )
    elif kind == "other":
        weight_map = random.choice([None, [], "a", {"a": None}, {}, {"a": names}])
    index = bytearray(json.dumps({"metadata": {}, "weight_map": weight_map}).encode())
    if random.random() < 0.2:
        index[random.randrange(len(index))] = random.choice(b'0{}[]",:a \\\xff\0')
    return {**files, "model.safetensors.index.json": bytes(index)}
