"""Conan 2: `conan create packaging/conan`, in a checkout or an unpacked release."""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir


class Simdattn(ConanFile):
    name = 'simdattn'
    license = 'Apache-2.0'
    description = 'The CPU kernels inside transformer attention'
    topics = ('attention', 'transformer', 'simd', 'kv-cache', 'rope')
    package_type = 'library'
    settings = 'os', 'arch', 'compiler', 'build_type'
    options = {'shared': [True, False], 'fPIC': [True, False]}
    default_options = {'shared': False, 'fPIC': True}
    implements = ['auto_shared_fpic']

    def _tree(self):
        return os.path.join(self.recipe_folder, '..', '..')

    def set_version(self):
        self.version = re.search(r"version: '([0-9.]+)'", load(self, os.path.join(self._tree(), 'meson.build'))).group(1)

    def export_sources(self):
        for pattern in ('CMakeLists.txt', 'LICENSE', 'meson.build', 'dispatch/*', 'include/*', 'lib/*', 'packaging/*'):
            copy(self, pattern, self._tree(), self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        for library in ('highway/[>=1.2.0 <2]', 'xsimd/[>=13.0.0 <15]'):
            self.requires(library, visible=False, headers=True, libs=False, run=False)  # headers alone, of this build

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables['SIMDATTN_DOWNLOAD'] = 'OFF'
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, 'LICENSE', self.source_folder, os.path.join(self.package_folder, 'licenses'))
        rmdir(self, os.path.join(self.package_folder, 'lib', 'cmake'))

    def package_info(self):
        self.cpp_info.set_property('cmake_file_name', 'simdattn')
        self.cpp_info.set_property('cmake_target_name', 'simdattn::simdattn')
        self.cpp_info.set_property('pkg_config_name', 'simdattn')
        self.cpp_info.libs = ['simdattn']
        if self.options.shared:
            self.cpp_info.defines = ['SIMDATTN_SHARED_LIBRARY=1']
        if self.settings.os in ('Linux', 'FreeBSD'):
            self.cpp_info.system_libs = ['m']
