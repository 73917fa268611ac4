#!/bin/bash
# Keys spread over the ranks of MPI: the bits of one process for 1 to 4 ranks; what is said when a rank is lost; bad input.
#
#   tests/examples/ring_attention_test.sh RING_ATTENTION
#
# "none" in the place of the program: MPI is missing, the test is skipped.
set -euo pipefail

# shellcheck source=tests/examples/program_checks.sh
. "$(dirname "$0")/program_checks.sh"
program_name=ring_attention
program=("$1")
if [ "$1" = none ]; then
  echo "skipped: ring_attention needs Open MPI or MPICH (tools/setup gets Open MPI)"
  exit 77
fi
if ! command -v mpirun >/dev/null; then
  echo "skipped: ring_attention needs mpirun (Debian: openmpi-bin)"
  exit 77
fi
mpi=(timeout 120 mpirun)
# More ranks than cores, and in containers often as root: Open MPI wants to be told.
if mpirun --version | grep -q 'Open MPI\|OpenRTE'; then
  mpi+=(--oversubscribe)
  if [ "$(id -u)" = 0 ]; then mpi+=(--allow-run-as-root); fi
fi
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0  # MPI keeps what it has

# The bits of one process. Keys on both sides of a split, fewer splits than ranks, decode steps and causal prefill.
same() {
  runs=$((runs + 1))
  if "${mpi[@]}" -n "$1" "${program[@]}" --check --steps 2 "${@:2}" >"$scratch/out" 2>&1 \
    && grep -q '^the same bits as one process$\|^close to one process: this target' "$scratch/out"; then
    echo "pass $*"
  else
    fail "$*: $(cat "$scratch/out")"
  fi
}
for ranks in 2 3 4; do
  same $ranks --keys 1025
  same $ranks --keys 7001
  same $ranks --keys 2501 --rows 2501 --heads 2 --kv-heads 1 --dim 17
done
same 1 --keys 7001
same 2 --keys 4097 --rows 131 --no-overlap
same 3 --keys 1
same 4 --keys 1024
same 3 --keys 5000 --rows 65 --heads 3 --kv-heads 3 --dim 1

# A rank that is lost: the job ends within seconds and not well, and somebody names the rank.
lost() {
  local how=$1 expected=$2 begin=$SECONDS status=0
  runs=$((runs + 1))
  "${mpi[@]}" -n 4 "${program[@]}" --keys 20000 --lose 1 --how "$how" --patience 2 >"$scratch/out" 2>&1 || status=$?
  if [ $status -eq 0 ] || [ $status -eq 124 ]; then
    fail "lost by $how: status $status"
  elif [ $((SECONDS - begin)) -gt 60 ]; then
    fail "lost by $how: it took $((SECONDS - begin)) s"
  elif ! grep -q "$expected" "$scratch/out"; then
    fail "lost by $how: no sentence like \"$expected\": $(cat "$scratch/out")"
  else
    echo "pass lost by $how: status $status after $((SECONDS - begin)) s"
  fi
}
# A rank that is silent: each of the others says which one.
for other in 0 2 3; do lost stop "^ring_attention: rank $other: rank 1 is lost"; done
# A process that is killed is mpirun's to name, one that ends can speak for itself; mpirun ends the others.
lost kill 'process rank 1 \|BAD TERMINATION'
lost exit '^ring_attention: rank 1: ends with status 3'

# Bad input.
refused '--keys takes a whole number from 1' --keys 0
refused '--keys takes a whole number from 1' --keys many
refused '--rows: there are only 100 keys' --keys 100 --rows 101
refused '--heads must be a multiple of --kv-heads' --heads 3 --kv-heads 2
refused '--how takes stop, exit or kill' --how sideways
refused '--patience needs a value' --patience
refused 'unknown option --key' --key 3
refused 'it takes options alone' keys
usage mpirun

closing 25
