#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#
# Run digits-20260102-030405-0f0f, made 2026-01-02T03:04:05.000000Z by hpc_elastic 0.1.0 for the site generic-slurm.
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
if [ -z "${SLURM_JOB_ID-}" ]; then
    echo "hpc_elastic: no Slurm allocation here: submit this script with sbatch, or run it inside salloc" >&2
    exit 2
fi
# What has logged sbatch in: a node logs in by itself, and a token would be too old soon and is nobody's here.
[ "${SLURM_TASK_PID-}" != "$$" ] || unset SLURM_JWT SLURM_SACK_KEY SLURM_SACK_JWKS SLURM_SACK_SOCKET

# Slurm tells this shell, and nobody else, that the end is near: before the time limit, and on some sites before a
# preemption. The agents find out which of the two it is, and when it comes.
hpc_elastic_notice() {
    printf '{"format_version": 1, "kind": "notice", "by": "slurm", "time": "%s", "id": "slurm-%s-%s"}\n' \
        "`date -u +%Y-%m-%dT%H:%M:%S.%6NZ`" "$SLURM_JOB_ID" "`date +%s%N`" >>/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/requests.jsonl
}
hpc_elastic_received=''
hpc_elastic_got() {
    hpc_elastic_signalled=yes hpc_elastic_received="$hpc_elastic_received $1"
    hpc_elastic_due="$hpc_elastic_due hpc_elastic_pass_on"
}
trap 'hpc_elastic_got USR2; hpc_elastic_due="$hpc_elastic_due hpc_elastic_notice"' USR2

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

# Slurm's TERM (scancel, preemption, time limit) reaches the agents without us, that of `scancel --full` does not. Where this is not Slurm's batch script
# (hpc-elastic run) we ask them, as `hpc-elastic cancel` does; if they were asked before, srun kills them at a TERM, or
# Slurm, where srun was ended.
hpc_elastic_batch_script=${SLURM_TASK_PID-}
hpc_elastic_stop() {
    if [ "$hpc_elastic_batch_script" = "$$" ]; then
        hpc_elastic_got TERM
        hpc_elastic_got INT
    else
        hpc_elastic_due="$hpc_elastic_due hpc_elastic_ask_to_stop"
    fi
}
hpc_elastic_ask_to_stop() {
    if [ "$hpc_elastic_wait_on" != : ]; then
        grep -qs '"kind": "stop"' /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/requests.jsonl && [ -n "$hpc_elastic_step_number" ] &&
            timeout 10 scancel "$SLURM_JOB_ID.$hpc_elastic_step_number"
    elif grep -qs '"kind": "stop"' /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/requests.jsonl; then
        hpc_elastic_find_srun "$hpc_elastic_step"
        kill -TERM "$hpc_elastic_srun"
        kill -CONT "$hpc_elastic_srun"
    fi
    printf '{"format_version": 1, "kind": "stop", "by": "%s@%s", "time": "%s", "reason": "the script was stopped"}\n' \
        "`id -un`" "$HOSTNAME" "`date -u +%Y-%m-%dT%H:%M:%S.%6NZ`" >>/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/requests.jsonl
}

# Who signals the whole job (scancel --full) or its script means what runs in it: HUP and USR1, which the agents know,
# would end a shell that does not.
if [ "$hpc_elastic_batch_script" = "$$" ]; then
    [ -n "`trap -p HUP`" ] || trap 'hpc_elastic_got HUP' HUP
    [ -n "`trap -p USR1`" ] || trap 'hpc_elastic_got USR1' USR1
fi

