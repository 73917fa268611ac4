#!/bin/bash
# What a sequence gets among many is what it gets alone: the texts of `serve` against those of llama2_generate, byte by byte, for
# any number of threads, page size, chunk, and where pages are scarce; with a prefix that is shared by cascade and without.
#
#   tests/examples/serve_test.sh SERVE LLAMA2_GENERATE WRITE_FORMULA_MODEL
#
# With $SIMDATTN_SHARED the real model of its data/tinyllamas serves 64 prompts too.
set -euo pipefail

# shellcheck source=tests/examples/program_checks.sh
. "$(dirname "$0")/program_checks.sh"
program_name=serve
program=("${wrapper[@]}" "$1")
generate=("${wrapper[@]}" "$2")
write_model=("${wrapper[@]}" "$3")

# alone MODEL TOKENIZER PROMPTS STEPS: what serve should print.
alone() {
  local line number=0
  while IFS= read -r line; do
    number=$((number + 1))
    echo "--- $number"
    "${generate[@]}" "$1" "$2" --steps "$4" --prompt "$line" < /dev/null 2>> "$scratch/alone.log" | tr -d '\r'
    echo
  done < "$3"
}

# together NAME PATTERN MODEL TOKENIZER PROMPTS STEPS [OPTION ...]: $scratch/expected.NAME, and PATTERN in the report.
together() {
  local name=$1 pattern=$2 model=$3 tokenizer=$4 prompts=$5 steps=$6
  shift 6
  runs=$((runs + 1))
  if ! "${program[@]}" "$model" "$tokenizer" --prompts "$prompts" --steps "$steps" "$@" > "$scratch/text" 2> "$scratch/log"; then
    fail "$name $*: $(cat "$scratch/log")"
  elif ! tr -d '\r' < "$scratch/text" | cmp - "$scratch/expected.$name" > "$scratch/difference"; then
    fail "$name $*: $(cat "$scratch/difference")"
  elif ! grep -Eq "$pattern" "$scratch/log"; then
    fail "$name $*: the report has no '$pattern': $(cat "$scratch/log")"
  elif ! grep -Eq "new tokens/s" "$scratch/log" || ! grep -Eq "% of the time in attention, [0-9]+ % in rope and append" "$scratch/log"; then
    fail "$name $*: no report of its speed: $(cat "$scratch/log")"
  else
    echo "pass $name $*: $(tr -d '\r' < "$scratch/log" | tr '\n' ' ')"
  fi
}

# ---- The formula model -----------------------------------------------------------------------------------------------------

"${write_model[@]}" "$scratch"
model=$scratch/model.bin
tokenizer=$scratch/tokenizer.bin

# Many short ones: different starts, lengths from none to more than a page; some are longer than the steps.
read -r -a words <<< 'the dog sat on a mat, and then it ran away. who saw bears in town'
for ((i = 0; i < 40; ++i)); do
  for ((w = 0; w < i * 7 % 30; ++w)); do printf '%s ' "${words[(i * 5 + w * w) % ${#words[@]}]}"; done
  echo "${i:1}"
done > "$scratch/many"
alone "$model" "$tokenizer" "$scratch/many" 90 > "$scratch/expected.many"
together many 'at most 3[0-9] sequences' "$model" "$tokenizer" "$scratch/many" 90 --threads 1
together many 'at most 3[0-9] sequences' "$model" "$tokenizer" "$scratch/many" 90 --threads 3 --page-size 64
together many 'at most 5 sequences' "$model" "$tokenizer" "$scratch/many" 90 --threads 2 --sequences 5 --rows 7
together many ' 0 sequences put back' "$model" "$tokenizer" "$scratch/many" 90 --threads 2 --pages 120 --rows 1000
# Pages for four of the longest sequences: the youngest are put back and begin anew.
together many ' [1-9][0-9]* sequences put back' "$model" "$tokenizer" "$scratch/many" 90 --threads 2 --pages 12

# A long prefix: the first 1024 tokens are attended to once for all. Tokens are single letters here.
letters=bcdfghjklmnpqrstvwxyz
prefix=$(for ((i = 0; i < 1060; ++i)); do printf '%s' "${letters:i * i % 21:1}"; done)
for tail in "" " the dog" " a cat, and a dog" " who saw bears in town" zzz; do echo "$prefix$tail"; done > "$scratch/long"
echo "the dog" >> "$scratch/long"
echo "${prefix:0:700} another one" >> "$scratch/long"
alone "$model" "$tokenizer" "$scratch/long" 1150 > "$scratch/expected.long"
in_cascade=' [1-9][0-9]+ rows in cascade'
if [[ $("${generate[@]}" --list-targets | head -n 1) == */sse* ]]; then in_cascade=' 0 rows in cascade'; fi  # no fused multiply-add
together long "$in_cascade" "$model" "$tokenizer" "$scratch/long" 1150 --threads 1
together long "$in_cascade" "$model" "$tokenizer" "$scratch/long" 1150 --threads 2 --page-size 128 --rows 50
together long ' [1-9][0-9]+ tokens found in shared pages, 0 rows in cascade' \
  "$model" "$tokenizer" "$scratch/long" 1150 --threads 2 --no-cascade

