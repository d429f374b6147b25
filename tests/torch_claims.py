"""What rows of docs/reference/torch-elastic.md claim, and the test that shows each claim to be true."""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """A claim of the row of one name of torch.

    `section` is the row's heading and `torch` a name in it; `says` stands in the row; `test` is a file and a function.
    """

    section: str
    torch: str
    says: str
    test: str


_AGENT, _LOCAL, _LAUNCHER = "agent/server/api.py", "agent/server/local_elastic_agent.py", "launcher/api.py"
_OPTIONS, _VARIABLES = "Options of torchrun", "Environment variables"
_PLANS = "tests/cli/test_run.py::test_an_option_of_torchrun_makes_the_plan_that_it_means"
_REFUSED = "tests/cli/test_run.py::test_a_value_of_torchrun_that_means_nothing_here_is_refused"
_ONE_GPU = (
    "tests/integration/test_local_binding.py::test_with_virtual_local_rank_each_worker_sees_one_gpu_as_local_rank_0"
)
_STOPS = "tests/integration/test_local_stops.py::test_a_signal_to_an_agent_stops_the_run_with_grace"
_UNHEALTHY = (
    "tests/agent/records/test_telemetry.py"
    "::test_a_group_is_unhealthy_from_its_first_failure_until_its_workers_have_stopped"
)

CLAIMS = (
    Claim(
        _AGENT,
        "WorkerSpec.numa_options",
        "`cores` its `exclusive`; without GPUs too",
        "tests/integration/test_local_binding.py::test_the_kernel_keeps_each_worker_on_cores_of_its_own",
    ),
    Claim(
        _AGENT, "WorkerSpec.virtual_local_rank", "The same values of `LOCAL_RANK` and `CUDA_VISIBLE_DEVICES`.", _ONE_GPU
    ),
    Claim(
        _AGENT,
        "WorkerState.UNHEALTHY",
        "From a worker's failure until the others of its node have stopped.",
        _UNHEALTHY,
    ),
    Claim(
        _AGENT,
        "SimpleElasticAgent._exit_barrier()",
        "A time-out ends the run with 9",
        "tests/membership/test_roles.py::test_the_wait_for_the_last_ranks_is_bounded_by_exit_timeout",
    ),
    Claim(
        _AGENT,
        "SimpleElasticAgent._exit_barrier()",
        "`elastic.after_exit_timeout: succeed` makes it a success here too",
        "tests/integration/test_local_entrypoints.py"
        "::test_a_run_succeeds_without_the_rank_that_outlasts_exit_timeout_if_it_is_to",
    ),
    Claim(
        _LOCAL, "LocalElasticAgent._set_local_rank_env(worker_env, local_rank, spec)", "stays as Slurm set it", _ONE_GPU
    ),
    Claim(
        "rendezvous/api.py",
        "RendezvousTimeoutError",
        "Names each missing node and why",
        "tests/api/test_result.py::test_a_run_that_missed_nodes_raises_a_rendezvous_time_out_with_each_of_them",
    ),
    Claim(
        _LAUNCHER,
        "elastic_launch",
        "runs a function on every rank, and `result()` has its values",
        "tests/integration/test_local_python_door.py"
        "::test_a_function_trains_with_torch_through_a_crash_and_its_values_come_back",
    ),
    Claim(_OPTIONS, "--numa-binding", "`node` is `numa`, `exclusive` is `cores`.", _PLANS),
    Claim(_OPTIONS, "--numa-binding", "`socket` and `core-complex` are refused", _REFUSED),
    Claim(_OPTIONS, "--signals-to-handle", "TERM, INT, HUP and QUIT stop the run with grace", _STOPS),
    Claim(_OPTIONS, "--signals-to-handle", "USR1 and USR2 are refused", _REFUSED),
    Claim(
        _OPTIONS,
        "--nproc-per-node",
        "as torchrun counts them",
        "tests/cli/test_nproc.py::test_words_are_counted_as_by_torchrun",
    ),
    Claim(
        _OPTIONS,
        "--standalone",
        "This machine as one node, also inside an allocation",
        "tests/cli/test_run.py::test_standalone_is_this_machine_and_one_node_also_inside_an_allocation",
    ),
    Claim(
        _OPTIONS,
        "--standalone",
        "It starts where the machine's own name does not resolve, too",
        "tests/integration/test_local_names.py::test_run_standalone_starts_where_torchruns_waits_for_the_machines_name",
    ),
    Claim(_OPTIONS, "--rdzv-id", "The run's name, as `--name`.", _PLANS),
    Claim(_OPTIONS, "--start-method", "`fork` and `forkserver` are both `fork`.", _PLANS),
    Claim(
        _OPTIONS,
        "--shutdown-timeout",
        "Sets both.",
        "tests/cli/test_run.py::test_torchruns_shutdown_timeout_is_both_times_between_term_and_kill",
    ),
    Claim(
        _OPTIONS,
        "--log-dir",
        "is made in it with a name of its own",
        "tests/cli/test_run.py::test_the_run_directory_is_made_in_torchruns_log_dir_with_a_name_of_its_own",
    ),
    Claim(
        _VARIABLES,
        "TORCHELASTIC_RUN_ID",
        "The run's id",
        "tests/agent/node/test_environment.py::test_a_worker_sees_all_that_torchrun_sets_and_ours",
    ),
    Claim(_VARIABLES, "CUDA_VISIBLE_DEVICES", "with the key a worker has its own GPU of that list", _ONE_GPU),
    Claim(_VARIABLES, "TORCHELASTIC_SIGNALS_TO_HANDLE", "TERM, INT, HUP and QUIT stop a run.", _STOPS),
)
