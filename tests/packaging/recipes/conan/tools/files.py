import fnmatch
import os
import shutil


def load(recipe, path):
    with open(path) as file:
        return file.read()


def copy(recipe, pattern, src, dst):
    for folder, _, names in os.walk(src):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), src)
            if fnmatch.fnmatch(path, pattern):
                target = os.path.join(dst, path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(os.path.join(src, path), target)


def rmdir(recipe, path):
    shutil.rmtree(path, ignore_errors=True)
