"""What the recipe uses of Conan, for a release build of Linux, where Conan is not: tests/packaging/recipes_test.sh."""
from types import SimpleNamespace


class ConanFile:
    def __init__(self, recipe_folder, work, options):
        self.recipe_folder = recipe_folder
        self.export_sources_folder = self.source_folder = f'{work}/source'
        self.build_folder, self.package_folder = f'{work}/build', f'{work}/package'
        self.settings = SimpleNamespace(os='Linux', arch='x86_64', compiler='gcc', build_type='Release')
        self.options = SimpleNamespace(**{**self.default_options, **options})
        properties = {}
        self.cpp_info = SimpleNamespace(properties=properties, set_property=properties.__setitem__)
        self.required = []

    def requires(self, reference, **traits):
        self.required.append(reference)
