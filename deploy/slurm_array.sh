#!/bin/bash
# An export on Slurm: 32 tasks, each of which converts a shard of the recordings. The last one writes the dataset.
#
#   sbatch deploy/slurm_array.sh
#   sbatch --array=3,17 deploy/slurm_array.sh    # these two again
#
#SBATCH --job-name=export-lift
#SBATCH --array=0-31
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=08:00:00
#SBATCH --requeue
# The number of shards is not SLURM_ARRAY_TASK_COUNT, which is another one when some tasks are submitted again.
exec robocache export raw/lift --spec robot.yaml --task "lift the cube" \
  --out datasets/lift --pieces pieces --shard "$SLURM_ARRAY_TASK_ID/32" \
  --jobs "$SLURM_CPUS_PER_TASK" --on-error skip
