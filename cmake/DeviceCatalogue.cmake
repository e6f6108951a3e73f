# conf/devices.toml goes into the program as text, so that a configuration can name a device of the
# catalogue wherever it lies.
function(troupe_device_catalogue target)
  set(source "${CMAKE_SOURCE_DIR}/conf/devices.toml")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
  file(READ "${source}" TROUPE_DEVICE_CATALOGUE)
  set(generated "${CMAKE_BINARY_DIR}/generated/device_catalogue_text.cpp")
  file(CONFIGURE OUTPUT "${generated}" @ONLY CONTENT
[=[namespace troupe {
extern const char* const device_catalogue_text;
const char* const device_catalogue_text = R"devices(@TROUPE_DEVICE_CATALOGUE@)devices";
}  // namespace troupe
]=])
  target_sources(${target} PRIVATE "${generated}")
endfunction()
