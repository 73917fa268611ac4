#!/usr/bin/env python3
""".ci/table is whole, and a fault in any folder is seen by a stage that notices it.

    .ci/table_test.py                   every tracked path has a row, every row a path, every stage a row; for every folder .ci/faults.tsv has
                                        a fault, and the table chooses the stage that notices it
    .ci/table_test.py --make [TEXT...]  makes these faults in a copy (build-ci-faults), those whose path contains one of TEXT, and runs their
                                        stages: each must fail, and none without a fault. Hours.

A line of .ci/faults.tsv: path, what stands there once, what a slip of the pen makes of it, stage and test that notice. Folders without a
fault have a reason in its place.
"""
import collections
import fnmatch
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COPY = os.path.join(ROOT, 'build-ci-faults')


def tracked():
    out = subprocess.run(['git', '-C', ROOT, 'ls-files', '-z'], capture_output=True, check=True).stdout
    return sorted(path.decode() for path in out.split(b'\0') if path)


def read(path):
    with open(os.path.join(ROOT, path), encoding='utf-8') as file:
        return file.read()


def table(kind):
    return [line.split()[1:] for line in read('.ci/table').splitlines() if line.split()[:1] == [kind]]


def selected(path):
    run = subprocess.run([os.path.join(ROOT, '.ci', 'select')], input=path + '\n', capture_output=True, text=True, check=True)
    return run.stdout.split()


def faults():
    """path or folder: (before, after, [stage, test]); of a folder without a fault (reason, '', [])."""
    found = {}
    for line in read('.ci/faults.tsv').splitlines():
        if line and not line.startswith('#'):
            path, before, *rest = line.split('\t')
            found[path] = (before, rest[0], rest[1:]) if rest else (before, '', [])
    return found


def wrong_rows(paths):
    patterns = [row[0] for row in table('path')]
    stages = [row[0] for row in table('stage')]
    used = collections.Counter()
    for path in paths:
        row = next((pattern for pattern in patterns if fnmatch.fnmatchcase(path, pattern)), None)
        if row is None:
            yield f'{path}: .ci/table has no row for it, so every change of it runs every stage'
        used[row] += 1
    for pattern in patterns:
        if not used[pattern]:
            yield f'.ci/table: no path is the first one to match {pattern}'
    named = {word for kind in ('always', 'set', 'path') for row in table(kind) for word in row}
    script = read('.ci/stage')
    for stage in stages:
        if stage not in named:
            yield f'.ci/table: {stage} runs with all stages alone'
        if f'\n{stage}() {{' not in script:
            yield f'.ci/stage: has no function {stage}'


def wrong_faults(paths):
    known = faults()
    folders = {os.path.dirname(path) for path in paths}
    of_files = {os.path.dirname(path) for path in known if path in paths}
    for folder in sorted(folders):
        if folder not in of_files and folder not in known:
            yield f'{folder or "."}: .ci/faults.tsv has no fault of this folder, and no reason'
    for path, (before, after, stage) in known.items():
        if not stage:
            if path not in folders:
                yield f'.ci/faults.tsv: there is no folder {path}'
            continue
        if path not in paths:
            yield f'.ci/faults.tsv: there is no file {path}'
        elif read(path).count(before) != 1:
            yield f'.ci/faults.tsv: {path} must have once: {before}'
        elif before == after:
            yield f'.ci/faults.tsv: {path}: no fault'
        elif stage[0] not in selected(path):
            yield f'{path}: {stage[0]} notices a fault in it, but .ci/table does not choose that stage'


def make(texts):
    """Every fault by itself, in a copy that is compiled once."""
    shutil.rmtree(os.path.join(COPY, 'tree'), ignore_errors=True)
    tree = os.path.join(COPY, 'tree')
    subprocess.run(['git', 'clone', '-q', ROOT, tree], check=True)
    if os.path.isdir(os.path.join(ROOT, '.deps')):
        shutil.copytree(os.path.join(ROOT, '.deps'), os.path.join(tree, '.deps'), symlinks=True)
    subprocess.run(['tools/setup'], cwd=tree, check=True, stdin=subprocess.DEVNULL)
    unnoticed, sound = 0, set()
    for path, (before, after, stage) in faults().items():
        if not stage or (texts and not any(text in path for text in texts)):
            continue
        name = path.replace('/', '-')

        def run(what):
            with open(os.path.join(COPY, what), 'w', encoding='utf-8') as log:
                return subprocess.run(['.ci/stage', *stage], cwd=tree, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                      check=False).returncode

        if tuple(stage) not in sound:  # what fails anyway notices nothing
            status = run('without-' + '-'.join(stage))
            if status:
                print(f'{" ".join(stage)}: fails without a fault, status {status}', flush=True)
                unnoticed += 1
                continue
            sound.add(tuple(stage))
        text = read(path)
        with open(os.path.join(tree, path), 'w', encoding='utf-8') as file:
            file.write(text.replace(before, after))
        status = run(name)
        with open(os.path.join(tree, path), 'w', encoding='utf-8') as file:
            file.write(text)
        seen = status not in (0, 77)
        unnoticed += not seen
        print(f'{path}: {" ".join(stage)}: {"noticed" if seen else "NOT NOTICED, status " + str(status)}', flush=True)
    return unnoticed


if sys.argv[1:2] == ['--make']:
    sys.exit(make(sys.argv[2:]) > 0)
if not os.path.exists(os.path.join(ROOT, '.git')):
    print('skipped: which files there are is what git says')
    sys.exit(77)
all_paths = tracked()
problems = [*wrong_rows(all_paths), *wrong_faults(all_paths)]
print('\n'.join(problems) or f'{len(all_paths)} paths, {len(faults())} faults')
sys.exit(bool(problems))
