# Sourced by the tests of programs: where they write, what they count, and what a program says of bad input.
# shellcheck shell=bash disable=SC2034,SC2154

read -r -a wrapper <<< "${MESON_EXE_WRAPPER:-}"  # an emulator, in a cross build
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
runs=0

fail() {
  echo "FAIL $*"
  failures=$((failures + 1))
}

# refused PATTERN ARGUMENT ...: $program ends with status 1, nothing on stdout, and a sentence that begins
# with its $program_name.
refused() {
  local pattern=$1 status=0
  shift
  runs=$((runs + 1))
  "${program[@]}" "$@" > "$scratch/text" 2> "$scratch/log" || status=$?
  if [ "$status" != 1 ] || [ -s "$scratch/text" ] || ! grep -Eq "^$program_name: .*$pattern" "$scratch/log"; then
    fail "$program_name $*: status $status, $(wc -c < "$scratch/text") bytes of text; '$pattern' expected in: $(cat "$scratch/log")"
  fi
}

# usage LINE: --help begins with it.
usage() {
  runs=$((runs + 1))
  # Read whole: a program that is still writing when grep has found its line would be killed.
  "${program[@]}" --help > "$scratch/text" || fail "--help fails"
  if ! grep -q "^usage: $1" "$scratch/text"; then fail "--help prints no usage"; fi
}

# closing MINIMUM: the last line of a test; false after a failure, and if fewer than so many things were tried.
closing() {
  echo "$runs runs, $failures failures"
  [ "$runs" -ge "$1" ] && [ "$failures" -eq 0 ]
}
