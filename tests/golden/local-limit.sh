#!/bin/bash
#
# Run digits-20260102-030405-0f0f, made 2026-01-02T03:04:05.000000Z by hpc_elastic 0.1.0 for the site local.
# The script stands on its own: read it, edit it, submit it again. All its names begin with hpc_elastic_,
# so that they clash with nothing in the environment or in a setup line.
# shellcheck disable=SC2006,SC2317 # backquotes, see below; and some functions are called by traps only

# A trap only notes what is to be done, by the name of a function; it is done while the script waits for what it has
# launched. Where a signal may come there is no $(...): bash 5.2 parses one as it comes to it, and a trap that runs then
# ends in a syntax error, which loses the signal or ends the function. It does not parse what stands in backquotes.
hpc_elastic_due=''
hpc_elastic_do_what_is_due() {
    local hpc_elastic_now hpc_elastic_command
    hpc_elastic_now=$hpc_elastic_due hpc_elastic_due='' # one command, so that no trap comes between
    for hpc_elastic_command in $hpc_elastic_now; do "$hpc_elastic_command"; done
}

echo "hpc_elastic: run directory" /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f
if [ -e /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/result.json ]; then
    # Slurm starts a job again whose first node is lost while it ends, for it never hears of the end.
    if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && read -r hpc_elastic_status 2>/dev/null </home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/exit_code; then
        echo "hpc_elastic: this run was over when its job was started again, which ends as the run did" >&2
        exit "$hpc_elastic_status"
    fi
    echo "hpc_elastic: this run is over, its result.json is there; for a new run submit the job file again" >&2
    exit 5
fi

