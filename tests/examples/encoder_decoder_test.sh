#!/bin/bash
# An encoder-decoder must learn to write dates, look at the right places, and have the same bits in any company; and say what
# is wrong with bad input.
#
#   tests/examples/encoder_decoder_test.sh ENCODER_DECODER
set -euo pipefail

# shellcheck source=tests/examples/program_checks.sh
. "$(dirname "$0")/program_checks.sh"
program_name=encoder_decoder
program=("${wrapper[@]}" "$1")

# learns SEED DATE EXPECTED COLUMN: the date comes out right, and the decade is written with a look at that token.
learns() {
  runs=$((runs + 1))
  if ! "${program[@]}" --seed "$1" --accuracy 98 --date "$2" >"$scratch/out" 2>&1; then fail "seed $1: $(cat "$scratch/out")"; return; fi
  if ! grep -q ': the same bits$' "$scratch/out"; then fail "seed $1: other bits: $(cat "$scratch/out")"; return; fi
  if ! grep -q "^step 1000 of 1000, loss" "$scratch/out"; then fail "seed $1: no progress shown: $(cat "$scratch/out")"; return; fi
  if ! grep -q -- "^$2 -> $3\$" "$scratch/out"; then fail "seed $1: not $3: $(cat "$scratch/out")"; return; fi
  local column
  column=$(sed -n '/ -> /,$p' "$scratch/out" \
    | awk 'NR == 5 { for (i = 2; i <= NF; ++i) if ($i != "." && $i > most) { most = $i; at = i - 1 }; print at }')
  if [ "$column" != "$4" ]; then fail "seed $1: it looked at token $column, not $4: $(cat "$scratch/out")"; return; fi
  echo "pass seed $1: $(grep 'never saw' "$scratch/out")"
}
learns 1 '3 May 1979' 1979-05-03 7
learns 2 'Friday, 13 October 2017' 2017-10-13 11

# Without training it knows nothing: the accuracy is not a constant.
runs=$((runs + 1))
if "${program[@]}" --steps 1 --accuracy 50 >"$scratch/out" 2>&1 || ! grep -q '^fewer than 50 %$' "$scratch/out"; then
  fail "one step: $(cat "$scratch/out")"
fi

refused '--steps takes a whole number from 1' --steps 0
refused '--batch takes a whole number from 1 to 4096, not "x"' --batch x
refused '--accuracy takes a whole number from 0 to 100' --accuracy 101
refused '--date: it cannot read "Mai 1979"' --date '3 Mai 1979'
refused '--date: it reads 1 to 12 words' --date '3 May 1979, 4 May 1979'
refused '--seed needs a value' --seed
refused 'unknown option --step' --step 3
refused 'it takes options alone' 1979
usage encoder_decoder

closing 12
