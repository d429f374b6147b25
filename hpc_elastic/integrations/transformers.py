"""A callback for transformers' Trainer: heartbeats, a checkpoint at a notice, whole saves, states kept in memory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, BinaryIO, cast

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hpc_elastic.integrations.step_states import StepStates
from hpc_elastic.worker.heartbeat_writer import heartbeat
from hpc_elastic.worker.notices import Notice, notice_received
from hpc_elastic.worker.saves import saving


class TransformersCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]  # as in `lightning`
    """Beats at every step; at a notice it has the Trainer save, on all ranks at the same step, and end the training.

    Args:
        keep_every: after how many steps the state of the training is kept in memory; None: never. Not with FSDP,
            DeepSpeed and PEFT.
        replicated: whether one rank a node keeps it for all; else each keeps its own, with its own random state.

    Attributes:
        notice: the notice for which the training has ended, None if there was none. Let the script exit with 75 then.
    """

    def __init__(self, keep_every: int | None = None, *, replicated: bool = True) -> None:
        self.notice: Notice | None = None
        self._block: saving | None = None
        self._has_beaten = False
        self._is_unfinished = self._ends_epoch = False  # of the latest step
        self._states = StepStates("transformers", keep_every, replicated=replicated)
        self._checkpoint: _MemoryCheckpoint | None = None

    def resume_from(self, otherwise: str | None = None) -> str | None:
        """Return the `resume_from_checkpoint` for `train`: the state in memory if there is one, else what was given.

        It is a folder for this process alone, whose files are memory; it is removed after the first step.
        """
        state, _ = self._states.load()
        if state is None:
            return otherwise
        self._checkpoint = _MemoryCheckpoint(state, self._states.random_state())
        return self._checkpoint.folder

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **more: Any,
    ) -> None:
        """Count steps from here on, and keep no state of a training that shards it."""
        self._states.begin(state.global_step)
        if why := _reason_against(args, more.get("model")):
            self._states.stop(f"no state is kept {why}")

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **more: Any,
    ) -> TrainerControl:
        """Beat, keep the state if it is due, and ask for a notice; the checkpoint that is to be written is whole.

        The block of a checkpoint ends here, a step later: one rank writes it, and the others wait for it in that step.
        """
        heartbeat(state.global_step)
        self._end()
        self._has_beaten = True
        self._remove_checkpoint()
        notice = notice_received()
        if notice is not None and self.notice is None:
            self.notice = notice
            control.should_save = control.should_training_stop = True
        self._ends_epoch = state.global_step >= state.max_steps or float(state.epoch or 0).is_integer()
        self._is_unfinished = self._ends_epoch or control.should_save or control.should_evaluate
        if not self._is_unfinished:
            self._states.save(state.global_step, lambda: _dump(state, more))
        self._begin_if(control)
        return control

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **more: Any) -> None:  # noqa: ARG002
        """Keep the state of the step behind which this evaluation was, if no checkpoint follows."""
        if not control.should_save and not self._ends_epoch:
            self._keep(state, more)

    def on_save(self, args: Any, state: TrainerState, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Keep the state of the step that this checkpoint is of."""
        if not self._ends_epoch:
            self._keep(state, more)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Keep the state with which the epoch before has ended."""
        self._keep(state, more)

    def _keep(self, state: TrainerState, more: Mapping[str, Any]) -> None:
        """Keep the state of the latest step, now that the evaluation and the checkpoint behind it are done.

        A failure in these goes on before the step, and does them again: behind it the Trainer would pass them over, and
        end with success without the last checkpoint.
        """
        if self._is_unfinished:
            self._is_unfinished = False
            self._states.save(state.global_step, lambda: _dump(state, more))

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Beat in an evaluation, but for one before the training, whose first step has a bound of its own."""
        if self._has_beaten:
            heartbeat()

    def on_epoch_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """Begin to save, if the Trainer is to write a checkpoint now."""
        self._begin_if(control)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the block."""
        self._end()
        self._remove_checkpoint()

    def _begin_if(self, control: TrainerControl) -> None:
        if control.should_save and self._block is None:
            self._block = saving()
            self._block.__enter__()

    def _end(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)

    def _remove_checkpoint(self) -> None:
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            checkpoint.remove()


class _MemoryCheckpoint:
    """A folder of the Trainer's layout for a state: links to memory of this process, so that a kill leaves no data.

    The Trainer reads a checkpoint by the names of its files only, and then brings the data to its place by itself.
    """

    def __init__(self, state: Mapping[str, Any], random: Mapping[str, Any] | None) -> None:
        self.folder = tempfile.mkdtemp(prefix="hpc-elastic-state-")
        self._files: list[BinaryIO] = []
        for name, part in {
            "pytorch_model.bin": state["model"],
            "optimizer.pt": state["optimizer"],
            "scheduler.pt": state["scheduler"],
            "scaler.pt": state["scaler"],
        }.items():
            if part is not None:
                torch.save(part, self._open(name))
        self._open("trainer_state.json").write(state["trainer"].encode())
        if random is not None:
            torch.save(_as_the_trainer_has_it(random), self._open(_random_name()))
        for file in self._files:
            file.flush()

    def remove(self) -> None:
        """Remove the folder and the memory behind it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for file in self._files:
            file.close()

    def _open(self, name: str) -> BinaryIO:
        file = cast(BinaryIO, os.fdopen(os.memfd_create(name), "wb"))
        self._files.append(file)
        os.symlink(f"/proc/{os.getpid()}/fd/{file.fileno()}", os.path.join(self.folder, name))
        return file


def _dump(state: TrainerState, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the Trainer would write to a checkpoint, but for the model's configuration."""
    optimizer, scheduler = more["optimizer"], more["lr_scheduler"]
    scaler = getattr(optimizer, "scaler", None)
    return {
        "model": more["model"].state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": None if scaler is None else scaler.state_dict(),
        "trainer": json.dumps(asdict(state), default=float),
    }


def _reason_against(args: Any, model: Any) -> str | None:
    if getattr(args, "fsdp", None) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        return "with FSDP"
    if getattr(args, "deepspeed", None) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        return "with DeepSpeed"
    return "of a model of PEFT" if getattr(model, "peft_config", None) else None


def _random_name() -> str:
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    return "rng_state.pth" if is_alone else f"rng_state_{int(os.environ['RANK'])}.pth"


def _as_the_trainer_has_it(random: Mapping[str, Any]) -> dict[str, Any]:
    found = {"python": random["python"], "numpy": random["numpy"], "cpu": random["torch"]}
    if "cuda" in random:
        is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        found["cuda"] = random["cuda"][torch.cuda.current_device()] if is_alone else random["cuda"]
    return found
