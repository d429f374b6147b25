from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.errors import JobError, SiteError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.plan.launch_plan import LaunchPlan, NetworkPlan, SnapshotPlan, StatePlan, dump_plan, parse_plan
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.plan.std_streams import NO_STREAMS, LocalStreams, Std
from hpc_elastic.render.values import template_values
from hpc_elastic.resolve.launch_plan import SubmissionContext, resolve_plan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.site.parse import parse_site

GOLDEN = Path(__file__).parent / "golden"
SITE_HEAD = "name: here\ncontact: me\nlast_checked: 2026-11-20\nscheduler: slurm\n"
CONTEXT = SubmissionContext(
    run="digits-20261120-120000-0a1b",
    run_dir="/scratch/runs/digits-20261120-120000-0a1b",
    job_dir="/home/ada/digits",
    created="2026-11-20T12:00:00Z",
    interpreter="/opt/python/bin/python3",
    package_dir="/opt/python/lib/python3.11/site-packages/hpc_elastic",
    package_version="0.1.0",
)


def resolve(job: str = "", site: str = "", *, context: SubmissionContext = CONTEXT) -> LaunchPlan:
    spec = parse_job(f"entrypoint: {{script: train.py}}\n{job}", file="digits.yaml")
    return resolve_plan(spec, parse_site(SITE_HEAD + site, path="here.yaml"), context)


def test_states_in_memory_are_limited_written_and_taken_from_another_run_as_the_job_says() -> None:
    assert resolve().state == StatePlan(limit_percent=40, flush=("requeue", "failure", "cancel"), load_from=None)
    job = "state: {limit: 25 %, flush: [requeue], load_from: ../runs/before}"
    state = StatePlan(limit_percent=25, flush=("requeue",), load_from="/home/ada/runs/before")
    assert resolve(job).state == state
    assert resolve("state: {replicas: 1, rate: 64M}").state == StatePlan(replicas=1, rate=64 * 1024**2)
    racks = resolve(site="failure_domains: ['a[1-4]', 'a[5-8]']\ndefaults: {state: {replicas: 1}}\n").state
    assert racks == StatePlan(replicas=1, domains=("a[1-4]", "a[5-8]"))
    switches = resolve(site="failure_domains: topology\ndefaults: {state: {replicas: 1}}\n").state
    assert switches == StatePlan(replicas=1, is_by_switch=True)
    site = "defaults: {state: {limit: 10%, flush: []}}\n"
    assert resolve(site=site).state == StatePlan(limit_percent=10, flush=())


@pytest.mark.parametrize("domains", ["racks", "{a: 1}", "3"])
def test_failure_domains_that_are_neither_lists_nor_the_topology_are_refused(domains: str) -> None:
    with pytest.raises(SiteError, match=r"failure_domains: expected a list"):
        resolve(site=f"failure_domains: {domains}\n")


@pytest.mark.parametrize("limit", ["40", "0%", "101%", "40.5%", "-1%", "a%", "true", "[40%]"])
def test_a_limit_that_is_no_share_is_refused(limit: str) -> None:
    with pytest.raises(JobError, match=r"state\.limit: expected a share"):
        resolve(f"state: {{limit: {limit}}}")