# `scancel --full` signals this script and its children, and leaves it to srun to tell the step (22.05 to 26.05). A
# stopped srun tells nobody, so the step is told here. Whoever ends the job otherwise sends a CONT too, and srun takes
# what it has got. A TERM ends the watch, without which srun would stay stopped.
hpc_elastic_pass_on() {
    local hpc_elastic_names hpc_elastic_name hpc_elastic_value hpc_elastic_pending=0 hpc_elastic_number hpc_elastic_state=''
    hpc_elastic_names=$hpc_elastic_received hpc_elastic_received='' # one command, so that no trap comes between
    [ -n "$hpc_elastic_names" ] || return
    hpc_elastic_pause
    hpc_elastic_pause
    hpc_elastic_find_srun "$hpc_elastic_step"
    while read -r hpc_elastic_name hpc_elastic_value; do
        case $hpc_elastic_name in
            State:) hpc_elastic_state=${hpc_elastic_value%% *} ;;
            ShdPnd:) hpc_elastic_pending=$((16#$hpc_elastic_value)) ;;
        esac
    done <"/proc/$hpc_elastic_srun/status"
    for hpc_elastic_name in TERM INT HUP USR1 USR2; do
        case " $hpc_elastic_names " in *" $hpc_elastic_name "*) ;; *) continue ;; esac
        hpc_elastic_number=`kill -l "$hpc_elastic_name"`
        if [ $((hpc_elastic_pending >> (hpc_elastic_number - 1) & 1)) != 1 ]; then
            [ "$hpc_elastic_name" != TERM ] || { hpc_elastic_tell_of_term & }
            continue
        fi
        hpc_elastic_value=`hpc_elastic_number_of_step`
        [ -n "$hpc_elastic_value" ] || continue
        timeout 10 scancel --signal="$hpc_elastic_name" "$SLURM_JOB_ID.$hpc_elastic_value"
    done
    [ "$hpc_elastic_state" != T ] || kill -0 "$hpc_elastic_watch" || hpc_elastic_start_watch
} 2>/dev/null
# slurmstepd takes a TERM to this script alone (scancel --batch --signal=TERM) for the end of the job, and writes the line
# of a scancel into its output (22.05 and 24.11). Who reads that is told here, in the background: at an end that is one,
# there may be no time to wait for Slurm.
hpc_elastic_tell_of_term() {
    local hpc_elastic_state
    hpc_elastic_state=`timeout 10 squeue --noheader --jobs="$hpc_elastic_job" --format=%T | head -n 1`
    [ "$hpc_elastic_state" != RUNNING ] || [ -s /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/exit_code ] ||
        echo "hpc_elastic: the job runs on after a TERM to its script"
}
hpc_elastic_number_of_step() { # as the agent of this machine knows it
    local hpc_elastic_pid hpc_elastic_start
    read -r hpc_elastic_pid hpc_elastic_start </home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/agents/launch_agent || return
    tr '\0' '\n' <"/proc/$hpc_elastic_pid/environ" | sed -n 's/^SLURM_STEP_ID=//p'
}

hpc_elastic_nodes=$SLURM_JOB_NUM_NODES
[ "$hpc_elastic_nodes" -le 2 ] || hpc_elastic_nodes=2

# The shell of `srun --pty bash` is a step that holds all of its job: without --overlap ours would wait for its end. That
# of salloc, SLURM_INTERACTIVE_STEP, holds nothing, and a batch script may have the number of the step it was sent from.
hpc_elastic_is_in_step=${SLURM_STEP_ID-}
[ "$hpc_elastic_is_in_step" != 4294967290 ] || hpc_elastic_is_in_step=''
[ "$hpc_elastic_batch_script" != "$$" ] || hpc_elastic_is_in_step=''

# srun also takes options from variables, which sbatch and salloc set for their own: keep what names the job. A token
# (SLURM_JWT), which sbatch hands on before 26.05, starts no step.
for hpc_elastic_name in "${!SLURM_@}" "${!SRUN_@}"; do
    case $hpc_elastic_name in
        SLURM_JOB_* | SLURM_JOBID | SLURM_ARRAY_* | SLURM_RESTART_COUNT | SLURM_SUBMIT_*) ;;
        SLURM_CONF | SLURM_CLUSTER_NAME | SLURM_WORKING_CLUSTER | SLURM_NODE_ALIASES | SLURM_SACK_*) ;;
        *) unset "$hpc_elastic_name" ;;
    esac
done