# The time limit, which Slurm would see to: TERM, and KILL for what is left later. Whoever waits for it reads from
# this script: a line when the agents are launched, and the end of input when the script is over. What setup starts may
# hold the input open, so the script's process is looked at, too. The one who waits is no child of the script's: a `wait`
# in a setup line would wait for all of these.
hpc_elastic_is_over() {
    local hpc_elastic_text hpc_elastic_script
    { hpc_elastic_text=$(<"/proc/$$/stat"); } 2>/dev/null || return 0
    read -ra hpc_elastic_script <<<"${hpc_elastic_text##*) }"
    [[ ${hpc_elastic_script[0]} == [ZX] || ${hpc_elastic_script[19]} != "${hpc_elastic_birth:=${hpc_elastic_script[19]}}" ]]
}
hpc_elastic_pause() { # so many seconds; fails if the script is over before
    local hpc_elastic_left=$1 hpc_elastic_part
    while [ "$hpc_elastic_left" -gt 0 ]; do
        hpc_elastic_part=$((hpc_elastic_left < 5 ? hpc_elastic_left : 5))
        if read -rt "$hpc_elastic_part"; then
            hpc_elastic_passed_on=yes
        elif [ "$?" -le 128 ] || hpc_elastic_is_over; then
            return 1
        else
            hpc_elastic_left=$((hpc_elastic_left - hpc_elastic_part))
        fi
    done
}
hpc_elastic_list_below() { # every process that descends from one
    local hpc_elastic_file hpc_elastic_child hpc_elastic_children
    for hpc_elastic_file in /proc/"$1"/task/*/children; do
        hpc_elastic_children=()
        { read -ra hpc_elastic_children <"$hpc_elastic_file"; } 2>/dev/null
        for hpc_elastic_child in "${hpc_elastic_children[@]}"; do
            hpc_elastic_below+=("$hpc_elastic_child")
            hpc_elastic_list_below "$hpc_elastic_child"
        done
    done
}
hpc_elastic_limit() {
    local hpc_elastic_birth='' hpc_elastic_passed_on='' hpc_elastic_below=() hpc_elastic_seconds=3600
    ! hpc_elastic_is_over && hpc_elastic_pause "$hpc_elastic_seconds" || exit 0
    echo "hpc_elastic: the time limit of $hpc_elastic_seconds s is over" >&2
    hpc_elastic_list_below "$$"
    kill -TERM "$$"
    [ -n "$hpc_elastic_passed_on" ] || kill -TERM "${hpc_elastic_below[@]}" 2>/dev/null # not yet launched
    if hpc_elastic_pause 90; then
        hpc_elastic_below=()
        hpc_elastic_list_below "$$"
        kill -KILL "${hpc_elastic_below[@]}" 2>/dev/null
    fi
    if [ -z "$hpc_elastic_passed_on" ]; then
        hpc_elastic_is_over || kill -KILL "$$" # a setup line may have set a trap
        echo "hpc_elastic: setup took longer than the time limit of $hpc_elastic_seconds s" >&2
    fi
}
exec {hpc_elastic_over}> >(hpc_elastic_limit <&0 &)

# What the lines of others set in this shell, they set for themselves: with job control (-m) `wait` would end for an srun
# that is stopped, with an IFS of its own `read` would find no job id, without wildcards (-f) /proc shows no children.
hpc_elastic_reset_shell='trap - ERR DEBUG RETURN; set +efukm +o posix; shopt -u failglob nullglob; unset -v IFS'

# Setup: the user's own lines, in this shell. The first one that fails or leaves the script ends the job with 3.
hpc_elastic_setup_line=
hpc_elastic_setup_ends() { # what happened, status
    [ -n "$hpc_elastic_setup_line" ] || return
    echo "hpc_elastic: setup line $1 (status $2): $hpc_elastic_setup_line" >&2
    hpc_elastic_setup_line=
    exit 3
}
trap 'hpc_elastic_setup_ends "ended the script" "$?"' EXIT
cd -- /home/ada/digits || { echo "hpc_elastic: $HOSTNAME has no such workdir:" /home/ada/digits >&2; exit 3; }

hpc_elastic_setup_line='export A=1'
export A=1
hpc_elastic_status=$?; [ "$hpc_elastic_status" -eq 0 ] || hpc_elastic_setup_ends failed "$hpc_elastic_status"

hpc_elastic_setup_line=
eval "$hpc_elastic_reset_shell" # not in a function, whose end brings the trap on DEBUG back
if ! type -P sleep >/dev/null; then
    echo "hpc_elastic: setup has left $HOSTNAME a PATH without the system's programs, such as sleep: ${PATH-}" >&2
    exit 3
fi

hpc_elastic_wanted=python3
hpc_elastic_python=`type -P -- "$hpc_elastic_wanted"`
[[ $hpc_elastic_python == /* ]] || hpc_elastic_python=$PWD/$hpc_elastic_python
if ! hpc_elastic_said=`"$hpc_elastic_python" -c 'import os, sys; os._exit(sys.version_info < (3, 10))' 2>&1 >/dev/null`; then
    if [ -f "$hpc_elastic_python" ] && [ -n "$hpc_elastic_said" ]; then # with PYTHONHOME or the libraries of another one
        echo "$hpc_elastic_said" >&2
        case $hpc_elastic_said in
            *'Fatal Python error: '*) hpc_elastic_said=${hpc_elastic_said#*Fatal Python error: } hpc_elastic_said=${hpc_elastic_said%%$'\n'*} ;;
            *) hpc_elastic_said=${hpc_elastic_said##*$'\n'} ;;
        esac
        echo "hpc_elastic: the job's python cannot be started on $HOSTNAME: $hpc_elastic_wanted: $hpc_elastic_said" >&2
    else
        echo "hpc_elastic: the job's python is missing on $HOSTNAME, or older than 3.10: $hpc_elastic_wanted" >&2
    fi
    exit 3
fi
eval "$hpc_elastic_reset_shell"

# Launch: one agent a node, in the background; the id of each process goes into hpc_elastic_launched.
# hpc_elastic_stop answers TERM and INT, when all are started; hpc_elastic_watch is a process that may cut the wait short;
# hpc_elastic_wait is the command that waits for one of them, hpc_elastic_wait_on one that goes on waiting where the run
# outlives what was launched.
hpc_elastic_launched=() hpc_elastic_started='' hpc_elastic_signalled='' hpc_elastic_watch=''
hpc_elastic_wait=wait hpc_elastic_wait_on=:
hpc_elastic_signal() {
    hpc_elastic_signalled=yes
    [ -z "$hpc_elastic_started" ] || hpc_elastic_stop
}
trap hpc_elastic_signal TERM INT
hpc_elastic_count_starts() { find /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/allocations -mindepth 1 -maxdepth 1 2>/dev/null | wc -l; }
hpc_elastic_starts=`hpc_elastic_count_starts` # earlier ones of this run

hpc_elastic_stop() { # passes on the first signal, as TERM, to the agents that live: a dead one's number may be taken
    [ -z "${hpc_elastic_stopped-}" ] || return
    hpc_elastic_stopped=yes
    local hpc_elastic_agent IFS=$' \n'
    for hpc_elastic_agent in `jobs -pr`; do
        [[ " ${hpc_elastic_launched[*]} " != *" $hpc_elastic_agent "* ]] || kill -TERM "$hpc_elastic_agent"
    done
}

# The job's id is this process and its start time, field 22 of its stat file: who started it finds out the same.
# A task of an array is told its id.
hpc_elastic_stat=$(<"/proc/$$/stat")
read -r -a hpc_elastic_stat <<<"${hpc_elastic_stat##*) }"
export HPC_ELASTIC_LOCAL_JOB_ID="${HPC_ELASTIC_LOCAL_ARRAY_TASK:-local-$$-${hpc_elastic_stat[19]}}"
export HPC_ELASTIC_LOCAL_NODES=2
unset HPC_ELASTIC_LOCAL_ARRAY_TASK

for ((hpc_elastic_node = 0; hpc_elastic_node < HPC_ELASTIC_LOCAL_NODES; hpc_elastic_node++)); do
    HPC_ELASTIC_LOCAL_NODE_ID=$hpc_elastic_node HPC_ELASTIC_TIME_LEFT=3600s \
        "$hpc_elastic_python" /opt/hpc_elastic/lib/python3.11/site-packages/hpc_elastic/launch.py hpc_elastic.agent.main /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f >>/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/agents/"local$hpc_elastic_node.out" 2>&1 {hpc_elastic_over}>&- &
    hpc_elastic_launched+=("$!")
done
echo launched >&"$hpc_elastic_over"
eval "$hpc_elastic_reset_shell"

hpc_elastic_started=yes
[ -z "$hpc_elastic_signalled" ] || hpc_elastic_stop

# Wait for all; the highest status counts. A trapped signal ends bash's `wait` although the process still runs.
hpc_elastic_status=0
for hpc_elastic_process in "${hpc_elastic_launched[@]}"; do
    while
        hpc_elastic_signalled=
        "$hpc_elastic_wait" "$hpc_elastic_process"
        hpc_elastic_one=$?
        [ -n "$hpc_elastic_signalled" ]
    do hpc_elastic_do_what_is_due; done
    [ "$hpc_elastic_one" -le "$hpc_elastic_status" ] || hpc_elastic_status=$hpc_elastic_one
done
# KILL, for a shell that has just been forked would answer a TERM with the traps of this one.
[ -z "$hpc_elastic_watch" ] || { disown "$hpc_elastic_watch"; kill -KILL "$hpc_elastic_watch"; } 2>/dev/null
"$hpc_elastic_wait_on"

# What the agents agreed on counts: one lost node does not make a run that succeeded a failed one. Where all of them
# were killed before they could agree, the records say what they prove.
ls /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f >/dev/null 2>&1 # without a listing NFS remembers for a minute that the file was missing
if [ ! -s /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/exit_code ]; then
    "$hpc_elastic_python" /opt/hpc_elastic/lib/python3.11/site-packages/hpc_elastic/launch.py hpc_elastic.agent.conclude /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f "$hpc_elastic_status" "$hpc_elastic_starts" </dev/null
    [ "$?" -ne 75 ] || hpc_elastic_status=75 # the job starts again, whatever the agents left with
fi
[ ! -s /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/exit_code ] || read -r hpc_elastic_status </home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/exit_code
exit "$hpc_elastic_status"
