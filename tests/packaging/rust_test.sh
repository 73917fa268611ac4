#!/bin/bash
# The crate of examples/rust: its example links the static library and prints the softmax of a row.
#
#   tests/packaging/rust_test.sh SOURCE_DIR LIBSIMDATTN.A
set -euo pipefail
source=$1
archive=$2
command -v cargo >/dev/null || { echo "skipped: cargo is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/lib"
cp "$archive" "$work/lib"
cp -r "$source/examples/rust" "$work/crate"
export SIMDATTN_LIB_DIR=$work/lib CARGO_NET_OFFLINE=true
cargo run --quiet --manifest-path "$work/crate/Cargo.toml" --example softmax | tee "$work/output"
version=$(sed -n "s/^  version: '\([0-9.]*\)',/\1/p" "$source/meson.build")
diff - "$work/output" <<<"simdattn $version: [0.03206, 0.08714, 0.23688, 0.64391]"
grep -q "^version = \"$version\"" "$source/examples/rust/Cargo.toml" || { echo "Cargo.toml is of another version"; exit 1; }