# Those of earlier starts of the job; counted now, for the agents may open the next one as soon as srun has started them.
hpc_elastic_count_attempts() { find /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/attempts -mindepth 1 -maxdepth 1 2>/dev/null | wc -l; }
hpc_elastic_attempts=`hpc_elastic_count_attempts`
hpc_elastic_count_requeues() { grep -c '"kind": "requeue"' /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/requests.jsonl 2>/dev/null; }
hpc_elastic_requeues=`hpc_elastic_count_requeues`

# How much time the job has left: the agents may be in an image that has no Slurm commands. A task of an array has the
# number of the whole array if it is the last one.
hpc_elastic_job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_TASK_ID-}" ]; then
    case $SLURM_JOB_ID in
        "$SLURM_ARRAY_JOB_ID" | "${HPC_ELASTIC_ARRAY_MARK-}") hpc_elastic_job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID ;;
    esac
fi
hpc_elastic_left=`timeout 10 squeue --noheader --jobs="$hpc_elastic_job" --format=%L 2>/dev/null | head -n 1`

# A lost node or a dead agent ends neither the step nor its neighbours. Output does not go through srun, which may
# die with this node; its path is relative, for srun reads a percent sign in a path twice (22.05). The agents speak
# no MPI, and a PMI plugin would end the step when it loses a node. What srun says of agents that end is read behind
# the line of this start of the job: setup may use srun as well, and every start writes into the same file. A site may
# have all of a step killed where one rank is out of memory (OOMKillStep, 24.11), which srun can be told not to by a
# variable that older ones pass over.
echo "hpc_elastic: starting an agent on each of $hpc_elastic_nodes nodes (start ${SLURM_RESTART_COUNT:-0})"
HPC_ELASTIC_TIME_LEFT=$hpc_elastic_left SLURM_OOM_KILL_STEP=0 \
    srun --nodes="$hpc_elastic_nodes" --ntasks="$hpc_elastic_nodes" --ntasks-per-node=1 \
    --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --mem=0 --mpi=none --export=ALL --input=none \
    ${hpc_elastic_is_in_step:+--overlap} \
    --chdir=/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f --open-mode=append --output=agents/%N.out \
    "$hpc_elastic_python" /opt/hpc_elastic/lib/python3.11/site-packages/hpc_elastic/launch.py hpc_elastic.agent.main /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f &
hpc_elastic_step=$!
hpc_elastic_launched+=("$hpc_elastic_step")

