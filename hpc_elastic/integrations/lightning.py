"""A callback for PyTorch Lightning: heartbeats, a checkpoint at a notice, whole saves, and states kept in memory."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from hpc_elastic import memory
from hpc_elastic.integrations.step_states import StepStates
from hpc_elastic.worker.heartbeat_writer import heartbeat
from hpc_elastic.worker.notices import Notice, notice_received
from hpc_elastic.worker.saves import saving

# What Lightning adds to a checkpoint for `load_from_checkpoint`: a training goes on without, and it may be anything.
_FOR_OTHER_LOADS = (
    "hparams_name",
    "hyper_parameters",
    "hparams_type",
    "datamodule_hparams_name",
    "datamodule_hyper_parameters",
    "datamodule_hparams_type",
)


class LightningCallback(Callback):  # type: ignore[misc, unused-ignore]  # it is not installed where mypy runs
    """Beats at every batch; at a notice it saves, on all ranks at the same batch, and ends the training.

    Args:
        save_to: the checkpoint's path; None: nothing is saved at a notice.
        keep_every: after how many steps the state of the training is kept in memory; None: never. Only where the
            strategy is DDP or has one device.
        replicated: whether one rank a node keeps it for all; else each keeps its own, with its own random state.

    Attributes:
        notice: the notice for which the training has ended, None if there was none. Let the script exit with 75 then.
    """

    def __init__(self, save_to: str | None = None, keep_every: int | None = None, *, replicated: bool = True) -> None:
        self.save_to = save_to
        self.notice: Notice | None = None
        self._has_beaten = False
        self._held: dict[str, Any] | None = None
        self._states = StepStates("lightning", keep_every, replicated=replicated)
        self._found: Any = None
        self._name: str | None = None

    def resume_from(self, otherwise: str | None = None) -> str | None:
        """Return the `ckpt_path` for `fit`: a name for the state in memory if there is one, else what was given."""
        self._found, step = self._states.load()
        if self._found is None:
            return otherwise
        self._name = f"hpc-elastic-memory/step={step}"
        return self._name

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Have every checkpoint written within `saving()`, and the state in memory loaded from there.

        Raises:
            TypeError: the strategy shards the state, and one that is not sharded is to be loaded from memory.
        """
        strategy: Any = trainer.strategy
        saver: Any
        for saver in (trainer, strategy):  # the Trainer's has the barrier in which the others wait for who writes
            if not getattr(saver.save_checkpoint, "is_within_saving", False):
                saver.save_checkpoint = _within_saving(saver.save_checkpoint)
        # A step is kept when its checkpoints are written, which Lightning has its own callbacks do last.
        trainer.callbacks = [each for each in trainer.callbacks if each is not self] + [self]
        if not isinstance(strategy, (DDPStrategy, SingleDeviceStrategy)):
            self._states.stop(f"no state is kept with {type(strategy).__name__}, only with DDP and on one device")
            if self._found is not None:
                raise TypeError(f"{self._name}: {type(strategy).__name__} cannot load it, only DDP and one device can")
        if self._found is not None:
            load = strategy.load_checkpoint

            def load_checkpoint(path: Any, *arguments: Any, **options: Any) -> Any:
                return self._found if path == self._name else load(path, *arguments, **options)

            strategy.load_checkpoint = load_checkpoint

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Go on with the random numbers of the state that was loaded from memory."""
        self._states.begin(trainer.global_step)
        random, found, self._found = self._states.random_state(), self._found, None
        if found is not None and random is not None:
            memory.set_random_state(random)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Beat, keep the state if it is due, and ask for a notice."""
        heartbeat(trainer.global_step)
        self._has_beaten = True
        self._held = None
        if not _has_more_to_do(trainer):
            self._states.save(trainer.global_step, lambda: _dump(trainer))
        elif self._states.is_due(trainer.global_step):
            self._held = _dump(trainer)
        notice = notice_received()
        if notice is None or self.notice is not None:
            return
        self.notice = notice
        if self.save_to is not None:
            trainer.save_checkpoint(self.save_to)
        # Lightning heeds `should_stop` only behind these; the next start has a Trainer of its own.
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Keep the state behind a validation in the middle of an epoch."""
        if self._held is not None and not trainer.fit_loop.epoch_loop._is_training_done:
            self._keep_held(trainer)

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Keep the state with which the epoch before has ended."""
        self._keep_held(trainer)

    def _keep_held(self, trainer: Trainer) -> None:
        """Keep the state of the latest step, now that the validation and the checkpoints behind it are done.

        A failure in these goes on before the step, and does them again: behind it Lightning would pass them over, and
        end with success without the last checkpoint.
        """
        held, self._held = self._held, None
        if held is not None:
            self._states.save(trainer.global_step, lambda: {**held, "callbacks": _dump(trainer)["callbacks"]})

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Beat, but for a validation before the training, whose first step has a bound of its own."""
        if self._has_beaten:
            heartbeat()


def _has_more_to_do(trainer: Any) -> bool:
    """Return whether Lightning validates or ends the epoch behind this batch; it has no public word for that."""
    loop = trainer.fit_loop.epoch_loop
    return bool(loop._is_training_done or loop._should_check_val_fx(trainer.fit_loop._data_fetcher))


def _dump(trainer: Any) -> dict[str, Any]:
    """Return what Lightning would write to a checkpoint; its public `save_checkpoint` also waits for all ranks."""
    checkpoint: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return {name: value for name, value in checkpoint.items() if name not in _FOR_OTHER_LOADS}


def _within_saving(save: Any) -> Any:
    def save_checkpoint(*arguments: Any, **options: Any) -> Any:
        with saving():
            return save(*arguments, **options)

    save_checkpoint.is_within_saving = True  # type: ignore[attr-defined]
    return save_checkpoint
