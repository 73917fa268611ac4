#!/bin/bash
# Speculation must not be seen in the text: `speculate` against llama2_generate, byte by byte, for trees of many shapes, and in
# fewer steps.
#
#   tests/examples/speculate_test.sh SPECULATE LLAMA2_GENERATE WRITE_FORMULA_MODEL
#
# With $SIMDATTN_SHARED the real model of its data/tinyllamas speculates too.
set -euo pipefail

# shellcheck source=tests/examples/program_checks.sh
. "$(dirname "$0")/program_checks.sh"
program_name=speculate
program=("${wrapper[@]}" "$1")
generate=("${wrapper[@]}" "$2")
write_model=("${wrapper[@]}" "$3")

# compare FEWER MODEL TOKENIZER PROMPT STEPS [OPTION ...]; FEWER: at least that many tokens for 10 steps.
compare() {
  local fewer=$1 model=$2 tokenizer=$3 prompt=$4 positions=$5
  shift 5
  runs=$((runs + 1))
  "${generate[@]}" "$model" "$tokenizer" --prompt "$prompt" --steps "$positions" > "$scratch/expected" 2> "$scratch/log"
  if ! "${program[@]}" "$model" "$tokenizer" --prompt "$prompt" --steps "$positions" "$@" > "$scratch/text" 2> "$scratch/log"; then
    fail "'$prompt' $positions $*: $(cat "$scratch/log")"
    return
  fi
  if ! cmp "$scratch/text" "$scratch/expected" > "$scratch/difference"; then
    fail "'$prompt' $positions $*: $(cat "$scratch/difference")"
    return
  fi
  local tokens steps
  read -r tokens steps < <(sed -nE 's/.*: ([0-9]+) tokens in ([0-9]+) steps, .*/\1 \2/p' "$scratch/log" | tr -d '\r')
  if [ $((tokens * 10)) -lt $((steps * fewer)) ] || [ "$steps" -gt "$tokens" ]; then
    fail "'$prompt' $positions $*: too many steps: $(cat "$scratch/log")"
  else
    echo "pass '$prompt' $positions $*: $(tr -d '\r' < "$scratch/log" | tr '\n' ' ')"
  fi
}

"${write_model[@]}" "$scratch"
formula=("$scratch/model.bin" "$scratch/tokenizer.bin")
long='the dog sat on a mat, and then the dog ran away, and then the cat sat on a mat, and then it ran away'
compare 10 "${formula[@]}" '' 300 --nodes 1
for shape in '--nodes 2' '--branches 1' '' '--nodes 5 --branches 3' '--nodes 40 --branches 8' '--nodes 300 --branches 100'; do
  read -r -a options <<< "$shape"
  compare 13 "${formula[@]}" '' 300 "${options[@]}"
  compare 10 "${formula[@]}" 'the dog' 200 "${options[@]}"
  compare 10 "${formula[@]}" "$long" 400 "${options[@]}"
done
# Where the end of the text falls into a tree, and prompts that reach it.
for positions in 1 2 3 29 30 31 32 33 64 65; do compare 10 "${formula[@]}" '' "$positions"; done
for positions in 60 61 62 63 64 65 66 67 68; do compare 10 "${formula[@]}" "$long" "$positions"; done

real=${SIMDATTN_SHARED:+$SIMDATTN_SHARED/data/tinyllamas}
if [ -n "$real" ] && [ -f "$real/stories260K.bin" ]; then
  for shape in '--branches 1' '' '--nodes 40 --branches 8'; do
    read -r -a options <<< "$shape"
    compare 12 "$real/stories260K.bin" "$real/tok512.bin" '' 256 "${options[@]}"
    compare 11 "$real/stories260K.bin" "$real/tok512.bin" 'Once there was a cat' 300 "${options[@]}"
    compare 11 "$real/stories260K.bin" "$real/tok512.bin" 'Lily and Ben' 0 "${options[@]}"
  done
else
  echo "no real model: name the directory of data/tinyllamas in SIMDATTN_SHARED"
fi

head -c 5000 "${formula[0]}" > "$scratch/short"
refused 'usage: speculate MODEL TOKENIZER'
refused 'no such file' "$scratch/absent" "${formula[1]}"
refused 'no such file' "${formula[0]}" "$scratch/absent"
refused 'the file ends inside' "$scratch/short" "${formula[1]}"
refused 'not a llama2.c tokenizer' "${formula[0]}" "${formula[0]}"
refused 'more than the model.s context of 2304' "${formula[@]}" --prompt "$(printf '%02400d' 0)"
refused '--steps takes a whole number from 0, not "1e3"' "${formula[@]}" --steps 1e3
refused '--nodes takes a whole number from 1 to 1024, not "0"' "${formula[@]}" --nodes 0
refused '--branches takes a whole number from 1 to 1024, not "many"' "${formula[@]}" --branches many
refused '--target highway/abacus' "${formula[@]}" --target highway/abacus
refused 'needs a value' "${formula[@]}" --prompt
refused 'unknown option --tempo' "${formula[@]}" --tempo 1
usage 'speculate MODEL TOKENIZER'

closing 50
