# shellcheck shell=bash
# Sourced: where what outlives a checkout is kept, and how compilers use it. Objects are found again from any folder.
SIMDATTN_CACHE=${SIMDATTN_CACHE:-${XDG_CACHE_HOME:-$(cd ~ && pwd)/.cache}/simdattn}
export SIMDATTN_CACHE
mkdir -p "$SIMDATTN_CACHE"
export CCACHE_DIR=$SIMDATTN_CACHE/ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=yes CCACHE_COMPILERCHECK=content CCACHE_MAXSIZE=8G
# Without these no object that a precompiled header is part of is kept. ccache looks at the texts of all headers instead of their times.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
