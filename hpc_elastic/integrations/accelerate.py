"""States in memory for a loop with Hugging Face accelerate: what an Accelerator has prepared, kept and loaded again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpc_elastic import memory
from hpc_elastic.integrations.step_states import StepStates

_WHOLE_ON_EACH_RANK = ("NO", "MULTI_CPU", "MULTI_GPU")  # of accelerate's DistributedType


class AccelerateStates:
    """The state of all that an Accelerator has prepared or registered for checkpointing, as `save_state` has it.

    Make it when everything is prepared, call `load` once, iterate over `batches`, and call `save` after each step of
    the optimizer.

    Args:
        accelerator: the Accelerator; on one device or with DistributedDataParallel.
        keep_every: after how many steps the state is kept in memory.
        replicated: whether one rank a node keeps it for all; else each keeps its own, with its own random state.
    """

    def __init__(self, accelerator: Any, keep_every: int = 1, *, replicated: bool = True) -> None:
        self._accelerator = accelerator
        self._random: Mapping[str, Any] | None = None
        self._states = StepStates("accelerate", keep_every, replicated=replicated)
        kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
        if kind not in _WHOLE_ON_EACH_RANK:
            self._states.stop(f"no state is kept with accelerate's {kind}, only with DDP and on one device")

    def load(self) -> int | None:
        """Bring everything back to the state in memory, and return its step; None: there is none, load from disk."""
        state, step = self._states.load()
        if state is None:
            return None
        for name, objects in self._parts().items():
            if len(objects) != len(state[name]):
                raise memory.StateError(
                    f"AccelerateStates.load: found {len(state[name])} {name} in memory, and {len(objects)} prepared; "
                    "expected the same number: call `load` when everything is prepared"
                )
            for each, content in zip(objects, state[name], strict=True):
                each.load_state_dict(content)
        self._states.begin(step or 0)
        self._random = self._states.random_state()
        return step

    def batches(self, loader: Any, done: int) -> Iterator[Any]:
        """Yield the batches of an epoch but for the first ones; after a load go on with its random numbers, too.

        A DataLoader draws a random number when an epoch begins. So the random state is set before that if the epoch
        begins here, and behind it if it had begun when the state was saved.

        Args:
            loader: a prepared DataLoader; call its `set_epoch` before.
            done: how many batches of the epoch are done.
        """
        if not done:
            self._set_random_state()
        for batch in self._accelerator.skip_first_batches(loader, done) if done else loader:
            self._set_random_state()
            yield batch

    def _set_random_state(self) -> None:
        random, self._random = self._random, None
        if random is not None:
            memory.set_random_state(random)

    def begin(self, step: int) -> None:
        """Count steps from this one on, which was loaded from disk."""
        self._states.begin(step)

    def save(self, step: int) -> None:
        """Keep the state, if it is due. Call it on every rank, after the optimizer's step.

        Args:
            step: the number of the step that is done.
        """
        self._states.save(
            step, lambda: {name: [each.state_dict() for each in objects] for name, objects in self._parts().items()}
        )

    def _parts(self) -> dict[str, list[Any]]:
        # accelerate has no public list of what is prepared; `Accelerator.save_state` reads these.
        own = self._accelerator
        return {
            "models": [own.unwrap_model(model) for model in own._models],
            "optimizers": own._optimizers,
            "schedulers": own._schedulers,
            "registered objects": own._custom_objects,
            "scalers": [] if own.scaler is None else [own.scaler],
        }
