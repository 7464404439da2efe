"""Hides JAX, and what imports it, from a script until the script imports it.

JAX reads its options from the environment when it is imported, and scripts set them
before. dtypeguard has imported it by then.
"""

import builtins
import importlib.abc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import jax

# JAX and what imports it. Each imports only those before it.
_PACKAGES = ("jax", "chex", "equinox", "optax", "dtypeguard")
_SHOW_OPTIONS = """
import json, sys
sys.path[:] = {path}
import jax
print(json.dumps({{name: jax.config.values[name] for name in {names}}}))
"""


class Hidden(importlib.abc.MetaPathFinder):
    """A context in which an import of one of the packages looks like the first one."""

    def __enter__(self):
        self._environment = dict(os.environ)
        self._modules = {
            name: module
            for name, module in sys.modules.items()
            if name.partition(".")[0] in _PACKAGES
        }
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)

    def __exit__(self, *exception):
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._show(*_PACKAGES)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Finds a hidden package as others do, and has its loader show it as it is."""
        hidden = self._modules.get(fullname)
        if hidden is None or fullname not in _PACKAGES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        known = getattr(hidden.__spec__, "origin", None)
        if spec is None or spec.loader is None or spec.origin != known:
            return spec  # the script has a module of that name
        loader = spec.loader

        def show(module: ModuleType) -> None:
            del loader.create_module, loader.exec_module
            if "jax" in self._modules:
                self._adopt_options()
            self._show(*_PACKAGES[: _PACKAGES.index(fullname) + 1])

        loader.create_module = lambda spec: hidden
        loader.exec_module = show
        return spec

    def _show(self, *packages: str) -> None:
        for name in list(self._modules):
            if name.partition(".")[0] in packages:
                sys.modules.setdefault(name, self._modules.pop(name))

    def _adopt_options(self) -> None:
        """Sets the options whose variables the script has changed, as JAX reads them."""
        before, now = self._environment, os.environ
        changed = {n.lower() for n in {*before, *now} if before.get(n) != now.get(n)}
        # The notes need the frames that this option would take out.
        names = sorted(changed & {*jax.config.values} - {"jax_traceback_filtering"})
        if not names:
            return
        # Only an import shows how this release reads a variable, and the default.
        show = _SHOW_OPTIONS.format(path=sys.path, names=names)
        command = [sys.executable, "-c", show]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            kind, _, message = done.stderr.strip().rpartition("\n")[2].partition(": ")
            raise getattr(builtins, kind, ImportError)(message)
        for name, value in json.loads(done.stdout).items():
            jax.config.update(name, value)
