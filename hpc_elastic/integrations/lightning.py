"""A callback for PyTorch Lightning: heartbeats, a checkpoint at a notice, and saves that are not cut short."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from hpc_elastic.worker.heartbeat_writer import heartbeat
from hpc_elastic.worker.notices import Notice, notice_received
from hpc_elastic.worker.saves import saving


class LightningCallback(Callback):  # type: ignore[misc, unused-ignore]  # it is not installed where mypy runs
    """Beats at every batch; at a notice it saves, on all ranks at the same batch, and ends the training.

    Args:
        save_to: the checkpoint's path; None: nothing is saved at a notice.

    Attributes:
        notice: the notice for which the training has ended, None if there was none. Let the script exit with 75 then.
    """

    def __init__(self, save_to: str | None = None) -> None:
        self.save_to = save_to
        self.notice: Notice | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Have every checkpoint of the trainer's strategy written within `saving()`."""
        strategy: Any = trainer.strategy
        if not getattr(strategy.save_checkpoint, "is_within_saving", False):
            strategy.save_checkpoint = _within_saving(strategy.save_checkpoint)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Beat, and ask for a notice."""
        heartbeat(trainer.global_step)
        notice = notice_received()
        if notice is None or self.notice is not None:
            return
        self.notice = notice
        if self.save_to is not None:
            trainer.save_checkpoint(self.save_to)
        trainer.should_stop = True


def _within_saving(save: Any) -> Any:
    def save_checkpoint(*arguments: Any, **options: Any) -> Any:
        with saving():
            return save(*arguments, **options)

    save_checkpoint.is_within_saving = True  # type: ignore[attr-defined]
    return save_checkpoint
