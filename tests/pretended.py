"""A pretended accelerator: tensors that say they are elsewhere, and compute on the CPU.

Where there is no GPU this still finds what would fail on one or slow it down: tensors of two
devices in one operation, and whatever the CPU has to wait for. The device is torch's "meta", which
every build has and whose tensors have no values; these here have.

    with Pretended() as there:
        values = torch.arange(3, device=there.device) + torch.arange(3)  # refused, as on a GPU
        there.waits  # the operations that a CPU would have waited for, by name
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from lipt.common import computation

DEVICE = torch.device("meta")

# What gives Python a value, or a tensor whose shape depends on values.
_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}
_COPIES = {"_to_copy", "copy_"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
# What takes Python's numbers to a device past the dispatcher.
_MAKING: tuple[Callable[..., Tensor], ...] = (torch.tensor, torch.as_tensor)


class OtherDeviceError(RuntimeError):
    """Tensors of two devices in one operation."""


class There(Tensor):
    """A tensor on the pretended device; its values lie in `held`, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls: type[There], real: Tensor) -> There:  # noqa: PYI034
        self = Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=DEVICE,
        )
        self.held = real
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.held})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{operation} outside of Pretended")


class Pretended(TorchDispatchMode):
    """The time in which the device is there; `waits` are counted by the operation."""

    device = DEVICE

    def __init__(self) -> None:
        super().__init__()
        self._making = _Making(self)
        # It knows no such device.
        self._autocast = mock.patch.object(torch, "autocast", return_value=nullcontext())
        # Computations leave all modes, and this one is the device.
        self._modes = mock.patch.object(computation, "thread_defaults", return_value=nullcontext())
        self.waits: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._autocast.start()
        self._modes.start()
        self._making.__enter__()
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._making.__exit__(*error)
        self._modes.stop()
        self._autocast.stop()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute on the CPU, and put what comes out where a device would have it."""
        given = dict(kwargs or {})
        name = operation._schema.name.removeprefix("aten::")
        tensors = [one for one in tree_flatten((args, given))[0] if isinstance(one, Tensor)]
        elsewhere = [one for one in tensors if isinstance(one, There)]
        here = [one for one in tensors if not isinstance(one, There)]
        wanted = given.get("device")
        if wanted is not None:
            given["device"] = torch.device("cpu")
        there = bool(elsewhere) if wanted is None else torch.device(wanted) == DEVICE
        if name in _COPIES:
            there = isinstance(args[0], There) if name == "copy_" else there
            self._note_copy(name, args, given, there=there)
        elif elsewhere:
            if name in _INDEXING:
                self._note_indices(name, args)
            else:
                _require_one_device(name, here)
            if name in _WAITS:
                self.waits[name] += 1
        found = operation(*_real(args), **_real(given))
        return self._placed(operation, args, found) if there else found

    def _note_indices(self, name: str, args: tuple[Any, ...]) -> None:
        """Indices may lie on the CPU, which then waits; and for how many a mask has."""
        for index in args[1]:
            if index is not None and not isinstance(index, There):
                self.waits[f"{name} by the CPU's"] += 1
            elif index is not None and index.dtype == torch.bool:
                self.waits[f"{name} by a mask"] += 1
        values = [args[0], *args[2:3]]
        _require_one_device(name, [one for one in values if not isinstance(one, There)])

    def _note_copy(
        self, name: str, args: tuple[Any, ...], given: dict[str, Any], *, there: bool
    ) -> None:
        source = args[1] if name == "copy_" else args[0]
        blocking = not (given.get("non_blocking") or (name == "copy_" and any(args[2:])))
        if isinstance(source, There) and not there:
            self.waits["to the CPU"] += 1
        # A single number may come from a constant of the CPU's; what is not waited for is free.
        elif there and not isinstance(source, There) and blocking:
            self.waits["from the CPU"] += 1

    def _placed(self, operation: Any, args: tuple[Any, ...], found: Any) -> Any:
        # What an operation changes in place, or gives back as it is, stays the same object.
        known = {id(one.held): one for one in tree_flatten(args)[0] if isinstance(one, There)}

        def place(value: Any) -> Any:
            if not isinstance(value, Tensor) or isinstance(value, There):
                return value
            return known[id(value)] if id(value) in known else There(value)

        return tree_map(place, found)


class _Making(TorchFunctionMode):
    def __init__(self, pretended: Pretended) -> None:
        super().__init__()
        self._pretended = pretended

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        wanted = given.get("device")
        if function is Tensor.new_tensor and isinstance(args[0], There):
            self._pretended.waits["from the CPU"] += 1
            return There(torch.tensor(args[1], dtype=given.get("dtype", args[0].dtype)))
        if function is Tensor.__getitem__ and isinstance(args[1], list):
            return args[0][torch.tensor(args[1])]
        if function in _MAKING and wanted is not None and torch.device(wanted) == DEVICE:
            if isinstance(args[0], There):
                return function(*args, **given)
            self._pretended.waits["from the CPU"] += 1
            return There(function(*args, **given | {"device": "cpu"}))
        return function(*args, **given)


def _real(value: Any) -> Any:
    return tree_map(lambda one: one.held if isinstance(one, There) else one, value)


def _require_one_device(name: str, here: list[Tensor]) -> None:
    """Numbers as tensors without a dimension may lie on the CPU, as on CUDA."""
    wrong = [tuple(one.shape) for one in here if one.ndim]
    if wrong:
        raise OtherDeviceError(f"{name} is given tensors of the CPU, of the shapes {wrong}")


def brought(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}
