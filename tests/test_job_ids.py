from __future__ import annotations

import pytest

from hpc_elastic.job_ids import array_task_id, array_task_of, split_task_id


@pytest.mark.parametrize("array", ["1234", "local-17-4711", "digits-20260102-030405-0f0f", "my_sweep"])
def test_the_id_of_a_task_has_its_array_and_its_number(array: str) -> None:
    assert split_task_id(array_task_id(array, 10)) == (array, 10)
    assert array_task_of(array_task_id(array, 0)) == 0


@pytest.mark.parametrize(
    "job_id", ["1234", "local-17-4711", "1234_", "_3", "1234_03", "1234_-1", "digits_x", "1_[2-3]"]
)
def test_other_ids_are_of_no_task(job_id: str) -> None:
    assert split_task_id(job_id) is None
    assert array_task_of(job_id) is None
