#!/bin/bash
#
# 3 runs in one array, made 2026-01-02T03:04:05.000000Z by hpc_elastic 0.1.0 for the site local.
# The job.sh of each task, in its own run directory, can also be run by itself.
# shellcheck disable=SC2006,SC2317 # a function is called by a trap only, and bash 5.2 parses $(...) when one may come

cd -- /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f || exit 5

# The array's id is this process and its start time, field 22 of its stat file; a task's has its number behind it.
hpc_elastic_stat=$(<"/proc/$$/stat")
read -r -a hpc_elastic_stat <<<"${hpc_elastic_stat##*) }"
hpc_elastic_array="local-$$-${hpc_elastic_stat[19]}"

hpc_elastic_stopped=''
hpc_elastic_stop() { # a task's script passes on the first TERM, and no other
    hpc_elastic_stopped=yes
    local hpc_elastic_process
    for hpc_elastic_process in `jobs -pr`; do kill -TERM "$hpc_elastic_process"; done
}
trap hpc_elastic_stop TERM INT

for ((hpc_elastic_task = 0; hpc_elastic_task < 3; hpc_elastic_task++)); do
    while [ "`jobs -pr | wc -w`" -ge 1 ]; do # bash before 4.3 does not know `wait -n`, and says 2
        wait -n 2>/dev/null
        [ "$?" -ne 2 ] || sleep 1
    done
    [ -z "$hpc_elastic_stopped" ] || break
    # Who makes the output file decides: the task, and it starts, or who cancels it, and it never does. By then the
    # task's process is there, with its id in its environment.
    hpc_elastic_id=${hpc_elastic_array}_$hpc_elastic_task
    HPC_ELASTIC_LOCAL_ARRAY_TASK=$hpc_elastic_id HPC_ELASTIC_LOCAL_RUNS_AT_ONCE=1 bash -c '
        cd -- "$0" && (umask 077 && set -o noclobber && : >"$1") 2>/dev/null || exit
        exec >>"$1" 2>&1
        set -- # a setup line may source what reads them
        . ./job.sh
    ' "$hpc_elastic_task" "$hpc_elastic_id.out" </dev/null &
done

# What became of each task is in its run directory.
while [ "`jobs -pr | wc -w`" -gt 0 ]; do wait; done
