"""Defines every file name below a run directory; no other module of the package spells one."""

from __future__ import annotations

import os

from hpc_elastic.job_ids import is_local

DEFAULT_ROOT = "hpc-elastic-runs"  # of runs: below the working directory, where the site names no other place


class RunLayout:
    """The paths of one run, as absolute strings; the class makes and reads no file."""

    __slots__ = ("root",)

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))

    def __repr__(self) -> str:
        return f"RunLayout({self.root!r})"

    # Files of the submission.

    def here(self, path: str, run_dir: str) -> str:
        """Return where a file is now of which a record has the path, if the run directory was `run_dir` then."""
        is_inside = run_dir not in ("", self.root) and path.startswith(f"{run_dir}{os.sep}")
        return f"{self.root}{path[len(run_dir) :]}" if is_inside else path

    @property
    def job_yaml(self) -> str:
        """The job file as the user wrote it."""
        return f"{self.root}/job.yaml"

    @property
    def plan(self) -> str:
        """The launch plan."""
        return f"{self.root}/plan.json"

    @property
    def script(self) -> str:
        """The rendered batch script."""
        return f"{self.root}/job.sh"

    @property
    def submission(self) -> str:
        """The file of the Submission record."""
        return f"{self.root}/submission.json"

    @property
    def function(self) -> str:
        """The function that the workers call and its arguments (`rundir.function_file`), in runs of a function only."""
        return f"{self.root}/function.pkl"

    @property
    def secret(self) -> str:
        """The secret with which connections are authenticated: 32 random bytes, mode 0600."""
        return f"{self.root}/secret"

    @property
    def requests(self) -> str:
        """The file of Request records, one on each line: what people ask of the running agents.

        It exists from the submission on. The head reads it again and again, and NFS answers an
        open of a file that exists with what is in it now, but may hide a new name for 30 s.
        """
        return f"{self.root}/requests.jsonl"

    # Files that the run writes.

    @property
    def result(self) -> str:
        """The RunResultRecord; the run is over once it is there."""
        return f"{self.root}/result.json"

    @property
    def exit_code(self) -> str:
        """The run's exit code, one line for the shell."""
        return f"{self.root}/exit_code"

    @property
    def budget(self) -> str:
        """The spend of the latest claim, for people."""
        return f"{self.root}/budget.json"

    @property
    def allocations(self) -> str:
        """The folder of the AllocationClaim records."""
        return f"{self.root}/allocations"

    def allocation(self, number: int) -> str:
        """Return the claim of allocation 1, 2, 3 ..."""
        return f"{self.allocations}/{number:04d}.json"

    @property
    def agents(self) -> str:
        """The folder of the agents' output."""
        return f"{self.root}/agents"

    @property
    def launch_agent(self) -> str:
        """The file with the process id of the agent on srun's own machine, and its start in clock ticks since boot."""
        return f"{self.agents}/launch_agent"

    def agent_output(self, node: str) -> str:
        """Return the file of a node's agent output and teed ranks; `node` is `%N` for Slurm's pattern."""
        return f"{self.agents}/{node}.out"

    def script_output(self, job_id: str) -> str:
        """Return the path of the batch script's output; `job_id` is `%j` for Slurm's pattern."""
        name = job_id if is_local(job_id) else f"slurm-{job_id}"
        return f"{self.root}/{name}.out"

    @property
    def nodes(self) -> str:
        """The folder that has a folder for each node."""
        return f"{self.root}/nodes"

    def health_probe(self, node: str) -> str:
        """Return the file that a node's health check writes, reads back and removes."""
        return f"{self.root}/.health-{node}"

    def events(self, node: str) -> str:
        """Return the file of one node's Event records, one on each line; only its agent writes them."""
        return f"{self.nodes}/{node}/events.jsonl"

    def metrics(self, node: str) -> str:
        """Return the file of one node's MetricData records, one on each line; only its agent writes them."""
        return f"{self.nodes}/{node}/metrics.jsonl"

    def samples(self, node: str) -> str:
        """Return the file of one node's Sample records, one on each line; only its agent writes them."""
        return f"{self.nodes}/{node}/samples.jsonl"

    @property
    def snapshot(self) -> str:
        """The copy of the code that workers run from, if the job asks for one and is no task of an array."""
        return f"{self.root}/snapshot"

    @property
    def memory(self) -> str:
        """The folder with a folder for each attempt after which training states were written from memory."""
        return f"{self.root}/memory"

    def kept_states(self, attempt: int) -> str:
        """Return the folder of the states that were written when this attempt, the last of its allocation, was over."""
        return f"{self.memory}/{attempt:04d}"

    def kept_state(self, attempt: int, name: str) -> str:
        """Return the file with a state, in safetensors' format; `name` as `kept_of_rank` and `kept_of_all` have it."""
        return f"{self.kept_states(attempt)}/{name}.state"

    def kept_record(self, attempt: int, name: str) -> str:
        """Return the KeptRecord of a state, which is written when that is complete."""
        return f"{self.kept_states(attempt)}/{name}.json"

    def elsewhere(self, attempt: int, step: int) -> str:
        """Return the SaveManifest of another run's state of this step, as it was when this run began with it."""
        return f"{self.kept_states(attempt)}/elsewhere-{step}.json"

    @property
    def saves(self) -> str:
        """The folder with a folder for each state that a person had written, which a manifest makes complete."""
        return f"{self.memory}/saved"

    @staticmethod
    def state_in(folder: str, name: str) -> str:
        """Return the file with a state in a folder of states."""
        return f"{folder}/{name}.state"

    @staticmethod
    def record_in(folder: str, name: str) -> str:
        """Return the KeptRecord of a state in a folder of states."""
        return f"{folder}/{name}.json"

    def saved_states(self, name: str) -> str:
        """Return the folder of the state of one request, `name`."""
        return f"{self.saves}/{name}"

    def save_manifest(self, name: str) -> str:
        """Return the SaveManifest of the state of one request, which is written last."""
        return f"{self.saved_states(name)}/manifest.json"

    @staticmethod
    def kept_of_rank(rank: int) -> str:
        """Return the name of the files of one rank's state."""
        return f"{rank:05d}"

    @staticmethod
    def kept_of_all(role: str) -> str:
        """Return the name of the files of a state that is the same on all ranks of a role."""
        return f"all-{role}"

    def rendezvous(self, node: str) -> str:
        """Return the RendezvousRecord of a node that has not found the head."""
        return f"{self.nodes}/{node}/rendezvous.json"

    def left(self, node: str) -> str:
        """Return the file that exists once a node's torchrun has seen the end of the run."""
        return f"{self.nodes}/{node}/left"

    @property
    def attempts(self) -> str:
        """The folder that has a folder for each attempt."""
        return f"{self.root}/attempts"

    def attempt(self, attempt: int) -> str:
        """Return the folder of attempt 1, 2, 3 ..."""
        return f"{self.attempts}/{attempt:04d}"

    def claim(self, attempt: int) -> str:
        """Return the AttemptClaim record."""
        return f"{self.attempt(attempt)}/claim.json"

    def world(self, attempt: int) -> str:
        """Return the file of the World record, the attempt's roster."""
        return f"{self.attempt(attempt)}/world.json"

    def head_presence(self, attempt: int) -> str:
        """Return the HeadPresence record, there once the attempt's head has lost nodes that may live."""
        return f"{self.attempt(attempt)}/head.json"

    def proposed_world(self, attempt: int, node: str) -> str:
        """Return the roster file of a head on this node; it becomes `world` once the head has the attempt's claim."""
        return f"{self.attempt(attempt)}/.world.{node}.json"

    def node_result(self, attempt: int, node: str) -> str:
        """Return the NodeResult record of one node."""
        return f"{self.attempt(attempt)}/nodes/{node}.json"

    def filtered_stdout(self, attempt: int, node: str) -> str:
        """Return the teed lines of a node's standard outputs that `logs.duplicate_stdout_filters` asks for."""
        return f"{self.attempt(attempt)}/nodes/{node}.filtered_stdout.log"

    def filtered_stderr(self, attempt: int, node: str) -> str:
        """Return the teed lines of a node's standard errors that `logs.duplicate_stderr_filters` asks for."""
        return f"{self.attempt(attempt)}/nodes/{node}.filtered_stderr.log"

    def node_log(self, attempt: int, node: str) -> str:
        """Return the output of all ranks of a node, with `logs.per: node`; `rundir.node_log` has its format."""
        return f"{self.attempt(attempt)}/nodes/{node}.log"

    def log_marks(self, attempt: int, node: str) -> str:
        """Return the file of LogMark records about the logs of a node's ranks, one on each line."""
        return f"{self.attempt(attempt)}/nodes/{node}.marks.jsonl"

    def ranks(self, attempt: int) -> str:
        """Return the folder that has a folder for each global rank."""
        return f"{self.attempt(attempt)}/ranks"

    def rank(self, attempt: int, rank: int) -> str:
        """Return the folder of one global rank."""
        return f"{self.ranks(attempt)}/{rank:05d}"

    def stdout(self, attempt: int, rank: int) -> str:
        """Return a rank's standard output."""
        return f"{self.rank(attempt, rank)}/stdout.log"

    def stderr(self, attempt: int, rank: int) -> str:
        """Return a rank's standard error."""
        return f"{self.rank(attempt, rank)}/stderr.log"

    def stack(self, attempt: int, rank: int) -> str:
        """Return the file with a rank's Python stacks, as they were when they were last taken."""
        return f"{self.rank(attempt, rank)}/stack.txt"

    def flight_record(self, attempt: int, rank: int) -> str:
        """Return the file with what torch's flight recorder knew of a rank's collectives, if the job has one."""
        return f"{self.rank(attempt, rank)}/collectives.json"

    @staticmethod
    def earlier(log: str) -> str:
        """Return the file with the earlier part of a log, which exists only if the log was cut for its size."""
        return f"{log}.1"

    def return_value(self, attempt: int, rank: int) -> str:
        """Return the file with the pickled return value of a function on a rank."""
        return f"{self.rank(attempt, rank)}/return_value.pkl"

    def submitit_result(self, attempt: int, rank: int) -> str:
        """Return the file where submitit's worker, if it runs, pickles what a rank's function returned or raised."""
        return f"{self.rank(attempt, rank)}/submitit_result.pkl"

    def relative(self, path: str) -> str:
        """Return a path relative to the run directory, as records name it."""
        return os.path.relpath(path, self.root)

    def error(self, attempt: int, rank: int) -> str:
        """Return a failed rank's error file, in torch's format and more."""
        return f"{self.rank(attempt, rank)}/error.json"

    def other_error(self, attempt: int, rank: int) -> str:
        """Return what was found at the path of a rank's error file and is not its own: a child's, or no error file."""
        return f"{self.rank(attempt, rank)}/error.other.json"


class ArrayLayout:
    """The paths of an array of runs, as absolute strings; the class makes and reads no file."""

    __slots__ = ("root",)

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))

    def __repr__(self) -> str:
        return f"ArrayLayout({self.root!r})"

    @property
    def record(self) -> str:
        """The ArraySubmission record."""
        return f"{self.root}/array.json"

    @property
    def job_yaml(self) -> str:
        """The job file as the user wrote it."""
        return f"{self.root}/job.yaml"

    @property
    def script(self) -> str:
        """The script that the scheduler starts for each task; it continues with the task's own script."""
        return f"{self.root}/job.sh"

    @property
    def snapshot(self) -> str:
        """The copy of the code that the workers of all tasks run from, if the job asks for one."""
        return f"{self.root}/snapshot"

    def task(self, number: int) -> RunLayout:
        """Return the paths of the run of task 0, 1, 2 ..."""
        return RunLayout(os.path.join(self.root, str(number)))
