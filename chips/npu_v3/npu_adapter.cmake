# npu_adapter(<chip>): builds libuba_<chip>.so from the family's one source and installs it with its descriptor.
#
# The members of the family have one SDK and one command set; an adapter differs from its sister by name only.
set(NPU_ADAPTER_DIR ${CMAKE_CURRENT_LIST_DIR})
include(${NPU_ADAPTER_DIR}/../adapter.cmake)

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
  uba_adapter(${chip} SOURCE ${NPU_ADAPTER_DIR}/uba_npu_v3.c SDK npu npu STANDARD 11 FILES check.yaml)
  target_compile_definitions(uba_${chip} PRIVATE CHIP="${chip}")
endfunction()
