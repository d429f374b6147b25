#!/bin/bash
#SBATCH --job-name="it's"
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --array=0-0
#SBATCH --output="/home/ada/a b'c\"d%%j$(touch canary)`x`;#é/run/%a/slurm-%A_%a.out"
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#
# 1 runs in one array, made 2026-01-02T03:04:05.000000Z by hpc_elastic 0.1.0 for the site generic-slurm.
# Slurm starts this script for each task, and it goes on with the job.sh in the task's own run directory, which can
# also be submitted by itself.

if [ -z "${SLURM_ARRAY_TASK_ID-}" ]; then
    echo "hpc_elastic: this is no task of an array: submit this script with sbatch" >&2
    exit 2
fi
# A job that is submitted inside of this one inherits SLURM_ARRAY_* too, but has another number.
export HPC_ELASTIC_ARRAY_MARK="$SLURM_JOB_ID"
cd -- '/home/ada/a b'"'"'c"d%j$(touch canary)`x`;#é/run'/"$SLURM_ARRAY_TASK_ID" || exit 5
# In this shell, which may be a login shell that has defined `module`.
# shellcheck source=/dev/null
. ./job.sh