# Two groups in one step, of prefixes of two splits and of one; and pages as large as a split.
deep=$(for ((i = 0; i < 2060; ++i)); do printf '%s' "${letters:i * i * i % 21:1}"; done)
for tail in "$deep" "$deep the dog" "$deep a cat" "${prefix}x" "$prefix then it ran"; do echo "$tail"; done > "$scratch/deep"

# Not the text alone: every logit has the bits that it has alone. (A cascade over some other number of keys keeps the text here, and
# not the bits.)
for prompts in many/90 long/1150 deep/2100; do
  IFS=/ read -r name steps <<< "$prompts"
  "${program[@]}" "$model" "$tokenizer" --prompts "$scratch/$name" --steps "$steps" --digest --sequences 1 --threads 1 --page-size 1024 \
    2> "$scratch/log" | tr -d '\r' > "$scratch/expected.$name"
  if ! grep -Eq '^--- 3 [0-9a-f]{16}$' "$scratch/expected.$name"; then fail "--digest prints no digest"; fi
done
together many 'at most 2[0-9] sequences' "$model" "$tokenizer" "$scratch/many" 90 --digest --threads 2 --rows 20
together many ' [1-9][0-9]* sequences put back' "$model" "$tokenizer" "$scratch/many" 90 --digest --threads 2 --pages 12
together long "$in_cascade" "$model" "$tokenizer" "$scratch/long" 1150 --digest --threads 2
together long "$in_cascade" "$model" "$tokenizer" "$scratch/long" 1150 --digest --threads 2 --page-size 64 --rows 9
together deep "$in_cascade" "$model" "$tokenizer" "$scratch/deep" 2100 --digest --threads 2
together deep "$in_cascade" "$model" "$tokenizer" "$scratch/deep" 2100 --digest --threads 1 --page-size 1024

# ---- The real model --------------------------------------------------------------------------------------------------------

real=${SIMDATTN_SHARED:+$SIMDATTN_SHARED/data/tinyllamas}
if [ -n "$real" ] && [ -f "$real/stories260K.bin" ]; then
  starts=("Once upon a time" "One day" "In the park" "It was raining" "Mom said" "She" "The story begins" "Hello")
  names=(Tom Lily "the cat" "a bird" "Ben and Mia" "an old man" "the red car" "a girl")
  for start in "${starts[@]}"; do
    for name in "${names[@]}"; do echo "$start, $name"; done
  done > "$scratch/stories"
  alone "$real/stories260K.bin" "$real/tok512.bin" "$scratch/stories" 100 > "$scratch/expected.stories"
  together stories 'at most 64 sequences' "$real/stories260K.bin" "$real/tok512.bin" "$scratch/stories" 100 --threads 2
  together stories ' [1-9][0-9]* sequences put back' "$real/stories260K.bin" "$real/tok512.bin" "$scratch/stories" 100 \
    --threads 2 --pages 100 --rows 40
else
  echo "no real model: name the directory of data/tinyllamas in SIMDATTN_SHARED"
fi

# ---- What is wrong, in a sentence -------------------------------------------------------------------------------------------

head -c 5000 "$model" > "$scratch/short"
cp "$model" "$scratch/corrupt"
printf '\xff\xff\xff\x7f' | dd of="$scratch/corrupt" bs=1 conv=notrunc status=none
: > "$scratch/empty"
printf 'good\n%02400d\n' 0 > "$scratch/too-long"
refused 'usage: serve MODEL TOKENIZER'
refused 'usage: serve MODEL TOKENIZER' "$model"
refused 'no such file' "$scratch/absent" "$tokenizer"
refused 'no such file' "$model" "$scratch/absent"
refused 'the file ends inside' "$scratch/short" "$tokenizer"
refused 'not a llama2.c checkpoint|the file ends inside' "$scratch/corrupt" "$tokenizer"
refused 'not a llama2.c tokenizer' "$model" "$model"
refused 'no such file' "$model" "$tokenizer" --prompts "$scratch/absent"
refused 'no prompts' "$model" "$tokenizer" --prompts "$scratch/empty"
refused 'prompt 2: .* more than the model.s context of 2304' "$model" "$tokenizer" --prompts "$scratch/too-long"
refused '--steps takes a whole number from 0, not "-1"' "$model" "$tokenizer" --steps -1
refused '--threads takes a whole number from 1 to 1024, not "two"' "$model" "$tokenizer" --threads two
refused '--sequences takes a whole number' "$model" "$tokenizer" --sequences 0
refused '--rows takes a whole number' "$model" "$tokenizer" --rows 1e3
refused '--page-size takes a power of two' "$model" "$tokenizer" --page-size 96
refused '--page-size takes a whole number from 32 to 1024' "$model" "$tokenizer" --page-size 16
refused '--pages 7 are too few: one sequence of 256 tokens takes 8 pages of 32' "$model" "$tokenizer" --pages 7
refused '--target highway/abacus' "$model" "$tokenizer" --target highway/abacus
refused 'needs a value' "$model" "$tokenizer" --steps
refused 'unknown option --tempo' "$model" "$tokenizer" --tempo 1
usage 'serve MODEL TOKENIZER'

closing 34
