#!/bin/bash
# A compiler that does not optimise, whatever its arguments say: for a library that is linked once and adds up a few numbers.
# Several tests build that library. An object of the same text behind the preprocessor, with the same arguments but for warnings and
# places, is taken from the folder $SIMDATTN_QUICK_OBJECTS, if it is there.
set -euo pipefail
objects=${SIMDATTN_QUICK_OBJECTS:-}
arguments=("$@")
source= object= key= preprocess=()
for ((i = 0; i < $#; ++i)); do
  argument=${arguments[i]}
  case "$argument" in
    -c) continue ;;
    -o) object=${arguments[++i]}; continue ;;
    -MF | -MT | -MQ | -isystem) preprocess+=("$argument" "${arguments[++i]}"); continue ;;
    */lib/*.cc | */dispatch/*.cc) source=$argument ;;
    -M* | -I* | -isystem* | -D* | -U* | -W* | -O* | -fdiagnostics*) ;;
    *) key+=$argument$'\n' ;;
  esac
  preprocess+=("$argument")
done
if [ -z "$objects" ] || [ -z "$source" ] || [ -z "$object" ]; then exec "$@" -O0; fi

mkdir -p "$objects"
# The preprocessor writes the list of headers (-MF), too.
name=$objects/$({ LC_ALL=C sort -u <<<"$key"; "${preprocess[@]}" -O0 -E -P; } | sha256sum | cut -d ' ' -f 1)
exec 9>"$name.lock"
flock 9 || true  # somebody may be compiling it
if [ -f "$name.o" ]; then
  touch "$name.o"
else
  "$@" -O0
  cp "$object" "$name.new"
  mv "$name.new" "$name.o"
  find "$objects" -type f -mtime +1 -delete
  exit
fi
cp "$name.o" "$object"