@pytest.mark.parametrize("rate", ["500", "100K", "-1M", "fast", "0"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(JobError, match=r"state\.rate: expected (a size|at least 1M)"):
        resolve(f"state: {{rate: {rate}}}")


@pytest.mark.parametrize("replicas", ["2", "-1", "true", "one"])
def test_more_than_one_copy_is_refused(replicas: str) -> None:
    with pytest.raises(JobError, match=r"state\.replicas: expected "):
        resolve(f"state: {{replicas: {replicas}}}")


@pytest.mark.parametrize("name", ["defaults", "everything", "roles"])
def test_the_plan_is_the_golden_one(name: str) -> None:
    site = parse_site((GOLDEN / name / "here.yaml").read_text(), path="here.yaml")
    job = parse_job((GOLDEN / name / "job.yaml").read_text(), file="digits.yaml")
    plan = resolve_plan(job, site, CONTEXT)
    golden = GOLDEN / name / "plan.json"
    if os.environ.get("HPC_ELASTIC_WRITE_GOLDEN") == "1":
        golden.write_text(dump_plan(plan))
    assert dump_plan(plan) == golden.read_text(), "HPC_ELASTIC_WRITE_GOLDEN=1 writes it anew, to be read"
    assert parse_plan(dump_plan(plan)) == plan
    assert json.loads(dump_plan(plan))["format_version"] == 1


ROLES = """\
roles:
  - {name: a, entrypoint: {script: a.py}, nodes: {min: 2, max: 3}}
  - {name: b, entrypoint: {script: b.py}, nodes: 2, workers_per_node: 3, restart: ignore}
"""


def resolve_roles(job: str = "", site: str = "") -> LaunchPlan:
    spec = parse_job(ROLES + job, file="job.yaml")
    return resolve_plan(spec, parse_site(SITE_HEAD + site, path="here.yaml"), CONTEXT)


def test_the_scheduler_is_asked_for_the_nodes_of_all_roles_and_the_cpus_of_the_largest() -> None:
    plan = resolve_roles("resources: {gpus_per_node: 2, cpus_per_worker: 5}")
    assert (plan.nodes.min, plan.nodes.max) == (4, 5)
    assert [role.workers_per_node for role in plan.roles] == [2, 3]
    assert plan.resources.cpus_per_task == 15
    assert plan.resources.gpus_per_node_option == "2"
    assert resolve_roles("sbatch: {-c: 9}").resources.cpus_per_worker == 3


def test_a_sites_default_of_nodes_and_workers_is_each_roles() -> None:
    plan = resolve_roles("", "defaults: {nodes: 7, workers_per_node: 8, role: mine}")
    assert [(role.name, role.nodes.max, role.workers_per_node) for role in plan.roles] == [("a", 3, 8), ("b", 2, 3)]


def test_a_site_rejects_roles_that_exceed_it() -> None:
    with pytest.raises(JobError) as caught:
        resolve_roles("", "max_nodes: 4\ndefaults: {nodes: 4, workers_per_node: [1, 1, 1, 1]}")
    assert list(caught.value.problems) == [
        "roles[0].workers_per_node: expected at most 3 numbers, one for each node, found 4",
        "roles: expected at most 4, which is max_nodes of site here, found 5",
    ]


def test_the_job_outranks_the_site_and_the_site_outranks_us() -> None:
    site = (
        "defaults: {restart: {max_restarts: 7, no_progress_limit: 8}, log_level: debug, sbatch: {account: a, qos: b}}"
    )
    plan = resolve("restart: {max_restarts: 1}\nsbatch: {qos: c, -C: ib}", site)
    assert plan.restart.max_restarts == 1
    assert plan.restart.no_progress_limit == 8
    assert plan.restart.backoff.max_s == 60.0
    assert plan.log_level == "debug"
    assert plan.sbatch == {"account": "a", "qos": "c", "constraint": "ib"}


def test_gang_start_is_the_sites_and_the_jobs_word_wins() -> None:
    assert resolve().sbatch == {}
    assert resolve("", "wait_all_nodes: true").sbatch == {"wait-all-nodes": "1"}
    assert resolve("", "wait_all_nodes: false").sbatch == {"wait-all-nodes": "0"}
    assert resolve("sbatch: {wait-all-nodes: 0}", "wait_all_nodes: true").sbatch == {"wait-all-nodes": "0"}
    assert resolve("sbatch: {wait-all-nodes: null}", "wait_all_nodes: true").sbatch == {}


def test_null_takes_a_sites_default_away_and_leaves_ours() -> None:
    site = (
        "defaults: {sbatch: {account: a, qos: b}, env: {A: 1, B: 2}, setup: [x], log_level: debug, time: 1h,"
        " restart: {max_restarts: 7}}"
    )
    plan = resolve("sbatch: {qos: null}\nenv: {A: null}\nsetup: null\nlog_level: null\ntime:\nrestart:", site)
    assert plan.sbatch == {"account": "a"}
    assert plan.env == {"B": "2"}
    assert plan.setup == ()
    assert plan.log_level == "info"
    assert plan.time_s is None
    assert plan.restart.max_restarts == 3


def test_null_is_as_good_as_nothing_where_the_site_has_no_default() -> None:
    silent = resolve("restart: {max_restarts: null, backoff: {max: null}}\nlogs: {tee: null}\nenv: {A: null}")
    assert silent == resolve()
    assert resolve("", "defaults: {restart: {max_restarts: null}, env: {A: null}, signals: null}") == resolve()


@pytest.mark.parametrize(
    ("job", "losses"),
    [("nodes: 4", 64), ("nodes: {min: 8, max: 512}", 512), ("nodes: 512\nrestart: {max_node_losses: 0}", 0)],
)
def test_a_large_run_survives_by_default_as_many_lost_nodes_as_it_has(job: str, losses: int) -> None:
    assert resolve(job).restart.max_node_losses == losses


def test_setup_lines_of_the_site_come_first() -> None:
    assert resolve("setup: [source env]", "defaults: {setup: [module load cuda]}").setup == (
        "module load cuda",
        "source env",
    )


def test_nodes_of_the_job_are_taken_whole() -> None:
    plan = resolve("nodes: 2", "defaults: {nodes: {min: 4, max: 8}}")
    assert (plan.nodes.min, plan.nodes.max, plan.nodes.spares) == (2, 2, 0)


@pytest.mark.parametrize(
    ("time", "lead", "grace"), [("", 120, 60), ("time: 2h", 120, 60), ("time: 2m", 60, 30), ("time: 10s", 5, 2.5)]
)
def test_the_defaults_of_lead_and_grace_shrink_with_a_short_time(time: str, lead: float, grace: float) -> None:
    signals = resolve(time).signals
    assert (signals.lead_s, signals.grace_s) == (lead, grace)


@pytest.mark.parametrize(
    ("job", "workers"),
    [
        ("", 1),
        ("resources: {gpus_per_node: 4}", 4),
        ("resources: {gpus_per_node: 0}", 1),
        ("resources: {gpus_per_node: 4}\nworkers_per_node: 2", 2),
        ("nodes: 2\nworkers_per_node: [2, 1]", (2, 1)),
        ("sbatch: {gpus-per-node: 'a100:4'}", 4),
        ("sbatch: {gres: 'gpu:a100:4,lscratch:1'}", 4),
    ],
)
def test_the_workers_of_a_node(job: str, workers: object) -> None:
    assert resolve(job).roles[0].workers_per_node == workers


@pytest.mark.parametrize(
    ("request_", "job", "option", "gres"),
    [
        ("gpus_per_node", "resources: {gpus_per_node: 4}", "4", None),
        ("gpus_per_node", "resources: {gpus_per_node: 4}\nsbatch: {gres: 'lscratch:1'}", "4", "lscratch:1"),
        ("gres:gpu", "resources: {gpus_per_node: 4}", None, "gpu:4"),
        ("gres:gpu:a100", "resources: {gpus_per_node: 4}\nsbatch: {gres: 'lscratch:1'}", None, "gpu:a100:4,lscratch:1"),
        ("none", "resources: {gpus_per_node: 4}", None, None),
        ("gpus_per_node", "resources: {gpus_per_node: 0}", None, None),
        ("gres:gpu", "sbatch: {gpus-per-node: 'a100:4'}", "a100:4", None),
        ("none", "sbatch: {gres: 'gpu:4'}", None, "gpu:4"),
    ],
)
def test_gpus_are_asked_for_as_the_site_says_and_sbatch_is_verbatim(
    request_: str, job: str, option: str | None, gres: str | None
) -> None:
    plan = resolve(job, f"gpu_request: {request_}")
    assert (plan.resources.gpus_per_node_option, plan.resources.gres) == (option, gres)
    assert not {"gres", "gpus-per-node"} & set(plan.sbatch)


@pytest.mark.parametrize(
    ("request_", "job", "memory"),
    [
        ("mem", "resources: {memory_per_node: 64G}", ("64G", None, None)),
        ("none", "resources: {memory_per_node: 64G}", (None, None, None)),
        ("mem-per-cpu", "resources: {memory_per_node: 100M, cpus_per_worker: 3}", (None, "34M", None)),
        ("mem-per-cpu", "resources: {memory_per_node: 0}", ("0", None, None)),
        ("mem", "sbatch: {mem: 1000}", ("1000M", None, None)),
        ("mem", "sbatch: {mem-per-cpu: 4G}", (None, "4G", None)),
        ("none", "sbatch: {mem_per_gpu: 4G}", (None, None, "4G")),
    ],
)
def test_memory_is_asked_for_as_the_site_says_and_sbatch_is_verbatim(
    request_: str, job: str, memory: tuple[str | None, str | None, str | None]
) -> None:
    plan = resolve(job, f"memory_request: {request_}")
    resources = plan.resources
    assert (resources.memory_per_node, resources.memory_per_cpu, resources.memory_per_gpu) == memory
    assert not plan.sbatch


def test_memory_by_cpu_rejects_an_unknown_number_of_cpus() -> None:
    with pytest.raises(
        JobError, match=r"expected resources\.cpus_per_worker too, since site here asks for memory by CPU"
    ):
        resolve("resources: {memory_per_node: 64G}", "memory_request: mem-per-cpu")


@pytest.mark.parametrize(
    ("job", "cpus_per_task", "cpus_per_worker"),
    [
        ("workers_per_node: 4\nresources: {cpus_per_worker: 8}", 32, 8),
        ("nodes: 2\nworkers_per_node: [1, 3]\nresources: {cpus_per_worker: 2}", 6, 2),
        ("workers_per_node: 4\nsbatch: {-c: 30}", 30, 7),
        ("workers_per_node: 4\nsbatch: {-c: 2}", 2, 1),
        ("", None, None),
    ],
)
def test_the_one_task_of_a_node_gets_the_cpus_of_its_workers(
    job: str, cpus_per_task: int | None, cpus_per_worker: int | None
) -> None:
    resources = resolve(job).resources
    assert (resources.cpus_per_task, resources.cpus_per_worker) == (cpus_per_task, cpus_per_worker)


def test_a_resource_of_the_job_outranks_the_sites_in_any_spelling() -> None:
    site = "defaults: {sbatch: {mem: 1G, gres: 'gpu:8,lscratch:1', cpus-per-task: 64, exclusive: true}}"
    plan = resolve("resources: {memory_per_node: 2G, gpus_per_node: 2, cpus_per_worker: 3, exclusive: false}", site)
    resources = plan.resources
    assert (resources.memory_per_node, resources.gpus_per_node_option, resources.gres) == ("2G", "2", "lscratch:1")
    assert (resources.cpus_per_task, resources.exclusive) == (6, False)
    site = "defaults: {resources: {memory_per_node: 2G, gpus_per_node: 2, cpus_per_worker: 3}}"
    resources = resolve("sbatch: {mem-per-cpu: 1G, gres: 'gpu:4', -c: 8}", site).resources
    assert (resources.memory_per_node, resources.memory_per_cpu) == (None, "1G")
    assert (resources.gpus_per_node, resources.gpus_per_node_option, resources.gres) == (4, None, "gpu:4")
    assert resources.cpus_per_task == 8


def test_exclusive_without_a_value_is_ours_and_with_one_is_verbatim() -> None:
    plain, with_value = resolve("sbatch: {exclusive: true}"), resolve("sbatch: {exclusive: user}")
    assert (plain.resources.exclusive, plain.sbatch) == (True, {})
    assert (with_value.resources.exclusive, with_value.sbatch) == (False, {"exclusive": "user"})


@pytest.mark.parametrize(
    ("job", "workdir"),
    [
        ("", "/home/ada/digits"),
        ("workdir: ../other", "/home/ada/other"),
        ("workdir: /data", "/data"),
        ("workdir: a$$b", "/home/ada/digits/a$$b"),
        ("workdir: ${SCRATCH}/x", "${SCRATCH}/x"),
        ("workdir: runs/${USER}/..", "/home/ada/digits/runs/${USER}/.."),
    ],
)
def test_the_workdir_is_relative_to_the_job_file_unless_a_variable_begins_it(job: str, workdir: str) -> None:
    assert resolve(job).workdir == workdir


@pytest.mark.parametrize(
    ("job", "path"),
    [
        ("", None),
        ("metrics: {textfile: x.prom}", "/home/ada/digits/x.prom"),
        ("metrics: {textfile: '${COLLECTOR}/${SLURM_JOB_ID}.prom'}", "${COLLECTOR}/${SLURM_JOB_ID}.prom"),
        ("metrics: {textfile: '/var/lib/node_exporter/${USER}.prom'}", "/var/lib/node_exporter/${USER}.prom"),
    ],
)
def test_the_textfile_is_relative_to_the_job_file_unless_a_variable_begins_it(job: str, path: str | None) -> None:
    assert resolve(job).metrics_textfile == path


def test_a_comment_that_sbatch_gives_is_not_replaced() -> None:
    assert resolve("metrics: {comment: true}").metrics_comment
    assert not resolve("sbatch: {comment: mine}").metrics_comment
    with pytest.raises(JobError, match=r"metrics.comment: it would replace the comment that sbatch.comment gives"):
        resolve("metrics: {comment: true}\nsbatch: {comment: mine}")


def test_a_dollar_sign_in_the_job_files_folder_is_no_variable() -> None:
    assert resolve(context=replace(CONTEXT, job_dir="/home/$ada/${x}")).workdir == "/home/$$ada/$${x}"


@pytest.mark.parametrize(
    ("job", "python"),
    [
        ("", "/opt/python/bin/python3"),
        ("python: python3.12", "python3.12"),
        ("python: env/bin/python", "/home/ada/digits/env/bin/python"),
        ("python: /usr/bin/python3", "/usr/bin/python3"),
    ],
)
def test_python_is_the_submitting_one_a_name_or_a_path(job: str, python: str) -> None:
    assert resolve(job).python == python


@pytest.mark.parametrize(
    ("job", "site", "template"),
    [
        ("", "", "slurm/job.sh.j2"),
        ("", "template: here.sh.j2", "here.sh.j2"),
        ("template: mine.sh.j2", "template: here.sh.j2", "mine.sh.j2"),
    ],
)
def test_the_template_is_the_jobs_the_sites_or_the_schedulers(job: str, site: str, template: str) -> None:
    assert resolve(job, site).template == template


def test_the_network_is_the_sites() -> None:
    assert resolve().network == NetworkPlan()
    assert resolve("", "network: {interface: ib0, port_range: [30000, 30100]}").network == NetworkPlan(
        interface="ib0", port_range=(30000, 30100)
    )


def test_a_plan_rejects_what_is_beyond_the_sites_limits() -> None:
    with pytest.raises(JobError) as caught:
        resolve("nodes: 3\ntime: 2h", "max_nodes: 2\nmax_time: 1h")
    assert caught.value.problems == (
        "nodes: expected at most 2, which is max_nodes of site here, found 3",
        "time: expected at most 1h, which is max_time of site here, found 2h",
    )
    assert caught.value.tip == "the defaults and limits of site here were taken into account"


@pytest.mark.parametrize(
    ("job", "scheduler", "problem"),
    [
        ("nodes: 253", "local", "nodes: expected at most 252 on this machine, found 253"),
        ("nodes: 200\nspares: 99", "local", "nodes: expected at most 252 on this machine, found 299"),
        ("nodes: 99999999999999999999999", "local", "nodes: expected at most 252 on this machine, found 9"),
        ("nodes: 65537", "slurm", "nodes: expected at most 65536, found 65537"),
    ],
)
def test_a_plan_rejects_more_nodes_than_there_can_be(job: str, scheduler: str, problem: str) -> None:
    spec = parse_job(f"entrypoint: {{script: train.py}}\n{job}", file="digits.yaml")
    site = SITE_HEAD.replace("slurm", scheduler)
    with pytest.raises(JobError, match=problem):
        resolve_plan(spec, parse_site(site, path="here.yaml"), CONTEXT)


def test_a_job_cannot_take_away_the_time_that_its_site_limits() -> None:
    message = "time: expected at most 1h, which is max_time of site here, found null"
    with pytest.raises(JobError, match=message):
        resolve("time: null", "max_time: 1h\ndefaults: {time: 30m}")
    assert resolve("time: null", "defaults: {time: 30m}").time_s is None
    assert resolve("", "max_time: 1h").time_s is None


def test_a_plan_rejects_what_is_impossible_only_with_the_sites_defaults() -> None:
    with pytest.raises(JobError, match=r"signals\.grace: expected at most signals\.lead, whose default here is 30s"):
        resolve("signals: {grace: 40s}", "defaults: {time: 1m}")


def test_what_happens_after_exit_timeout_wants_one_of_the_job_or_of_the_site() -> None:
    succeed = "elastic: {after_exit_timeout: succeed}"
    with pytest.raises(JobError, match=r"^elastic\.after_exit_timeout: expected elastic\.exit_timeout beside it"):
        resolve(succeed)
    plan = resolve(succeed, "defaults: {elastic: {exit_timeout: 1m}}").elastic
    assert (plan.exit_timeout_s, plan.after_exit_timeout) == (60.0, "succeed")
    assert resolve().elastic.after_exit_timeout == "fail"


def test_a_list_under_tee_is_of_global_ranks_and_anything_else_of_local_ones() -> None:
    ranks, local = resolve("logs: {tee: [0, 4]}").logs, resolve("logs: {tee: '0:3,1:2'}").logs
    assert (ranks.tee_ranks, ranks.tee) == ((0, 4), NO_STREAMS)
    assert (local.tee_ranks, local.tee) == ((), LocalStreams(by_local_rank={0: Std.ALL, 1: Std.ERR}))
    assert resolve("logs: {tee: none}", "defaults: {logs: {tee: [3]}}").logs.tee_ranks == ()
    assert resolve("logs: {tee: {1: out}}", "defaults: {logs: {tee: {0: both}}}").logs.tee.by_local_rank == {1: Std.OUT}
    plan = resolve("logs: {redirects: {0: err}, tee: '1:out'}")
    assert parse_plan(dump_plan(plan)) == plan


@pytest.mark.parametrize(
    ("job", "prefix"),
    [
        ("", "[${node}:${rank}] "),
        ("logs: {prefix: '<${rank}> '}", "<${rank}> "),
        ("logs: {prefix: ''}", ""),
        ("env: {TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: '[$${role_name}$${rank}]:'}", "[${role_name}${rank}]:"),
        ("env: {TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: '[${role_name}${rank}]:'}", "[${role_name}${rank}]:"),
        ("env: {TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: x}\nlogs: {prefix: y}", "y"),
    ],
)
def test_the_prefix_is_the_jobs_else_that_of_torchs_variable_else_ours(job: str, prefix: str) -> None:
    assert resolve(job).logs.prefix == prefix


def test_workers_get_torchs_template_as_it_was_written() -> None:
    plan = resolve("env: {TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: '[${rank}]:', A: '${B}'}")
    assert plan.env == {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[$${rank}]:", "A": "${B}"}


def test_a_plan_of_an_older_version_without_restart_arguments_is_read() -> None:
    text = "entrypoint: {script: train.py, args: [a], restart_args: [--resume, '${HOME}']}"
    plan = resolve_plan(parse_job(text, file="job.yaml"), parse_site(SITE_HEAD, path="here.yaml"), CONTEXT)
    assert plan.roles[0].entrypoint.restart_args == ("--resume", "${HOME}")
    data = json.loads(dump_plan(plan))
    del data["roles"][0]["entrypoint"]["restart_args"]
    assert parse_plan(json.dumps(data)).roles[0].entrypoint == EntrypointPlan(
        kind="script", target="train.py", args=("a",)
    )


@pytest.mark.parametrize(
    ("job", "per"),
    [
        ("nodes: 999\nworkers_per_node: 1", "rank"),
        ("nodes: {min: 1, max: 125}\nworkers_per_node: 8", "node"),
        ("nodes: 125\nworkers_per_node: 8\nlogs: {per: rank}", "rank"),
        ("logs: {per: node}", "node"),
    ],
)
def test_a_thousand_ranks_have_a_log_a_node_if_nothing_else_is_asked_for(job: str, per: str) -> None:
    assert resolve(job).logs.per == per


def test_a_snapshot_is_where_workers_start_and_setup_lines_run_in_its_source() -> None:
    plan = resolve("snapshot: true\nworkdir: code")
    snapshot = SnapshotPlan(source="/home/ada/digits/code", directory=f"{CONTEXT.run_dir}/snapshot")
    assert (plan.snapshot, plan.workdir) == (snapshot, snapshot.directory)
    assert RunLayout(CONTEXT.run_dir).snapshot == snapshot.directory
    assert template_values(plan)["setup_dir"] == snapshot.source
    shared = resolve("snapshot: true", context=replace(CONTEXT, snapshot_dir="/arrays/a$b/snapshot"))
    assert (shared.snapshot and shared.snapshot.directory, shared.workdir) == (
        "/arrays/a$b/snapshot",
        "/arrays/a$$b/snapshot",
    )
    assert resolve("snapshot: false").snapshot is None


def test_a_snapshot_of_a_folder_that_only_nodes_know_is_refused() -> None:
    with pytest.raises(JobError, match=r"snapshot: workdir is \$\{HOME\}/x, which is known on the nodes only"):
        resolve("snapshot: true\nworkdir: ${HOME}/x")
