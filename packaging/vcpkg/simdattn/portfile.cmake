# An overlay port that builds the tree it lies in, a checkout or an unpacked release:
#   vcpkg install simdattn --overlay-ports=packaging/vcpkg
# A port of a registry takes SOURCE_PATH from vcpkg_from_git or vcpkg_extract_source_archive; the rest is the same.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DSIMDATTN_DOWNLOAD=OFF
    -DSIMDATTN_INSTALL=ON
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME simdattn CONFIG_PATH lib/cmake/simdattn)
vcpkg_copy_pdbs()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
