"""torch.distributed.checkpoint, whose saves a stop because of another rank's failure does not cut short."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch.distributed.checkpoint as dcp

from hpc_elastic.worker.saves import saving


def save(state_dict: dict[str, Any], **options: Any) -> Any:
    """Save as `torch.distributed.checkpoint.save` does, with its arguments, within `saving()`."""
    with saving():
        return dcp.save(state_dict, **options)


def async_save(state_dict: dict[str, Any], **options: Any) -> Any:
    """Save as `torch.distributed.checkpoint.async_save` does; this rank is saving until the upload is done.

    Returns:
        What torch returns: a future, or with a stager of its own a response with two.
    """
    block = saving()
    block.__enter__()
    try:
        response = dcp.async_save(state_dict, **options)
    except BaseException:
        block.__exit__(None, None, None)
        raise
    upload: Future[Any] = getattr(response, "upload_completion", response)
    upload.add_done_callback(lambda _: block.__exit__(None, None, None))
    return response
