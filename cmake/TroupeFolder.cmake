# troupe_folder(NAME [DEPENDS folder...] [LIBRARIES target...])
# One folder is one static library troupe_NAME with the repository root as include path, so that
# every include reads "folder/file.h". apps/main.cpp becomes the program and stays out of the
# library, so that tests can link everything else.
set(TROUPE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror)

function(troupe_folder name)
  cmake_parse_arguments(arg "" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/${name}/*.cpp")
  list(REMOVE_ITEM sources "${CMAKE_SOURCE_DIR}/${name}/main.cpp")
  if(NOT sources)
    add_library(troupe_${name} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(troupe_${name} STATIC ${sources})
    target_compile_options(troupe_${name} PRIVATE ${TROUPE_WARNINGS})
    set(scope PUBLIC)
  endif()
  target_include_directories(troupe_${name} ${scope} "${CMAKE_SOURCE_DIR}")
  foreach(folder IN LISTS arg_DEPENDS)
    target_link_libraries(troupe_${name} ${scope} troupe_${folder})
  endforeach()
  target_link_libraries(troupe_${name} ${scope} ${arg_LIBRARIES})
endfunction()
