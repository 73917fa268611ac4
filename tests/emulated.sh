#!/bin/bash
# Runs a program as on an old x86 CPU: what is called runnable there must run, what is not must never be entered.
#
#   tests/emulated.sh CPU PROGRAM [ARGUMENT ...]
set -euo pipefail

cpu=$1
shift
qemu=$(command -v qemu-x86_64-static || command -v qemu-x86_64 || true)
if [ -z "$qemu" ]; then
  echo "skipped: qemu-x86_64 is not installed (Debian and Ubuntu: qemu-user-static)"
  exit 77
fi
# The emulator reads all bytes of a masked load, where a CPU reads only those that count: guard pages must be readable.
export SIMDATTN_READABLE_GUARDS=1
# The emulator warns about every feature of the CPU that it lacks; those do not matter here.
"$qemu" -cpu "$cpu" "$@" 2> >(grep -v "TCG doesn't support requested feature" >&2)
