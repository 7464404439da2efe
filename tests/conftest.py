"""What holds for every test: dtype promotion, and how programs are compiled."""

import ctypes
import gc
import mmap
import os
import pathlib
import sys
import threading

import jax
import pytest

# With JAX_DISABLE_MOST_OPTIMIZATIONS=false they are compiled as for users.
_IS_QUICK = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true") != "false"
_DEVICES = "--xla_force_host_platform_device_count=8"
# A third of the time to compile goes into splitting a program among threads.
_QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
# Cases that take long and are of a kind for which a shorter one stands.
_EXHAUSTIVE = (pathlib.Path(__file__).parent / "exhaustive.txt").read_text().splitlines()
# Bytes of memory above which a worker forgets what it traced and compiled.
_MEMORY = 1.3 * 2**30
# XLA aborts on a flag that it does not know, as that of JAX 0.12.
_IS_JAX_0_10 = (0, 10) <= jax.__version_info__ < (0, 11)


def pytest_configure(config):
    """There are eight devices, and programs, most of a few steps, compile in half the time.

    Those that are compiled are kept, for the other worker, children and the next run,
    in pytest's cache, which `--cache-clear` empties. JAX tells apart programs, flags and
    versions. All of this is in the environment, since several tests start processes.
    """
    if os.environ.get("DTYPEGUARD_REQUIRE_ALL"):  # as in .ci/run: the exhaustive tests too
        config.option.markexpr = ""
    jax.config.update("jax_disable_most_optimizations", _IS_QUICK)
    flags = [_DEVICES, *([_QUICK] if _IS_QUICK and _IS_JAX_0_10 else [])]
    for flag in (flag for flag in flags if flag not in os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    if hasattr(config, "cache"):
        folder = pathlib.Path(config.cache.mkdir("compiled")) / f"jax-{jax.__version__}"
        options = {
            "jax_compilation_cache_dir": str(folder),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        for name, value in options.items():
            os.environ.setdefault(name.upper(), str(value))
            jax.config.update(name, value)
    if _IS_JAX_0_10:
        _share_contexts()


def _share_contexts():
    """A context of MLIR serves fifty programs; JAX 0.12 shares it too, JAX 0.10 does not.

    To make one and to free it takes 4.5 ms, a fifth of the time of a small program.
    """
    from jax._src.interpreters import mlir

    make_context, threads = mlir.make_ir_context, threading.local()

    def shared_context():
        if getattr(threads, "uses", 50) == 50:
            threads.context, threads.uses = make_context(), 0
        threads.uses += 1
        return threads.context

    mlir.make_ir_context = shared_context


# The longest come first, so that no worker is left alone with them.
_LONGEST = "test_contract", "test_docs"
# Tests of these run by themselves, or with those of the same program: `[svi-bfloat16]`.
_IN_PARTS = "test_optax_own", "test_programs"


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items):
    """The longest files come first, and what `exhaustive.txt` lists has that mark."""
    listed = set(_EXHAUSTIVE)
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.exhaustive)
    first = dict.fromkeys((*_LONGEST, *_IN_PARTS))
    rank = {name: number for number, name in enumerate(first)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish(session):
    """Garbage is looked for less often: traces make much, and what is imported stays."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """What asks for JAX 0.8 is skipped before it."""
    try:
        return (yield)
    except NotImplementedError as error:
        if "needs JAX 0.8" in str(error) and jax.__version_info__ < (0, 8):
            pytest.skip(str(error))
        raise


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """A file has one worker, which traces and compiles what its tests share once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            in_parts = any(name in file for name in _IN_PARTS)
            return (
                f"{file}[{test.partition('[')[2].partition('-')[0]}" if in_parts else file
            )

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(autouse=True)
def promotion(request):
    """Strict, unless the test is marked `third_party`: Optax relies on promotion."""
    mode = "standard" if request.node.get_closest_marker("third_party") else "strict"
    with jax.numpy_dtype_promotion(mode):
        yield


@pytest.fixture(autouse=True)
def optimization(request):
    """XLA optimizes as for users in a test that is marked `optimized`."""
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    if request.node.get_closest_marker("optimized"):
        jax.config.update(name, False)
    yield
    jax.config.update(name, before)


@pytest.fixture(autouse=True)
def room_for_the_next_test():
    """Empties JAX's caches between tests, before they fill the memory.

    JAX itself keeps 8,192 compiled calls at most, and then no more: `_cache_size` is 0.
    """
    yield
    if sys.platform.startswith("linux") and _memory() > _MEMORY:
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Else what is free again would count as in use after each test that follows.
        ctypes.CDLL(None).malloc_trim(0)


def _memory():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
