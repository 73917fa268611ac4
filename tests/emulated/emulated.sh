#!/bin/bash
# Runs a program as on another CPU: what is called runnable there must run, what is not must never be entered.
#
#   tests/emulated/emulated.sh CPU PROGRAM [ARGUMENT ...]
#
# CPU is one that the emulator knows: qemu64, Haswell, ... for x86 programs; cortex-a57, max,sve-max-vq=2, ... in a
# cross build for ARM. If EXPECT is set, the output must contain it.
set -euo pipefail

cpu=$1
shift
if [ -n "${MESON_EXE_WRAPPER:-}" ]; then
  read -r -a qemu <<<"$MESON_EXE_WRAPPER"
else
  qemu=("$(command -v qemu-x86_64-static || command -v qemu-x86_64 || true)")
  export MESON_EXE_WRAPPER=${qemu[0]}  # for tests that start themselves again
  # On x86 the emulator reads all bytes of a masked load, where a CPU reads only those that count: guard pages must be
  # readable.
  export SIMDATTN_READABLE_GUARDS=1
fi
if [ -z "${qemu[0]}" ]; then
  echo "skipped: qemu-x86_64 is not installed (Debian and Ubuntu: qemu-user-static)"
  exit 77
fi
export QEMU_CPU=$cpu
echo "emulated $cpu: times, if there are any, mean nothing"
# The emulator warns about every feature of the CPU that it lacks; those do not matter here.
run() { "${qemu[@]}" "$@" 2> >(grep -v "TCG doesn't support requested feature" >&2); }
if [ -n "${EXPECT:-}" ]; then
  output=$(run "$@")
  echo "$output"
  grep -qF -- "$EXPECT" <<<"$output" || { echo "expected: $EXPECT"; exit 1; }
else
  run "$@"
fi
