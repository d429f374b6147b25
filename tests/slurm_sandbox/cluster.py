"""A sandbox with the questions that tests ask of its Slurm."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.slurm_sandbox.configuration import CONTROLLER
from tests.slurm_sandbox.processes import SandboxError
from tests.slurm_sandbox.sandbox import Sandbox, wait_until

# Slurm looks by its own clock for a node that it has set DOWN: plugged in again, one was idle after 49 and 50 s (26.05)
# and 49 s (22.05), and so long may a job be COMPLETING that has lost it.
_NODE_BACK_WITHIN_S = 60
_JOBS = ("scontrol", "show", "job", "--oneliner")


class Cluster(Sandbox):
    """The `slurm` fixture."""

    def submit(self, *arguments: str) -> str:
        """The job id of `sbatch --parsable ARGUMENTS`."""
        return self.run("sbatch", "--parsable", *arguments).stdout.strip()

    def job(self, job_id: str) -> dict[str, str]:
        """The fields of `scontrol show job`; none if Slurm does not know it."""
        shown = self.run("scontrol", "show", "job", "--oneliner", job_id, check=False).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", shown))

    def job_ids(self) -> list[str]:
        """The jobs that are pending, running or completing."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()

    def wait_for_job(self, job_id: str, *states: str, within_s: float = 60) -> dict[str, str]:
        """The fields of a job once it is in one of these states, with Slurm's full words.

        Raises:
            AssertionError: it is not in time.
        """
        wait_until(
            lambda: self.job(job_id).get("JobState") in states,
            f"job {job_id} is {' or '.join(states)}",
            within_s=within_s,
            otherwise=lambda: f"it is {self.job(job_id) or 'unknown'}; slurmctld says:\n{self.controller_log()}",
        )
        return self.job(job_id)

    @contextlib.contextmanager
    def firewall(self, machine: str, *rules: str) -> Iterator[None]:
        """Filters what comes in at a machine, by rules of nftables for IPv4: `tcp dport 7000 drop`."""
        table = "table ip sandbox"
        chain = f"{table} {{\n chain input {{\n type filter hook input priority 0;\n{chr(10).join(rules)}\n}}\n}}\n"
        self.run_on(machine, "nft", chain)
        try:
            yield
        finally:
            self.run_on(machine, "nft", f"delete {table}", check=False)

    @contextlib.contextmanager
    def partitioned(self, *groups: Sequence[str]) -> Iterator[None]:
        """Drop packets between these groups of machines, silently; a machine in no group reaches all."""
        with contextlib.ExitStack() as walls:
            for group in groups:
                others = [self.layout.address(name) for other in groups if other is not group for name in other]
                for machine in group:
                    walls.enter_context(self.firewall(machine, f"ip saddr {{ {', '.join(others)} }} drop"))
            yield

    @contextlib.contextmanager
    def configured(self, **options: object) -> Iterator[None]:
        """Runs Slurm with other values of options, whether they are in its slurm.conf or not."""
        path = Path(self.layout.slurm_conf)
        before = text = path.read_text()
        for name, value in options.items():
            text = re.sub(rf"^{name}=.*\n", "", text, flags=re.MULTILINE) + f"{name}={value}\n"
        try:
            path.write_text(text)
            self.reconfigure()
            yield
        finally:
            path.write_text(before)
            self.reconfigure()

    def reconfigure(self) -> None:
        """Has the daemons read slurm.conf again.

        Once in some hundred times slurmctld (24.11) does not come back from that, and answers nobody any more: then its
        machine is switched off and on again, and what it has written of its jobs is as old as that. While it comes back
        (24.11) it does not hear that a job has ended on a node, which then is told a second later, or much later: so
        jobs that are ending have a moment to end.
        """
        with contextlib.suppress(AssertionError):
            wait_until(lambda: "COMPLETING" not in self._states(check=False), "no job is just ending", within_s=5)
        if self.run("scontrol", "reconfigure", check=False).returncode == 0:
            return
        if self.run("squeue", check=False).returncode:
            self.kill(CONTROLLER)
            self.boot(CONTROLLER)
        self.run("squeue")

    @contextlib.contextmanager
    def mounted(self, machine: str, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Iterator[None]:
        """Lets a machine see one file or folder in another one's place; a folder read-only."""
        options = "bind,ro" if os.path.isdir(source) else "bind"
        self.run_on(machine, "mount", "-o", options, os.fspath(source), os.fspath(target))
        try:
            yield
        finally:
            self.run_on(machine, "umount", "--lazy", os.fspath(target), check=False)

    def end_slurmctld(self) -> None:
        """Ends slurmctld as its service would: it writes its state; the controller stays on, and refuses connections.

        By its process id, for one that was told to reconfigure has another name (23.11).
        """
        pid_file = f"--pidfile={self.layout.path('slurmctld.pid')}"
        self.run_on(CONTROLLER, "pkill", pid_file)
        wait_until(lambda: not self.run_on(CONTROLLER, "pgrep", pid_file, check=False), "slurmctld has ended")

    @contextlib.contextmanager
    def frozen_slurmctld(self) -> Iterator[None]:
        """Stop slurmctld during the block: connections are accepted, and nothing is answered."""
        pid_file = f"--pidfile={self.layout.path('slurmctld.pid')}"
        self.run_on(CONTROLLER, "pkill", "-STOP", pid_file)
        try:
            yield
        finally:
            self.run_on(CONTROLLER, "pkill", "-CONT", pid_file)

    @contextlib.contextmanager
    def frozen_slurmd(self, node: str) -> Iterator[None]:
        """The same with the slurmd of a node: what Slurm has to end there goes on.

        One that was told to reconfigure starts its successor as a child, ends when that is ready, and is in the pid
        file until that has written its own (23.11): none is frozen that is being replaced.
        """
        pid_file = f"--pidfile={self.layout.path(f'slurmd.{node}.pid')}"

        def is_frozen() -> bool:
            found = self.run_on(node, "pgrep", pid_file, check=False).strip()
            if not found:
                return False
            self.run_on(node, "kill", "-STOP", found, check=False)
            stopped = self.run_on(node, "pgrep", "--runstates", "T", pid_file, check=False).strip()
            is_replaced = stopped != found or bool(self.run_on(node, "pgrep", "--parent", found, check=False).strip())
            if is_replaced:  # it may go on, and end
                self.run_on(node, "kill", "-CONT", found, check=False)
            return not is_replaced

        wait_until(is_frozen, f"slurmd of {node} stands still")
        try:
            yield
        finally:
            self.run_on(node, "pkill", "-CONT", pid_file)

    def report(self) -> str:
        """What Slurm says of its jobs and nodes, and the ends of its daemons' logs, for a failed test.

        The last test of a process is reported when its Slurm is gone already.
        """
        if not os.path.isdir(self.layout.logs):
            return "it is down, and its logs are gone"
        asked = [self.run(*command, check=False).stdout for command in (_JOBS, ("sinfo", "-N", "-p", "batch", "-l"))]
        told = [f"--- slurmctld\n{self.controller_log(60)}"]
        told += [f"--- slurmd of {node}\n{self.daemon_log(f'slurmd.{node}', 15)}" for node in self.nodes]
        return "\n".join(asked + told)

    def leftovers(self, *, within_s: float) -> list[str]:
        """The jobs that do not end by themselves; afterwards there are none, and every node is idle again.

        A node that Slurm has set DOWN is resumed first: it is asked again at once then, and else up to 50 s after its
        cable is back, and as long a job that lost it may be COMPLETING (all releases).

        Raises:
            AssertionError: a node does not come back.
        """
        self.mend()
        self._resume_nodes()
        try:
            wait_until(lambda: not self._jobs_that_go_on(), "no job goes on", within_s=within_s)
            wait_until(lambda: not self.job_ids(), "no job is left", within_s=max(within_s, _NODE_BACK_WITHIN_S))
            left = []
        except AssertionError:
            left = self.run("squeue", "--noheader", "--format=%i %T %j").stdout.splitlines()
            self.run("scancel", "--user=root")
        self._resume_nodes()
        self.wait_until_idle(within_s=2 * _NODE_BACK_WITHIN_S)
        return left

    def _jobs_that_go_on(self) -> list[str]:
        """The jobs that nobody is ending; one that is completing waits for its nodes to say that they are done."""
        return [state for state in self._states() if state != "COMPLETING"]

    def _states(self, *, check: bool = True) -> list[str]:
        return self.run("squeue", "--noheader", "--format=%T", check=check).stdout.splitlines()

    def _resume_nodes(self) -> None:
        """Resume the nodes that Slurm has given up, which else wait for their next registration."""
        for node, state in self.node_states().items():
            if state.startswith(("down", "drain", "fail")):
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)


__all__ = ["Cluster", "SandboxError", "wait_until"]
