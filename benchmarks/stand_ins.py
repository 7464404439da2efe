"""What stands in for data sets and plots while public scripts run: small arrays, no files.

`installed(text)` puts modules before those that a script of this text would import.
"""

import contextlib
import importlib.machinery
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

_SIZE = 32


class Dataset:
    """Examples in memory, with the methods of `tf.data.Dataset` and `grain.MapDataset`."""

    def __init__(self, examples: Sequence[Any], is_endless: bool = False):
        self.examples = list(examples)
        self.is_endless = is_endless
        features = {"image": types.SimpleNamespace(shape=(28, 28, 1))}
        features["label"] = types.SimpleNamespace(num_classes=10)
        self.dataset_info = types.SimpleNamespace(features=features)

    @classmethod
    def source(cls, source: "Dataset") -> "Dataset":
        """The examples of a source of grain's."""
        return cls(source.examples)

    def map(self, function: Callable[..., Any], **_: Any) -> "Dataset":
        """The examples, each changed."""
        examples = [
            function(*example) if type(example) is tuple else function(example)
            for example in self.examples
        ]
        return Dataset(examples, self.is_endless)

    def batch(self, size: int, **_: Any) -> "Dataset":
        """The examples in batches; all of them in one if there are too few."""
        size = min(size, len(self.examples))
        starts = range(0, len(self.examples) - size + 1, size)
        batches = [_stacked(self.examples[n : n + size]) for n in starts]
        return Dataset(batches, self.is_endless)

    def repeat(self, *_: Any) -> "Dataset":
        """The examples again and again."""
        return Dataset(self.examples, is_endless=True)

    def shuffle(self, *_: Any, **__: Any) -> "Dataset":
        """The examples, in the same order."""
        return self

    cache = prefetch = with_options = shuffle

    def __iter__(self) -> Iterator[Any]:
        """The examples, one after the other."""
        return itertools.cycle(self.examples) if self.is_endless else iter(self.examples)

    as_numpy_iterator = __iter__

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.examples)


class Tensor(np.ndarray):
    """An array with the methods of PyTorch's that scripts call before they use JAX."""

    def numpy(self) -> np.ndarray:
        """The array."""
        return np.asarray(self)

    def permute(self, *axes: int) -> "Tensor":
        """The array, its axes in another order."""
        return self.transpose(*axes)


def images(shape: tuple[int, ...] = (28, 28, 1), size: int = _SIZE) -> np.ndarray:
    """Images of bytes."""
    return np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)


def labels(size: int = _SIZE) -> np.ndarray:
    """Their labels."""
    return np.random.default_rng(1).integers(0, 10, size)


def mnist(**_: Any) -> tuple[np.ndarray, ...]:
    """Images and one-hot labels as `examples.datasets.mnist` of JAX returns them."""
    flat = images().reshape(_SIZE, -1) / np.float32(255)
    one_hot = np.eye(10, dtype=np.float32)[labels()]
    return flat, one_hot, flat[:8], one_hot[:8]


@contextlib.contextmanager
def installed(text: str) -> Iterator[None]:
    """Puts those that a text names where it imports the real modules from."""
    modules = _modules()
    modules = {k: v for k, v in modules.items() if k.partition(".")[0] in text}
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _modules() -> dict[str, Any]:
    pairs = zip(images(), labels())
    digits = Dataset([{"image": image, "label": label} for image, label in pairs])
    tfds = mock.MagicMock(name="tensorflow_datasets")
    tfds.load = lambda name, split=None, with_info=False, **_: (
        (digits, mock.MagicMock()) if with_info else _for_each(split, digits)
    )
    tfds.data_source = lambda name, split: _for_each(split, digits)
    tfds.as_numpy = lambda dataset: dataset
    tf = mock.MagicMock(name="tensorflow")
    tf.cast = lambda x, dtype: np.asarray(x, dtype)
    tf.Tensor = tf.Variable = Tensor
    tf.float32, tf.int32 = np.float32, np.int32
    plots = mock.MagicMock(name="matplotlib")
    plots.pyplot.subplots = _subplots
    torch = mock.MagicMock(name="torch")
    torch.Tensor = Tensor
    torch.utils.data.DataLoader = lambda data, batch_size, **_: _batches(batch_size)
    examples = mock.MagicMock(name="examples")
    examples.datasets.mnist = mnist
    named = {
        "tensorflow": tf,
        "tensorflow_datasets": tfds,
        "grain": types.SimpleNamespace(MapDataset=Dataset),
        "matplotlib": plots,
        "torch": torch,
        "torchvision": mock.MagicMock(name="torchvision"),
        "examples": examples,
    }
    parts = {"matplotlib.pyplot": plots.pyplot, "matplotlib.patches": mock.MagicMock()}
    parts["torchvision.transforms"] = mock.MagicMock()
    parts["examples.datasets"] = examples.datasets
    for name in (
        "flax.metrics.tensorboard",
        "clu",
        "clu.metric_writers",
        "tyro",
        "datasets",
        "gym",
        "d4rl",
        "tensorflow.io",
    ):
        parts[name] = mock.MagicMock()
    for name, module in (named | parts).items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    return named | parts


def _subplots(nrows: int = 1, ncols: int = 1, **_: Any) -> tuple[Any, Any]:
    axes = np.empty((nrows, ncols), object)
    for index in np.ndindex(axes.shape):
        axes[index] = mock.MagicMock()
    return mock.MagicMock(), axes.squeeze() if nrows * ncols > 1 else axes[0, 0]


def _for_each(split: Any, dataset: Dataset) -> Any:
    return [dataset] * len(split) if isinstance(split, list) else dataset


def _batches(size: int) -> list[tuple[Tensor, Tensor]]:
    pictures = images((1, 28, 28), 2 * size).astype(np.float32) / 127.5 - 1
    numbers = labels(2 * size)
    cut = slice(None, size), slice(size, None)
    return [(pictures[n].view(Tensor), numbers[n].view(Tensor)) for n in cut]


def _stacked(examples: Sequence[Any]) -> Any:
    first = examples[0]
    if isinstance(first, dict):
        return {name: np.stack([e[name] for e in examples]) for name in first}
    if isinstance(first, tuple):
        return tuple(np.stack(column) for column in zip(*examples))
    return np.stack(examples)
