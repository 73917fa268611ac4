"""Runs a recipe as `conan create` does, with the stand-in beside this file: run_conan.py CONANFILE FOLDER [shared]

Prints what a program is compiled and linked with.
"""
import importlib.util
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
spec = importlib.util.spec_from_file_location('conanfile', sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
recipe = module.Simdattn(os.path.dirname(os.path.abspath(sys.argv[1])), sys.argv[2], {'shared': 'shared' in sys.argv[3:]})
out = os.dup(1)
os.dup2(2, 1)  # what CMake prints
recipe.set_version()
recipe.export_sources()
recipe.layout()
recipe.requirements()
recipe.generate()
recipe.build()
recipe.package()
recipe.package_info()
info = recipe.cpp_info
assert os.path.exists(f'{recipe.package_folder}/licenses/LICENSE') and not os.path.exists(f'{recipe.package_folder}/lib/cmake')
assert info.properties['cmake_target_name'] == 'simdattn::simdattn', info.properties
flags = [f'-I{recipe.package_folder}/include', f'-L{recipe.package_folder}/lib', f'-Wl,-rpath,{recipe.package_folder}/lib',
         *(f'-D{d}' for d in getattr(info, 'defines', [])), *(f'-l{lib}' for lib in info.libs + getattr(info, 'system_libs', []))]
os.write(out, (f'{recipe.name}/{recipe.version} ' + ' '.join(flags) + '\n').encode())
