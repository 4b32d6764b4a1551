import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lipt.common.computation import computation, computed, fastest_kernels, thread_defaults

Context = Callable[[], AbstractContextManager[Any]]


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.double() if isinstance(result, torch.Tensor) else result


class Shifted(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.ops.aten.mm.default else result


@contextmanager
def assigned(write: Callable[[Any], object], value: object, before: object) -> Iterator[None]:
    write(value)
    try:
        yield
    finally:
        write(before)


CUDNN, MATMUL = torch.backends.cudnn, torch.set_float32_matmul_precision
CONTEXTS: dict[str, Context] = {
    "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
    "float64": partial(assigned, torch.set_default_dtype, torch.float64, torch.float32),
    "device": partial(torch.device, "meta"),
    "default device": partial(assigned, torch.set_default_device, "meta", None),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "function mode": Doubled,
    "dispatch mode": Shifted,
    "hooks": partial(torch.autograd.graph.saved_tensors_hooks, lambda it: it * 2, lambda it: it),
    "denormals": partial(assigned, torch.set_flush_denormal, True, False),
    "deterministic": partial(assigned, torch.use_deterministic_algorithms, True, False),
    "threads": partial(assigned, torch.set_num_threads, 2, torch.get_num_threads()),
    "cudnn": partial(CUDNN.flags, enabled=False, benchmark=True, allow_tf32=True),
    "mkldnn": partial(assigned, partial(setattr, torch.backends.mkldnn, "enabled"), False, True),
    "matmul": partial(assigned, MATMUL, "medium", "highest"),
    "attention": partial(assigned, torch.backends.cuda.enable_math_sdp, False, True),
}


def computed_values() -> tuple[Any, ...]:
    """A result that each of the contexts would change, or end in an error."""
    weight = torch.eye(2, requires_grad=True)
    product = weight @ torch.tensor([[1.001, 2.0], [3.0, 4.0]])
    loss = (product**2).sum()
    torch.autograd.backward(loss)
    small = torch.tensor(2e-38) / 4
    return loss.item(), weight.grad.tolist() if weight.grad is not None else None, small.item()


def settings() -> list[Any]:
    backends = torch.backends
    return [
        *(torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        *(torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        *(torch.is_autocast_cache_enabled(), torch.empty(0).device.type, torch.get_num_threads()),
        *(CUDNN.enabled, CUDNN.benchmark, CUDNN.deterministic, CUDNN.allow_tf32),
        *(backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()),
        *(torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()),
        *(torch.backends.mkldnn.enabled, backends.cuda.math_sdp_enabled()),
        len(torch.overrides._get_current_function_mode_stack()),
        sys.float_info.min / 2,
    ]


@pytest.mark.parametrize("name", CONTEXTS)
def test_the_callers_context_changes_no_result_and_is_restored(name: str) -> None:
    with computation(1):
        expected, own = computed_values(), settings()
    with CONTEXTS[name]():
        before = settings()
        with computation(1):
            assert computed_values() == expected
            assert settings() == own
        assert settings() == before
        with pytest.raises(KeyError):
            _fail()
        assert settings() == before


def _fail() -> None:
    with computation(3):
        torch.set_default_dtype(torch.float64)
        raise KeyError


def test_a_computation_is_float32_with_deterministic_kernels() -> None:
    before = CUDNN.deterministic, CUDNN.allow_tf32, torch.get_num_threads()
    with computation(before[2] + 1):
        assert torch.get_num_threads() == before[2] + 1
        assert CUDNN.deterministic
        assert not CUDNN.allow_tf32
        with fastest_kernels():
            assert (CUDNN.benchmark, CUDNN.deterministic, CUDNN.allow_tf32) == (True, False, True)
        with computation():
            assert torch.get_num_threads() == before[2] + 1
        assert CUDNN.deterministic
    assert (CUDNN.deterministic, CUDNN.allow_tf32, torch.get_num_threads()) == before


def test_newer_settings_of_float32_are_replaced_and_restored() -> None:
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has the older settings alone")
    backends: Any = torch.backends
    backends.mkldnn.matmul.fp32_precision = "none"
    backends.fp32_precision = "tf32"
    try:
        with computation():
            assert backends.mkldnn.matmul.fp32_precision == "ieee"
            assert CUDNN.conv.fp32_precision == "ieee"
        assert backends.mkldnn.matmul.fp32_precision == "tf32"
        # It follows the wider setting again.
        backends.fp32_precision = "ieee"
        assert backends.mkldnn.matmul.fp32_precision == "ieee"
    finally:
        backends.fp32_precision = "none"
        setattr(CUDNN, "allow_tf32", True)  # noqa: B010 - the module has no such name in its types


def test_autocast_of_the_caller_keeps_no_weights_of_a_computation() -> None:
    # The caller's block would keep the cast of the weight until its end.
    weight, inputs = torch.ones(2, 2, requires_grad=True), torch.eye(2)
    with torch.autocast("cpu", torch.bfloat16), computation():
        for value in (1.0, 2.0):
            with torch.no_grad():
                weight.fill_(value)
            with torch.autocast("cpu", torch.bfloat16):
                assert (inputs @ weight).max() == value


def test_one_thread_computes_at_a_time() -> None:
    ended: list[str] = []

    def other() -> None:
        with computation():
            ended.append("other")

    with computation(), computation():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(timeout=0.1)
        ended.append("first")
    thread.join()
    assert ended == ["first", "other"]


def test_a_public_call_has_a_generator_of_its_own() -> None:
    draw = computed(lambda: torch.rand(3))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = draw()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(draw(), first)


def test_defaults_of_a_thread_need_no_lock() -> None:
    drawn: list[str] = []

    @thread_defaults()
    def draw() -> None:
        with torch.device("meta"):
            pass
        drawn.append(torch.randperm(3).device.type)

    with computation():
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        with torch.device("meta"):
            draw()
    assert drawn == ["cpu", "cpu"]


# Its parent's OpenMP threads are missing in a child, and another thread may hold the lock.
FORKED = """
import os, signal, sys, threading, torch
from lipt.common.computation import computation, computed
from multiprocessing import get_context
large = torch.rand(1500, 1500, generator=torch.Generator().manual_seed(0))
conv = torch.nn.Conv2d(1, 8, 3)
def work():
    with computation(2):
        threads = torch.get_num_threads()
        torch.autograd.backward(conv(large[None, None]).sum())
        return threads, float((large @ large).exp().sum())
work_alone = computed(work)
def in_child():
    signal.alarm(60)
    return os._exit(0 if work_alone() == expected and work()[0] == 1 else 3)
expected = work_alone()
assert expected[0] == 2 == work()[0]
held, free = threading.Event(), threading.Event()
def hold():
    with computation():
        held.set(); free.wait()
threading.Thread(target=hold).start()
held.wait()
if not (pid := os.fork()):
    in_child()
status = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
process = get_context("fork").Process(target=in_child)
process.start(); process.join()
free.set()
print(status, process.exitcode, work_alone() == expected)
"""


def test_a_forked_child_computes_the_same_and_does_not_hang() -> None:
    script = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("[0] 0 True\n", 0), done.stderr