# Where a site's srun is a function or a script, a shell was launched, and srun is below it: the process whose program
# is named srun. As long as there is none, what was launched counts as srun.
hpc_elastic_srun=$hpc_elastic_step hpc_elastic_wrappers=()
hpc_elastic_find_srun() { # the processes from the one that was launched down to the one to look at
    local hpc_elastic_child hpc_elastic_program
    hpc_elastic_program=`readlink "/proc/${*: -1}/exe"`
    case ${hpc_elastic_program##*/} in
        srun | srun[-._\ ]*) # also srun.real, and one that is deleted since
            hpc_elastic_srun=${*: -1} hpc_elastic_wrappers=("${@:1:$(($# - 1))}")
            return
            ;;
    esac
    for hpc_elastic_child in `hpc_elastic_children_of "${*: -1}"`; do
        hpc_elastic_find_srun "$@" "$hpc_elastic_child" && return
    done
    return 1
}
hpc_elastic_children_of() { cat /proc/"$1"/task/*/children 2>/dev/null; }

# A node that reboots before Slurm has given it up would make srun end the step with all its agents. So srun is stopped
# once an attempt has begun, which needs it no more, for as long as the agent of this machine lives: nobody else could
# tell it to go on. Slurm's signals reach the agents without it. That the run directory is away, or cannot be read, says
# nothing about the agent: what it told until srun was first stopped is kept.
hpc_elastic_agent='' hpc_elastic_opened=0
hpc_elastic_agent_lives() { # process ids are used again, with a later start (field 22 of /proc/PID/stat)
    local hpc_elastic_pid=${hpc_elastic_agent% *} hpc_elastic_start=${hpc_elastic_agent#* }
    local hpc_elastic_stat hpc_elastic_fields
    [ -n "$hpc_elastic_agent" ] || read -r hpc_elastic_pid hpc_elastic_start </home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/agents/launch_agent || return
    read -r hpc_elastic_stat <"/proc/$hpc_elastic_pid/stat" || return
    read -ra hpc_elastic_fields <<<"${hpc_elastic_stat##*) }"
    [ "${hpc_elastic_fields[0]}" != Z ] && [ "${hpc_elastic_fields[19]}" = "$hpc_elastic_start" ] || return
    hpc_elastic_alive="$hpc_elastic_pid $hpc_elastic_start"
}
hpc_elastic_hold_srun() {
    local hpc_elastic_alive hpc_elastic_count
    hpc_elastic_count=`hpc_elastic_count_attempts`
    [ "$hpc_elastic_count" -gt "$hpc_elastic_opened" ] && hpc_elastic_opened=$hpc_elastic_count
    if [ "$hpc_elastic_opened" -gt "$hpc_elastic_attempts" ] && hpc_elastic_agent_lives; then
        if [ -z "$hpc_elastic_is_held" ]; then
            hpc_elastic_is_held=yes hpc_elastic_agent=$hpc_elastic_alive
            hpc_elastic_find_srun "$hpc_elastic_step"
            hpc_elastic_step_number=`hpc_elastic_number_of_step`
            echo "$hpc_elastic_step_number" >&"$hpc_elastic_held"
        fi
        hpc_elastic_agentless=0
        kill -STOP "$hpc_elastic_srun"
    elif [ -z "$hpc_elastic_is_held" ]; then
        kill -"$hpc_elastic_at_first" "$hpc_elastic_srun" || return
        hpc_elastic_at_first=0 # srun 22.05 writes a line at each CONT
    else
        hpc_elastic_end_srun
    fi
}

# That agent may have died alone, with others that go on. srun is ended then, before it can end the step for a node that
# has rebooted. Where no attempt was opened after the first, no node was lost: srun goes on for 3 s, and says before
# Slurm does if all agents have ended.
hpc_elastic_end_srun() {
    local hpc_elastic_after=1 hpc_elastic_signal=STOP
    hpc_elastic_agentless=$((hpc_elastic_agentless + 1))
    if [ "$hpc_elastic_opened" -le "$((hpc_elastic_attempts + 1))" ]; then
        hpc_elastic_after=4 hpc_elastic_signal=CONT
    fi
    if [ "$hpc_elastic_agentless" -gt 5 ]; then
        hpc_elastic_signal=CONT # it could not be ended
    elif [ "$hpc_elastic_agentless" -ge "$hpc_elastic_after" ]; then
        echo >&"$hpc_elastic_alone" # may come twice: the next attempt may be opened meanwhile
    fi
    kill -"$hpc_elastic_signal" "$hpc_elastic_srun"
}

hpc_elastic_is_held='' hpc_elastic_agentless=0
# Become readable when srun has been stopped (the number of the step), and when it is to be ended; files that say so may
# hang with their server.
hpc_elastic_step_number=''
exec {hpc_elastic_held}<> <(:) {hpc_elastic_alone}<> <(:)

# `scontrol resume` lets a stopped srun go on, which would end the step for a node that was lost and is back. Slurm
# announces a suspend by a TSTP, 2 s before everything stands still: then srun is killed, after the child of its own that
# would end the step, if it has been stopped before. The agents go on without them. Shells around it are killed first,
# for one could start another step.
hpc_elastic_dismiss_srun() {
    local hpc_elastic_child hpc_elastic_own=()
    read -rt 0 -u "$hpc_elastic_held" && hpc_elastic_find_srun "$hpc_elastic_step" || return
    for hpc_elastic_child in `hpc_elastic_children_of "$hpc_elastic_srun"`; do
        [ ! "/proc/$hpc_elastic_child/exe" -ef "/proc/$hpc_elastic_srun/exe" ] || hpc_elastic_own+=("$hpc_elastic_child")
    done
    [ -n "${hpc_elastic_own[*]}" ] || return # the kernel does not say
    [ -z "${hpc_elastic_wrappers[*]}" ] || kill -KILL "${hpc_elastic_wrappers[@]}"
    kill -KILL "${hpc_elastic_own[@]}" && kill -KILL "$hpc_elastic_srun" || return
    hpc_elastic_wait_on=hpc_elastic_wait_without_srun
    read -r -u "$hpc_elastic_held" hpc_elastic_step_number
    for _ in {1..10}; do # here, where nobody reads bash's line on it
        kill -0 "$hpc_elastic_step" || { wait "$hpc_elastic_step"; break; }
        sleep 0.1
    done
}
hpc_elastic_suspended() {
    [ "$hpc_elastic_wait_on" = : ] || return # srun was ended before
    hpc_elastic_dismiss_srun 2>/dev/null
    [ "$hpc_elastic_wait_on" = : ] ||
        echo "hpc_elastic: Slurm suspends the job; srun is ended, for it might end the agents after the resume"
}
[ "$hpc_elastic_batch_script" != "$$" ] ||
    trap 'hpc_elastic_signalled=yes hpc_elastic_due="$hpc_elastic_due hpc_elastic_suspended"' TSTP

# Of signals that arrive together bash's `wait` takes one and forgets the others (5.1, 5.2): its handler of that one
# leaves by a jump, out of the handlers that it has interrupted. So we wait for a short-lived program again and again,
# which ignores what Slurm sends to every process of this shell: at a TSTP it would stop, and the trap would come too late.
hpc_elastic_is_cut_short=''
hpc_elastic_pause() {
    (trap '' TERM TSTP HUP USR1 USR2; exec sleep 0.5 2>/dev/null) || sleep 1
    hpc_elastic_do_what_is_due
}
hpc_elastic_wait_for() {
    while [ -z "$hpc_elastic_is_cut_short" ]; do
        kill -0 "$1" 2>/dev/null || break
        if [ "$hpc_elastic_wait_on" = : ] && read -rt 0 -u "$hpc_elastic_alone"; then
            hpc_elastic_dismiss_srun 2>/dev/null &&
                echo "hpc_elastic: this node's agent has ended; srun is ended, for it might end the others for a node that is back"
        fi
        hpc_elastic_pause
    done
    [ -z "$hpc_elastic_is_cut_short" ] || return 142 # as `wait` that an ALRM ends
    hpc_elastic_signalled=
    wait "$1"
}
hpc_elastic_wait=hpc_elastic_wait_for

# Then the end of the run, or of its part in this allocation, is seen in its directory. If the agent of this machine dies
# before, Slurm is asked, which ends the step with its last agent if no node was lost; other steps of the job may be
# somebody else's. Three answers without it count; that Slurm is silent, or not here, decides nothing. Where a node was
# lost the machines of the agents are asked as well, once a minute: five times the same that nobody is there counts.
hpc_elastic_has_step() { # within so many seconds; 1 if Slurm says no, 2 if it does not say
    local hpc_elastic_told
    if hpc_elastic_told=`timeout "$1" squeue --all --local --noheader --steps --jobs="$hpc_elastic_job" --format=%i 2>&1`; then
        [[ $'\n'$hpc_elastic_told =~ $'\n'[0-9][0-9_+]*[.](${hpc_elastic_step_number:-[0-9]+})([^0-9]|$) ]]
    else
        [[ $hpc_elastic_told == *"Invalid job id"* ]] && return 1 || return 2
    fi
}
hpc_elastic_find_nobody() (trap '' TERM TSTP HUP USR1 USR2; exec timeout 30 "$hpc_elastic_python" /opt/hpc_elastic/lib/python3.11/site-packages/hpc_elastic/launch.py hpc_elastic.agent.survivors /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f </dev/null)
hpc_elastic_has_survivors() { # 1 if there are none
    local hpc_elastic_told
    [ $((hpc_elastic_round % 12)) -eq 11 ] || return 0
    hpc_elastic_told=`hpc_elastic_find_nobody 2>/dev/null`
    [ "$hpc_elastic_told" = "$hpc_elastic_nobody" ] || hpc_elastic_looks=0
    hpc_elastic_nobody=$hpc_elastic_told
    [ -n "$hpc_elastic_told" ] || return 0
    hpc_elastic_looks=$((hpc_elastic_looks + 1))
    [ "$hpc_elastic_looks" -ge 5 ] || return 0
    echo "hpc_elastic: all agents have ended; not waiting for their step, which Slurm shows on because a node was lost"
    return 1
}
hpc_elastic_wait_without_srun() {
    local hpc_elastic_without=0 hpc_elastic_unanswered=0 hpc_elastic_round=0 hpc_elastic_halves
    local hpc_elastic_nobody='' hpc_elastic_looks=0
    until ls /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f >/dev/null 2>&1 && [ -s /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/exit_code ]; do
        if hpc_elastic_agent_lives 2>/dev/null; then
            hpc_elastic_without=0
        elif [ "`hpc_elastic_count_requeues`" -gt "${hpc_elastic_requeues:-0}" ] 2>/dev/null; then
            break # the run goes on when the job is started again: Slurm may show the step of a lost node until then
        else
            hpc_elastic_has_step 10
            case $? in
                0) hpc_elastic_without=0; hpc_elastic_has_survivors || return ;;
                1) hpc_elastic_without=$((hpc_elastic_without + 1)) ;;
                *) hpc_elastic_unanswered=$((hpc_elastic_unanswered + 1)) ;;
            esac
            [ "$hpc_elastic_without" -lt 3 ] || return
            [ "$hpc_elastic_unanswered" -ne 6 ] ||
                echo "hpc_elastic: this node's agent has ended, and Slurm does not say if others run: waiting for the run's end"
        fi
        hpc_elastic_round=$((hpc_elastic_round + 1)) # all may have ended together: Slurm says so within seconds
        for ((hpc_elastic_halves = hpc_elastic_round > 5 ? 10 : 1; hpc_elastic_halves > 0; hpc_elastic_halves--)); do
            hpc_elastic_pause
        done
    done
    for _ in {1..10}; do # the agents' last records come first, and the states that they write down
        hpc_elastic_has_step 3 || [ "$?" -ne 1 ] || return
        for _ in {1..4}; do hpc_elastic_pause; done
    done
}

# srun waits for a lost node until Slurm has given the node up, which takes minutes. We do not, once the run is over and
# the agents have had time to leave: Slurm ends srun with its batch script. Elsewhere srun gets a TERM, for there is
# nothing left that it could hurt.
hpc_elastic_give_up_srun() {
    hpc_elastic_is_cut_short=yes
    echo "hpc_elastic: the run is over; not waiting for srun, which waits for a node or an agent that is lost"
}
trap hpc_elastic_give_up_srun ALRM
hpc_elastic_cut_short() { # without a listing NFS remembers for a minute that the file was missing
    trap '' HUP USR1 USR2
    local hpc_elastic_at_first=CONT # a watch before this one may have stopped srun
    until ls /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f && [ -s /home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f/exit_code ]; do
        hpc_elastic_hold_srun || kill -0 "$hpc_elastic_step" || return # all is gone, this script was killed
        sleep 1
    done
    for _ in {1..10}; do # the agents' last records come first: srun may end the step as soon as it goes on
        hpc_elastic_agent_lives || break
        sleep 1
    done
    kill -CONT "$hpc_elastic_srun"
    for _ in {1..10}; do sleep 1; done
    if [ "$hpc_elastic_batch_script" = "$$" ]; then
        while kill -ALRM "$$"; do sleep 1; done
    else
        hpc_elastic_find_srun "$hpc_elastic_step"
        kill -TERM "$hpc_elastic_srun"
    fi
}
hpc_elastic_start_watch() {
    hpc_elastic_cut_short </dev/null >/dev/null 2>&1 &
    hpc_elastic_watch=$!
}
hpc_elastic_start_watch
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
