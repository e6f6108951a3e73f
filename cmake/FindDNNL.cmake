# oneDNN's own package file asks for OpenCL, which we do not use: header and library are found by
# hand. Defines DNNL::dnnl_plain.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DNNL DEFAULT_MSG DNNL_LIBRARY DNNL_INCLUDE_DIR)
if(DNNL_FOUND AND NOT TARGET DNNL::dnnl_plain)
  add_library(DNNL::dnnl_plain UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl_plain PROPERTIES IMPORTED_LOCATION "${DNNL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${DNNL_INCLUDE_DIR}")
endif()
