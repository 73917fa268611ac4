#!/bin/bash
# A model must tell its story, on every runnable target: llama2_generate on a model of formulas against a witness in float64, and on
# a real one against the text of llama2.c's run.c, which the witness has to tell too.
#
#   tests/examples/generate_test.sh LLAMA2_GENERATE WRITE_FORMULA_MODEL REFERENCE_TEXT [DIRECTORY]
#
# DIRECTORY of the real model is, if not given, $SIMDATTN_SHARED/data/tinyllamas; without either that part is left out.
set -euo pipefail

# shellcheck source=tests/examples/program_checks.sh
. "$(dirname "$0")/program_checks.sh"
generate=("${wrapper[@]}" "$1")
write_model=("${wrapper[@]}" "$2")
witness=("${wrapper[@]}" "$3")
data=${4:-${SIMDATTN_SHARED:+$SIMDATTN_SHARED/data/tinyllamas}}

# compare TARGET EXPECTED MODEL TOKENIZER [OPTION ...]. Windows ends lines with a carriage return.
compare() {
  local target=$1 expected=$2
  shift 2
  runs=$((runs + 1))
  if ! "${generate[@]}" "$@" --target "$target" > "$scratch/text" 2> "$scratch/log"; then
    fail "$target $expected: $(cat "$scratch/log")"
  elif ! tr -d '\r' < "$scratch/text" | cmp "$expected" > "$scratch/difference"; then
    fail "$target: $(cat "$scratch/difference"); the text is: $(cat "$scratch/text")"
  elif ! grep -q "^$target: .*tokens/s.*% of the time in attention.\?$" "$scratch/log"; then
    fail "$target $expected: no report of its speed on stderr: $(cat "$scratch/log")"
  else
    echo "pass $target $(basename "$expected"): $(cat "$scratch/log")"
  fi
}

"${write_model[@]}" "$scratch"
formula=("$scratch/model.bin" "$scratch/tokenizer.bin")
prompts=('' 'the dog' 'once upon a time there was a mouse' 'LETTERS that are bytes! 1, 2, 3')
for ((i = 0; i < ${#prompts[@]}; ++i)); do
  "${witness[@]}" "${formula[@]}" "${prompts[i]}" 300 > "$scratch/formula.$i" 2> "$scratch/closest"
  tr -d '\r' < "$scratch/formula.$i" > "$scratch/formula"
  mv "$scratch/formula" "$scratch/formula.$i"
  echo "witness: $(wc -c < "$scratch/formula.$i") bytes, $(tr -d '\r' < "$scratch/closest")"
  if [ "$(wc -c < "$scratch/formula.$i")" -lt 100 ]; then fail "the witness has nothing to say about '${prompts[i]}'"; fi
done
targets=$("${generate[@]}" --list-targets | tr -d '\r')
for target in $targets; do
  for ((i = 0; i < ${#prompts[@]}; ++i)); do
    compare "$target" "$scratch/formula.$i" "${formula[@]}" --steps 300 --prompt "${prompts[i]}"
  done
done

if [ -n "$data" ] && [ -f "$data/stories260K.bin" ]; then
  real=("$data/stories260K.bin" "$data/tok512.bin")
  for run in story/256/ 'cat/128/Once there was a cat'; do
    IFS=/ read -r name steps prompt <<< "$run"
    runs=$((runs + 1))
    if ! "${witness[@]}" "${real[@]}" "$prompt" "$steps" 2> "$scratch/closest" | tr -d '\r' | cmp "$data/expected/$name.txt"; then
      fail "the witness tells another $name than run.c"
    fi
    for target in $targets; do
      compare "$target" "$data/expected/$name.txt" "${real[@]}" --steps "$steps" --prompt "$prompt"
    done
  done
else
  echo "no real model: name its directory as an argument, or its grandparent in SIMDATTN_SHARED"
fi

closing 4
