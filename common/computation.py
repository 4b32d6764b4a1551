"""Computation: one torch context for all that LiPT computes, whatever the caller has set.

A thread has autocast, gradient and inference mode, a default device and other modes, hooks, and
flushed denormals. The process has the default dtype, the kernels' settings, the number of threads
and the global generators. A computation sets all of them, and restores the caller's. Process-wide
ones are shared by all threads, so one computation runs at a time.

Measured: convolutions' backward pass, batch norms over channels-last activations and MobileNet's
forward pass depend on the number of threads. cuDNN may sum in any order, or round to TF32.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import partial, wraps
from multiprocessing import current_process
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch.autograd import graph
from torch.utils import _python_dispatch as dispatch

ParamsT = ParamSpec("ParamsT")
ReturnT = TypeVar("ReturnT")

# By process: a fork's child does not inherit a lock that another thread holds for ever.
_locks: dict[int, threading.RLock] = {}
_this_thread = threading.local()


@contextmanager
def computation(cpu_threads: int | None = None) -> Iterator[None]:
    """Compute in float32 with deterministic kernels, with `cpu_threads` or as many as before.

    Blocks may be nested in one thread; another thread waits for their end.
    """
    lock = _locks.setdefault(os.getpid(), threading.RLock())
    # Within a computation dispatch modes are LiPT's own, such as a ceiling of memory.
    depth = _depth()
    with lock, thread_defaults(keeps_dispatch_modes=depth > 0), _settings_of(_OWN):
        _keep_freed_memory()
        before = torch.get_num_threads()
        threads = before if cpu_threads is None else cpu_threads
        torch.set_num_threads(1 if _has_lost_its_pool() else threads)
        _this_thread.depth = os.getpid(), depth + 1
        try:
            yield
        finally:
            _this_thread.depth = os.getpid(), depth
            torch.set_num_threads(before)


@contextmanager
def others_may_compute() -> Iterator[None]:
    """Let other threads compute while this computation waits for something else, such as an RPC.

    They leave the settings as they find them.
    """
    with ExitStack() as taken_again:
        for _ in range(_depth()):
            lock = _locks[os.getpid()]
            lock.release()
            taken_again.callback(lock.acquire)
        yield


def _depth() -> int:
    """The number of this thread's computations, of this process: a fork copies the parent's."""
    process, depth = getattr(_this_thread, "depth", (0, 0))
    return int(depth) if process == os.getpid() else 0


def computed(function: Callable[ParamsT, ReturnT]) -> Callable[ParamsT, ReturnT]:
    """Make a public call one computation, with a CPU generator of its own.

    In a forked child it has a thread of its own, with a pool of its own: the same bits.
    """

    def compute(*args: ParamsT.args, **keywords: ParamsT.kwargs) -> ReturnT:
        with computation(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return function(*args, **keywords)

    @wraps(function)
    def call(*args: ParamsT.args, **keywords: ParamsT.kwargs) -> ReturnT:
        if not _has_lost_its_pool():
            return compute(*args, **keywords)
        with ThreadPoolExecutor(1, thread_name_prefix="lipt-computation") as thread:
            run = partial(copy_context().run, compute, *args, **keywords)
            return thread.submit(run).result()

    return call


def _has_lost_its_pool() -> bool:
    """Whether OpenMP would wait here for threads that a fork has not copied."""
    forked = isinstance(current_process(), ForkProcess) or _locks.keys() - {os.getpid()}
    return bool(forked) and threading.current_thread() is threading.main_thread()


def _keep_freed_memory() -> None:
    """Let glibc keep up to 62 MiB of freed memory instead of returning it at once.

    What it keeps is twice the largest block freed so far, of at most 32 MiB. Otherwise each batch
    may fault in all pages of its activations again: about a tenth of a learner's CPU time.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


@contextmanager
def fastest_kernels() -> Iterator[None]:
    """Let cuDNN choose its fastest kernels in a computation; bits may differ between runs."""
    with _settings_of(_FASTEST):
        yield


