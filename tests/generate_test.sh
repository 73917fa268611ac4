#!/bin/bash
# A real model must tell its story: llama2_generate against the text of llama2.c's run.c, on every runnable target.
#
#   tests/generate_test.sh LLAMA2_GENERATE [DIRECTORY]
#
# DIRECTORY is, if not given, $SIMDATTN_SHARED/data/tinyllamas; without either the test is skipped.
set -euo pipefail

read -r -a generate <<< "${MESON_EXE_WRAPPER:-}"  # an emulator, in a cross build
generate+=("$1")
if [ $# -gt 1 ]; then
  data=$2
elif [ -n "${SIMDATTN_SHARED:-}" ]; then
  data=$SIMDATTN_SHARED/data/tinyllamas
else
  echo "skipped: no model; name its directory as an argument, or its grandparent in SIMDATTN_SHARED"
  exit 77
fi
if [ ! -f "$data/stories260K.bin" ]; then
  echo "skipped: no model, $data/stories260K.bin does not exist"
  exit 77
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
runs=0

# compare TARGET RUN [OPTION ...]
compare() {
  local target=$1 run=$2
  shift 2
  runs=$((runs + 1))
  if ! "${generate[@]}" "$data/stories260K.bin" "$data/tok512.bin" --target "$target" "$@" > "$scratch/text" 2> "$scratch/log"; then
    echo "FAIL $target $run: $(cat "$scratch/log")"
  elif ! tr -d '\r' <"$scratch/text" | cmp "$data/expected/$run.txt" > "$scratch/difference"; then
    echo "FAIL $target $run: $(cat "$scratch/difference"); the text is:"
    cat "$scratch/text"
  elif ! grep -q "^$target: .*tokens/s.*% of the time in attention.\?$" "$scratch/log"; then
    echo "FAIL $target $run: no report of its speed on stderr: $(cat "$scratch/log")"
  else
    echo "pass $target $run: $(cat "$scratch/log")"
    return
  fi
  failures=$((failures + 1))
}

# Windows ends lines with a carriage return.
for target in $("${generate[@]}" --list-targets | tr -d '\r'); do
  compare "$target" story --steps 256
  compare "$target" cat --steps 128 --prompt 'Once there was a cat'
done

echo "$runs runs, $failures failures"
[ "$runs" -ge 2 ] && [ "$failures" -eq 0 ]
