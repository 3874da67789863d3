# npu_adapter(<chip>): builds libuba_<chip>.so from the family's one source and installs it with its descriptor.
#
# The members of the family have one SDK and one command set; an adapter differs from its sister by name only.
set(NPU_ADAPTER_DIR ${CMAKE_CURRENT_LIST_DIR})
set(TORCHFL_INCLUDE "${NPU_ADAPTER_DIR}/../../include" CACHE PATH "Folder that holds torchfl/uba.h")
set(NPU_ADAPTER_UBA ${TORCHFL_INCLUDE})

if(NOT TARGET npu)
  set(NPU_SDK_ROOT "$ENV{NPU_SDK_ROOT}" CACHE PATH "The NPU's SDK: include/npu_v3_sdk.h, lib/libnpu.so")
  find_library(NPU_LIBRARY npu HINTS ${NPU_SDK_ROOT} PATH_SUFFIXES lib)
  find_path(NPU_INCLUDE npu_v3_sdk.h HINTS ${NPU_SDK_ROOT} PATH_SUFFIXES include)
  if(NOT NPU_LIBRARY OR NOT NPU_INCLUDE)
    message(FATAL_ERROR "The NPU's SDK was not found: set NPU_SDK_ROOT to the folder of its include/ and lib/")
  endif()
  add_library(npu SHARED IMPORTED)
  set_target_properties(npu PROPERTIES IMPORTED_LOCATION ${NPU_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NPU_INCLUDE})
endif()

function(npu_adapter chip)
  add_library(uba_${chip} SHARED ${NPU_ADAPTER_DIR}/uba_npu_v3.c)
  target_compile_definitions(uba_${chip} PRIVATE CHIP="${chip}")
  target_include_directories(uba_${chip} PRIVATE ${NPU_ADAPTER_UBA})
  target_compile_options(uba_${chip} PRIVATE -Wall -Wextra -pedantic)
  target_link_libraries(uba_${chip} PRIVATE npu)
  # $ORIGIN/../..: in the package, adapters lie in _chips/<chip> and the SDK in _sdk/npu.
  set_target_properties(uba_${chip} PROPERTIES
    C_STANDARD 11 C_EXTENSIONS OFF C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON
    INSTALL_RPATH "$ORIGIN;$ORIGIN/../../_sdk/npu/lib")
  if(NOT APPLE)
    target_link_options(uba_${chip} PRIVATE -Wl,-z,defs)
  endif()
  if(TORCHFL_PACKAGE)
    set(folder ${TORCHFL_PACKAGE}/_chips/${chip})
  else()
    set(folder ${chip})
  endif()
  install(TARGETS uba_${chip} LIBRARY DESTINATION ${folder})
  install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/${chip}.yaml ${CMAKE_CURRENT_SOURCE_DIR}/check.yaml
    ${CMAKE_CURRENT_SOURCE_DIR}/README.md DESTINATION ${folder})
endfunction()
