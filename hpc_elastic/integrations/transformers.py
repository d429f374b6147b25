"""A callback for transformers' Trainer: heartbeats, a checkpoint at a notice, and saves that are not cut short."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hpc_elastic.worker.heartbeat_writer import heartbeat
from hpc_elastic.worker.notices import Notice, notice_received
from hpc_elastic.worker.saves import saving


class TransformersCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]  # as in `lightning`
    """Beats at every step; at a notice it has the Trainer save, on all ranks at the same step, and end the training.

    Attributes:
        notice: the notice for which the training has ended, None if there was none. Let the script exit with 75 then.
    """

    def __init__(self) -> None:
        self.notice: Notice | None = None
        self._block: saving | None = None

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> TrainerControl:
        """Beat, and ask for a notice; the checkpoint that the Trainer is to write now is not cut short."""
        heartbeat(state.global_step)
        notice = notice_received()
        if notice is not None and self.notice is None:
            self.notice = notice
            control.should_save = control.should_training_stop = True
        self._begin_if(control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """Begin to save, if the Trainer is to write a checkpoint now."""
        self._begin_if(control)

    def on_save(self, *_: Any, **__: Any) -> None:
        """End the block: the checkpoint is written."""
        self._end()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the block, if the Trainer has written none."""
        self._end()

    def _begin_if(self, control: TrainerControl) -> None:
        if control.should_save and self._block is None:
            self._block = saving()
            self._block.__enter__()

    def _end(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)
