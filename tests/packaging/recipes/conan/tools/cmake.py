import os
import subprocess


def cmake_layout(recipe):
    pass


class CMakeToolchain:
    def __init__(self, recipe):
        self.recipe, self.cache_variables = recipe, {}

    def generate(self):
        self.recipe.cache_variables = self.cache_variables


class CMake:
    def __init__(self, recipe):
        self.recipe = recipe

    def configure(self):
        r = self.recipe
        values = {'CMAKE_BUILD_TYPE': 'Release', 'CMAKE_INSTALL_PREFIX': r.package_folder, 'CMAKE_INSTALL_LIBDIR': 'lib',
                  'BUILD_SHARED_LIBS': 'ON' if r.options.shared else 'OFF', **r.cache_variables}
        subprocess.run(['cmake', '-S', r.source_folder, '-B', r.build_folder, *(f'-D{k}={v}' for k, v in values.items()),
                        *os.environ.get('CONFIGURE', '').split()], check=True)

    def build(self):
        subprocess.run(['cmake', '--build', self.recipe.build_folder, '-j', '2'], check=True)

    def install(self):
        subprocess.run(['cmake', '--install', self.recipe.build_folder], check=True)
