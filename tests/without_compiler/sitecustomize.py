"""Spares torch its compiler and its distributed tensors until something asks for one of them.

Every Python that finds this folder on PYTHONPATH imports this at its start; see `tests.without_torch.hide_compiler`.
A training without either calls a few functions of the compiler all the same, which have nothing to do then: stand-ins
have these. Whatever else is asked of a stand-in is asked of the real module, which is imported for that.

`import torch` ends with kernels in Python of the device `meta`, and all that these import, which is a third of its
time. Nobody asks that module for anything: it is imported with the compiler, which computes on that device, and who
computes on it without the compiler is told that there is no kernel. An older torch, which finishes its class of random
generators elsewhere, imports the kernels.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # what the module of that name needs would double the time that a Python takes to start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any
else:
    ModuleSpec, ModuleType = type(sys.__spec__), type(sys)


class StandIn(ModuleType):
    """A module with what it was given, and all else of the real one."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        self.__dict__.update(known, is_imported=False)

    def __getattr__(self, name: str) -> Any:
        """Import the real one, but not for who looks at every module; the import of what is inside needs its path."""
        if name.startswith("__") and not (name == "__path__" and self.is_imported):
            raise AttributeError(name)
        return getattr(_import_really(self.__name__), name)


class Finder:
    """Finds stand-ins, and what is inside of real ones and was imported; it is a finder and a loader.

    An import of what is inside of a stand-in asks that for its path, which imports the real one and often the very
    module, and then asks the finders for the module, as if it had to be imported.
    """

    def __init__(self) -> None:
        self._specs: dict[str, Any] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        is_stand_in = name in STAND_INS and (name != META_KERNELS or hasattr(_c_of_torch(), GENERATORS))
        is_ours = is_stand_in or (name.startswith(INSIDE) and name in sys.modules)
        return ModuleSpec(name, self) if is_ours else None  # type: ignore[arg-type]  # it need not be derived

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = sys.modules.get(spec.name) or STAND_INS[spec.name]
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if isinstance(module, StandIn):
            module.__dict__["is_imported"] = True
            if module.__name__ == META_KERNELS:
                _finish_generators()
            return
        try:  # noqa: SIM105  # contextlib takes long to import
            module.__spec__ = self._specs[module.__name__]
        except AttributeError:  # a module of settings takes no other
            pass


def _import_really(name: str) -> ModuleType:
    used = [each for each in STAND_INS if isinstance(sys.modules.get(each), StandIn)]
    for each in used:
        del sys.modules[each]
    STAND_INS.clear()
    if META_KERNELS in used:
        __import__(META_KERNELS)
    __import__(name)
    return sys.modules[name]


def _c_of_torch() -> ModuleType:
    return sys.modules["torch._C"]


def _finish_generators() -> None:
    """Do what the kernels do beside: torch makes no random generator before that class has its metaclass."""
    from torch._opaque_base import OpaqueBaseMeta

    getattr(_c_of_torch(), GENERATORS)(OpaqueBaseMeta)


def _disable(function: Any = None, *_: Any, **__: Any) -> Any:
    return function or (lambda decorated: decorated)


META_KERNELS = "torch._meta_registrations"
GENERATORS = "_set_generator_metaclass"
STAND_INS = {
    "torch._dynamo": StandIn(
        "torch._dynamo",
        disable=_disable,
        graph_break=lambda *_, **__: None,
        trace_rules=StandIn("torch._dynamo.trace_rules", clear_lru_cache=lambda: None),
        utils=StandIn("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    ),
    "torch.distributed.tensor": StandIn("torch.distributed.tensor"),
    META_KERNELS: StandIn(META_KERNELS),
}
INSIDE = tuple(f"{name}." for name in STAND_INS)
sys.meta_path.insert(0, Finder())
