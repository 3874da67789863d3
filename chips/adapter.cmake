# uba_adapter(<chip> SOURCE <file> [SDK <target> <folder>] [STANDARD <99|11>] [KIT] [FILES <file>...])
#   builds libuba_<chip>.so, warning-free and with every symbol resolved, and installs it beside its descriptor,
#   <chip>.yaml, README.md and FILES of the calling folder: in the package that it is part of, else in <chip>.
#   SDK: what it links, and the folder of it in the package's _sdk. KIT: with the kernel kit (kit/kit.h), in C++17.
set(TORCHFL_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/../include" CACHE PATH "Folder that holds torchfl/uba.h")

function(uba_adapter chip)
  cmake_parse_arguments(PARSE_ARGV 1 adapter "KIT" "SOURCE;STANDARD" "SDK;FILES")
  if(NOT adapter_STANDARD)
    set(adapter_STANDARD 99)
  endif()
  add_library(uba_${chip} SHARED ${adapter_SOURCE})
  target_include_directories(uba_${chip} PRIVATE ${TORCHFL_INCLUDE})
  target_compile_options(uba_${chip} PRIVATE -Wall -Wextra -pedantic)
  if(NOT APPLE)
    target_link_options(uba_${chip} PRIVATE -Wl,-z,defs)
  endif()
  set_target_properties(uba_${chip} PROPERTIES
    C_STANDARD ${adapter_STANDARD} C_EXTENSIONS OFF C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  if(adapter_SDK)
    list(GET adapter_SDK 0 target)
    list(GET adapter_SDK 1 sdk)
    target_link_libraries(uba_${chip} PRIVATE ${target})
    # $ORIGIN/../..: in the package, adapters lie in _chips/<chip> and their SDKs in _sdk.
    set_target_properties(uba_${chip} PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../../_sdk/${sdk}/lib")
  endif()
  if(adapter_KIT)
    if(NOT TARGET uba_kit)
      add_subdirectory(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../kit ${CMAKE_BINARY_DIR}/kit)
    endif()
    target_link_libraries(uba_${chip} PRIVATE uba_kit)
    set_target_properties(uba_${chip} PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  endif()
  if(TORCHFL_PACKAGE)
    set(folder ${TORCHFL_PACKAGE}/_chips/${chip})
  else()
    set(folder ${chip})
  endif()
  install(TARGETS uba_${chip} LIBRARY DESTINATION ${folder})
  list(TRANSFORM adapter_FILES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/${chip}.yaml ${CMAKE_CURRENT_SOURCE_DIR}/README.md ${adapter_FILES}
    DESTINATION ${folder})
endfunction()
