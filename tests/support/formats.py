"""What savers make of dtypes, for the table of the page on checkpoints.

Each saver writes one array to a real file, or to bytes, and reads it back as its users do,
without a target where it can.
"""

import pathlib
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

_FLOATS = (
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz "
    "float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn"
)
_INTS = "int4 uint4 int2 uint2"


def leaves() -> dict[str, Any]:
    """A leaf of each kind."""
    arrays = {}
    for name in (*_FLOATS.split(), *_INTS.split()):
        if hasattr(jnp, name):
            arrays[name] = jax.device_put(np.ones(3, getattr(jnp, name)))
    return arrays | {
        "PRNG key": jax.random.key(0),
        "NumPy scalar": np.float32(1),
        "weakly typed": jnp.asarray(1.0),
    }


def _orbax(leaf: Any, folder: pathlib.Path) -> Any:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "saved", {"x": leaf})
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder / "saved")["x"]


def _orbax_v1(leaf: Any, folder: pathlib.Path) -> Any:
    from orbax.checkpoint import v1

    v1.save_pytree(folder / "saved", {"x": leaf})
    return v1.load_pytree(folder / "saved")["x"]


def _msgpack(leaf: Any, folder: pathlib.Path) -> Any:
    from flax import serialization

    file = folder / "saved.msgpack"
    file.write_bytes(serialization.msgpack_serialize({"x": leaf}))
    return serialization.msgpack_restore(file.read_bytes())["x"]


def _safetensors(leaf: Any, folder: pathlib.Path) -> Any:
    from safetensors import flax  # pyright: ignore[reportMissingImports]: not in `[test]`

    flax.save_file({"x": leaf}, folder / "saved.safetensors")
    return flax.load_file(folder / "saved.safetensors")["x"]


def _savez(leaf: Any, folder: pathlib.Path) -> Any:
    np.savez(folder / "saved.npz", x=leaf)
    with np.load(folder / "saved.npz") as arrays:
        return arrays["x"]


def _pickle(leaf: Any, folder: pathlib.Path) -> Any:
    (folder / "saved.pickle").write_bytes(pickle.dumps(leaf))
    return pickle.loads((folder / "saved.pickle").read_bytes())


def _export(leaf: Any, folder: pathlib.Path) -> Any:
    from jax import export

    (folder / "saved").write_bytes(export.export(jax.jit(lambda x: x))(leaf).serialize())
    return export.deserialize(bytearray((folder / "saved").read_bytes())).call(leaf)


def _equinox(leaf: Any, folder: pathlib.Path) -> Any:
    eqx.tree_serialise_leaves(folder / "saved.eqx", leaf)
    return eqx.tree_deserialise_leaves(folder / "saved.eqx", leaf)


# By the name of its column: the modules that it needs, and the saver.
SAVERS: dict[str, tuple[str, Callable[[Any, pathlib.Path], Any]]] = {
    "Orbax": ("orbax.checkpoint", _orbax),
    "Orbax v1": ("orbax.checkpoint", _orbax_v1),
    "Flax msgpack": ("flax", _msgpack),
    "safetensors": ("safetensors", _safetensors),
    "`np.savez`": ("numpy", _savez),
    "pickle": ("pickle", _pickle),
    "`jax.export`": ("flatbuffers", _export),
    "Equinox": ("equinox", _equinox),
}


def loaded(saver: Callable[[Any, pathlib.Path], Any], leaf: Any) -> Any:
    """Returns what a saver gives back for a leaf; None if it refuses."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            return saver(leaf, pathlib.Path(folder))
        except Exception:
            return None


def cell(leaf: Any, came_back: Any) -> str:
    """Returns what the table says: kept, strong, bytes or refused."""
    if came_back is None:
        return "refused"
    if came_back.dtype != leaf.dtype:
        return "bytes"
    was_weak = getattr(leaf, "weak_type", False)
    return "kept" if getattr(came_back, "weak_type", False) == was_weak else "strong"