@contextmanager
def thread_defaults(*, keeps_dispatch_modes: bool = False) -> Iterator[None]:
    """Run a block with a new thread's state of torch: no modes, no hooks, no autocast."""
    with ExitStack() as restored:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            from torch._functorch import pyfunctorch  # noqa: PLC0415 - slow, and rarely needed

            restored.enter_context(pyfunctorch.temporarily_clear_interpreter_stack())
        if dispatch._get_current_dispatch_mode() is not None and not keeps_dispatch_modes:
            restored.enter_context(dispatch._disable_current_modes())
        while torch._C._len_torch_function_stack():
            mode = torch._C._pop_torch_function_stack()
            restored.callback(torch._C._push_on_torch_function_stack, mode)
        if _saves_by_hooks():
            # Of several pairs of hooks, torch calls the newest alone.
            restored.enter_context(graph.saved_tensors_hooks(_unchanged, _unchanged))
        _reset_autocast(restored)
        # Python's floats are flushed with torch's.
        if sys.float_info.min / 2 == 0.0:
            torch.set_flush_denormal(False)
            restored.callback(torch.set_flush_denormal, True)
        restored.enter_context(torch.inference_mode(mode=False))
        restored.enter_context(torch.enable_grad())
        yield


def _saves_by_hooks() -> bool:
    """Whether hooks pack and unpack what autograd saves; torch cannot disable them then."""
    try:
        with graph.disable_saved_tensors_hooks("not for long"):
            return False
    except RuntimeError:
        return True


def _unchanged(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _reset_autocast(restored: ExitStack) -> None:
    """Switch autocast off, without its cache, which the caller's block would keep too long."""
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float16)):
        restored.callback(torch.set_autocast_enabled, device, torch.is_autocast_enabled(device))
        restored.callback(torch.set_autocast_dtype, device, torch.get_autocast_dtype(device))
        torch.set_autocast_enabled(device, False)
        torch.set_autocast_dtype(device, dtype)
    restored.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
    torch.set_autocast_cache_enabled(False)


class _Setting(NamedTuple):
    """A process-wide setting: reads and writes the arguments of its setter; `own` are LiPT's."""

    read: Callable[[], tuple[Any, ...]]
    write: Callable[..., object]
    own: tuple[Any, ...]

    def set(self, values: tuple[Any, ...]) -> None:
        # A write may be slow: one imports the compiler.
        with suppress(RuntimeError):
            if self.read() == values:
                return
        self.write(*values)


@contextmanager
def _settings_of(settings: Sequence[_Setting]) -> Iterator[None]:
    before: list[tuple[_Setting, tuple[Any, ...]]] = []
    for setting in settings:
        # torch refuses to read an older setting that a newer one contradicts.
        with suppress(RuntimeError):
            before.append((setting, setting.read()))
    try:
        for setting, _ in before:
            setting.set(setting.own)
        yield
    finally:
        for setting, values in before:
            setting.set(values)


def _attributes(owner: Any, **own: bool) -> list[_Setting]:
    def attribute(name: str) -> _Setting:
        return _Setting(
            lambda: (getattr(owner, name),), partial(setattr, owner, name), (own[name],)
        )

    return [attribute(name) for name in own if hasattr(owner, name)]


def _attention(kernels: str) -> _Setting:
    read, write = f"{kernels}_sdp_enabled", f"enable_{kernels}_sdp"
    of_cuda = torch.backends.cuda
    return _Setting(lambda: (getattr(of_cuda, read)(),), getattr(of_cuda, write), (True,))


def _precision(backend: str, layer: str) -> _Setting:
    def read() -> tuple[str]:
        get = torch._C._get_fp32_precision_getter
        precision = get(backend, layer)
        return ("none" if precision == get(backend, "all") else precision,)

    return _Setting(read, partial(torch._C._set_fp32_precision_setter, backend, layer), ("ieee",))


_OWN = (
    _Setting(lambda: (torch.get_default_dtype(),), torch.set_default_dtype, (torch.float32,)),
    _Setting(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda mode, warn_only: torch.use_deterministic_algorithms(mode, warn_only=warn_only),
        (False, False),
    ),
    _Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        torch.set_anomaly_enabled,
        (False, True),
    ),
    *_attributes(
        torch.backends.cudnn, enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ),
    *_attributes(torch.backends.mkldnn, enabled=True, deterministic=False),
    _Setting(
        lambda: (torch.get_float32_matmul_precision(),),
        torch.set_float32_matmul_precision,
        ("highest",),
    ),
    *map(_attention, ("flash", "mem_efficient", "math", "cudnn")),
    _Setting(
        lambda: (torch.backends.mha.get_fastpath_enabled(),),
        torch.backends.mha.set_fastpath_enabled,
        (True,),
    ),
    # After the older settings, which write them as well.
    *(
        _precision(backend, layer)
        for backend in ("cuda", "mkldnn")
        for layer in ("conv", "rnn", "matmul")
        if hasattr(torch._C, "_set_fp32_precision_setter")
    ),
)
_FASTEST = _attributes(torch.backends.cudnn, benchmark=True, deterministic=False, allow_tf32=True)
